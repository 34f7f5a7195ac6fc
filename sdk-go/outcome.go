package cronoq

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// What a handler's end means for its task: the ends that a handler can choose, and the outcomes that
// a worker reports.

// RetryableError ends an attempt as failed; another may succeed. Made by Retryable and RetryAfter.
type RetryableError struct {
	// Err says why, for people.
	Err error
	// After replaces the backoff before the next attempt; nil leaves it.
	After *time.Duration
}

// Retryable returns an error that fails the attempt; the format is that of fmt.Errorf. Any error that
// is none of this package's has the same effect.
func Retryable(format string, arguments ...any) error {
	return &RetryableError{Err: fmt.Errorf(format, arguments...)}
}

// RetryAfter returns an error that fails the attempt and has the next one wait for that long; a
// negative time is none.
func RetryAfter(after time.Duration, format string, arguments ...any) error {
	return &RetryableError{Err: fmt.Errorf(format, arguments...), After: new(max(after, 0))}
}

// Error says why.
func (e *RetryableError) Error() string { return e.Err.Error() }

// Unwrap returns what was wrapped by %w.
func (e *RetryableError) Unwrap() error { return e.Err }

// PermanentError fails the task for good. Made by Permanent.
type PermanentError struct {
	// Err says why, for people.
	Err error
}

// Permanent returns an error that fails the task for good; the format is that of fmt.Errorf.
func Permanent(format string, arguments ...any) error {
	return &PermanentError{Err: fmt.Errorf(format, arguments...)}
}

// Error says why.
func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns what was wrapped by %w.
func (e *PermanentError) Unwrap() error { return e.Err }

// CancelError cancels the task of the handler that returns it. Made by Cancel.
type CancelError struct {
	// Reason is logged.
	Reason string
}

// Cancel returns an error that cancels the handler's task.
func Cancel(reason string) error { return &CancelError{Reason: reason} }

// Error says why.
func (e *CancelError) Error() string { return "cancelled: " + e.Reason }

// RejectError gives the attempt back unrun, for another worker. Made by Reject.
type RejectError struct {
	// Reason is for people.
	Reason string
}

// Reject returns an error that gives the attempt back unrun; it does not count as a try.
func Reject(reason string) error { return &RejectError{Reason: reason} }

// Error says why.
func (e *RejectError) Error() string { return "rejected: " + e.Reason }

const (
	messageBytesMax = 32 * 1024
	cutMark         = " … (cut)"
)

// outcome is how an attempt ended: completed, failed, nacked or cancelled.
type outcome interface{ isOutcome() }

// completed: the handler returned a value.
type completed struct {
	output      []byte
	contentType string
}

// failed: the attempt failed.
type failed struct {
	message     string
	isPermanent bool
	retryAfter  *time.Duration
}

// nacked: the attempt was given back unrun.
type nacked struct{ reason string }

// cancelled: the handler cancelled its task, or ended after the server cancelled it.
type cancelled struct{ reason string }

func (completed) isOutcome() {}
func (failed) isOutcome()    {}
func (nacked) isOutcome()    {}
func (cancelled) isOutcome() {}

// outcomeOf is what an error that a handler returned means.
func outcomeOf(err error) outcome {
	var permanent *PermanentError
	var cancel *CancelError
	var reject *RejectError
	var retryable *RetryableError
	switch {
	case errors.As(err, &permanent):
		return failed{message: err.Error(), isPermanent: true}
	case errors.As(err, &cancel):
		return cancelled{cancel.Reason}
	case errors.As(err, &reject):
		return nacked{reject.Reason}
	case errors.As(err, &retryable):
		return failed{message: err.Error(), retryAfter: retryable.After}
	}
	return failed{message: err.Error()}
}

// cleanMessage returns text that every store can hold (WP-19).
func cleanMessage(text string) string {
	text = strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", "\ufffd"), "\ufffd")
	if len(text) <= messageBytesMax {
		return text
	}
	end := messageBytesMax - len(cutMark)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + cutMark
}

func writeReport(lease uint64, how outcome) *pb.Report {
	switch how := how.(type) {
	case completed:
		return &pb.Report{Report: &pb.Report_Complete{Complete: &pb.Complete{
			Lease: lease, Output: how.output, ContentType: how.contentType,
		}}}
	case failed:
		fail := &pb.Fail{Lease: lease, Message: cleanMessage(how.message), Permanent: how.isPermanent}
		if how.retryAfter != nil {
			fail.RetryAfterS = new(how.retryAfter.Seconds())
		}
		return &pb.Report{Report: &pb.Report_Fail{Fail: fail}}
	case nacked:
		nack := &pb.Nack{Lease: lease, Reason: cleanMessage(how.reason)}
		return &pb.Report{Report: &pb.Report_Nack{Nack: nack}}
	case cancelled:
		return &pb.Report{Report: &pb.Report_Cancelled{Cancelled: &pb.Cancelled{Lease: lease}}}
	}
	panic(fmt.Sprintf("cronoq: unknown outcome %T", how))
}

// singleReport is a report as the message that old servers know.
func singleReport(report *pb.Report) *pb.WorkerMessage {
	switch report := report.Report.(type) {
	case *pb.Report_Complete:
		return &pb.WorkerMessage{Message: &pb.WorkerMessage_Complete{Complete: report.Complete}}
	case *pb.Report_Fail:
		return &pb.WorkerMessage{Message: &pb.WorkerMessage_Fail{Fail: report.Fail}}
	case *pb.Report_Nack:
		return &pb.WorkerMessage{Message: &pb.WorkerMessage_Nack{Nack: report.Nack}}
	case *pb.Report_Cancelled:
		return &pb.WorkerMessage{Message: &pb.WorkerMessage_Cancelled{Cancelled: report.Cancelled}}
	}
	panic(fmt.Sprintf("cronoq: unknown report %T", report.Report))
}
