package cronoq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// FakeAttempt is what [TryHandler] tells a handler about its attempt. The zero value is the first
// attempt of task 1, of kind "test" in pool "default".
type FakeAttempt struct {
	// TaskID is the id of the task; 1 when zero.
	TaskID uint64
	// Number of the attempt; 1 when zero.
	Number int
	// Kind of the task.
	Kind string
	// Key of the task.
	Key string
	// Pool of the task.
	Pool string
	// Tags of the task.
	Tags map[string]string
	// Deadline of the task.
	Deadline time.Time
	// Timeout of the attempt.
	Timeout *time.Duration
	// TraceContext of the submitter.
	TraceContext map[string]string
	// LastProgress is that of the attempt before.
	LastProgress *Progress
	// Outputs are the values of parents by task id.
	Outputs map[uint64]any
	// OnProgress is called with each progress that the handler tells.
	OnProgress func(Progress)
	// Codec of the worker; JSON when nil.
	Codec Codec
	// Interceptors of the worker.
	Interceptors []Interceptor
}

// HandlerOutcome is how a handler ended.
type HandlerOutcome struct {
	// Succeeded says whether it returned a value.
	Succeeded bool
	// Output is that value, encoded.
	Output []byte
	// ContentType of the output.
	ContentType string
	// Failure is the message of a failure.
	Failure string
	// IsPermanent says whether the failure ends the task.
	IsPermanent bool
	// RetryAfter is the wait that the handler asked for.
	RetryAfter *time.Duration
	// IsCancelled says whether the handler cancelled its task.
	IsCancelled bool
	// IsRejected says whether the handler gave the attempt back.
	IsRejected bool
	// Reason is why it cancelled or rejected.
	Reason string

	codec Codec
}

// Decode decodes what a client would get as result; it fails when the handler did not succeed.
func (o HandlerOutcome) Decode(into any) error {
	if !o.Succeeded {
		return fmt.Errorf("cronoq: the handler did not succeed: %s", or(o.Failure, o.Reason))
	}
	return o.codec.Decode(o.Output, o.ContentType, into)
}

// TryHandler runs a handler as a worker would, without a server: for the tests of those who write
// handlers. The payload is what a client would submit, nil for none. The end of the context tells the
// handler to stop.
func TryHandler[In, Out any](
	ctx context.Context, function func(context.Context, In) (Out, error), payload any,
	fake FakeAttempt,
) (HandlerOutcome, error) {
	codec := fake.Codec
	if codec == nil {
		codec = JSONCodec{}
	}
	message := fake.lease()
	if payload != nil {
		raw, contentType, err := codec.Encode(payload)
		if err != nil {
			return HandlerOutcome{}, payloadError(err)
		}
		message.Payload, message.ContentType = raw, contentType
	}
	of := newRun(message, 0, leaseTTLDefault)
	defer of.cancel(nil)
	defer context.AfterFunc(ctx, func() { of.tell(stopAborted, "") })()
	attempt := &Attempt{run: of, host: &fakeHost{fake, codec}}
	end := make(chan outcome, 1)
	go execute(typed(function), attempt, fake.Interceptors, func(how outcome) { end <- how })
	return told(<-end, codec), nil
}

func (f FakeAttempt) lease() *pb.Lease {
	return &pb.Lease{
		Lease: 1, TaskId: or(f.TaskID, 1), Attempt: uint32(or(f.Number, 1)),
		Kind: or(f.Kind, "test"), Key: f.Key, Pool: or(f.Pool, "default"), Tags: f.Tags,
		DeadlineUnixNs: unixNs(f.Deadline), TimeoutS: secondsPtr(f.Timeout),
		TraceContext: f.TraceContext, LastProgress: writeProgress(f.LastProgress),
		Parents: slices.Sorted(maps.Keys(f.Outputs)),
	}
}

func writeProgress(progress *Progress) *pb.Progress {
	if progress == nil {
		return nil
	}
	return &pb.Progress{Data: progress.Data, Fraction: progress.Fraction}
}

func told(how outcome, codec Codec) HandlerOutcome {
	switch how := how.(type) {
	case completed:
		return HandlerOutcome{
			Succeeded: true, Output: how.output, ContentType: how.contentType, codec: codec,
		}
	case failed:
		return HandlerOutcome{
			Failure: how.message, IsPermanent: how.isPermanent, RetryAfter: how.retryAfter,
		}
	case nacked:
		return HandlerOutcome{IsRejected: true, Reason: how.reason}
	case cancelled:
		return HandlerOutcome{IsCancelled: true, Reason: how.reason}
	}
	panic(fmt.Sprintf("cronoq: unknown outcome %T", how))
}

// fakeHost stands for the worker: it knows outputs of parents and hears progress.
type fakeHost struct {
	fake     FakeAttempt
	encoding Codec
}

func (h *fakeHost) codec() Codec { return h.encoding }

func (h *fakeHost) tellProgress(_ *run, progress *pb.Progress) {
	if h.fake.OnProgress != nil {
		h.fake.OnProgress(*readProgress(progress))
	}
}

func (h *fakeHost) fetchOutput(_ context.Context, _, taskID uint64) (*pb.Output, error) {
	value, isThere := h.fake.Outputs[taskID]
	if !isThere {
		return nil, failure(ErrTaskUnknown, "task %d is no parent of this one", taskID)
	}
	output, contentType, err := h.encoding.Encode(value)
	if err != nil {
		return nil, payloadError(err)
	}
	return &pb.Output{Output: output, ContentType: contentType}, nil
}

// panicked is silent: the outcome tells what was thrown.
func (h *fakeHost) panicked(*Attempt, any, []byte) {}
