package cronoq

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// host is what an attempt needs of the worker that runs it.
type host interface {
	codec() Codec
	tellProgress(of *run, progress *pb.Progress)
	fetchOutput(ctx context.Context, lease, taskID uint64) (*pb.Output, error)
	panicked(attempt *Attempt, thrown any, stack []byte)
}

// Attempt is one try of one task, while its handler runs; a handler finds it by [AttemptFrom].
//
// TaskID and Number together are the fencing token toward outside systems: a higher number of the
// same task is the newer attempt.
type Attempt struct {
	run  *run
	host host
}

type attemptKey struct{}

// AttemptFrom returns the attempt that a handler's context belongs to, or nil for any other context.
func AttemptFrom(ctx context.Context) *Attempt {
	attempt, _ := ctx.Value(attemptKey{}).(*Attempt)
	return attempt
}

// String names task, number and kind.
func (a *Attempt) String() string {
	return fmt.Sprintf("attempt %d of task %d (%s)", a.Number(), a.TaskID(), a.Kind())
}

// TaskID is the id of the task.
func (a *Attempt) TaskID() uint64 { return a.run.message.GetTaskId() }

// Number is the number of this attempt, from 1, rising.
func (a *Attempt) Number() int { return int(a.run.message.GetAttempt()) }

// Kind is the kind of the task.
func (a *Attempt) Kind() string { return a.run.message.GetKind() }

// Key is the key of the task, empty if it has none.
func (a *Attempt) Key() string { return a.run.message.GetKey() }

// Pool is the pool that the task belongs to.
func (a *Attempt) Pool() string { return a.run.message.GetPool() }

// Priority is the class of the task.
func (a *Attempt) Priority() Priority { return or(Priority(a.run.message.GetPriority()), Normal) }

// Payload is the payload as it came.
func (a *Attempt) Payload() []byte { return a.run.message.GetPayload() }

// ContentType is that of the payload.
func (a *Attempt) ContentType() string { return a.run.message.GetContentType() }

// Decode decodes the payload into what into points to.
func (a *Attempt) Decode(into any) error {
	return a.host.codec().Decode(a.Payload(), a.ContentType(), into)
}

// Tags are those of the task.
func (a *Attempt) Tags() map[string]string { return maps.Clone(a.run.message.GetTags()) }

// Deadline is when the task should be done, zero if nothing was said; nothing ends it then.
func (a *Attempt) Deadline() time.Time { return instantPtr(a.run.message.DeadlineUnixNs) }

// Timeout is the longest time of this attempt, after which the server ends it; nil if there is none.
func (a *Attempt) Timeout() *time.Duration { return durationPtr(a.run.message.TimeoutS) }

// TraceContext is the W3C trace context of the submitter.
func (a *Attempt) TraceContext() map[string]string {
	return maps.Clone(a.run.message.GetTraceContext())
}

// LastProgress is what the attempt before this one said last; nil if it said nothing.
func (a *Attempt) LastProgress() *Progress { return readProgress(a.run.message.GetLastProgress()) }

// Parents are the ids of the tasks that this one depended on.
func (a *Attempt) Parents() []uint64 { return slices.Clone(a.run.message.GetParents()) }

// IsCancelled is true once the handler should stop; its context has ended then.
func (a *Attempt) IsCancelled() bool { return a.run.ctx.Err() != nil }

// CancelReason says why the handler should stop, empty while it need not.
func (a *Attempt) CancelReason() string {
	if cause := context.Cause(a.run.ctx); cause != nil {
		return cause.Error()
	}
	return ""
}

// Progress says how far the handler is; only the last word counts, and it goes out soon. The data, at
// most 1024 bytes, is handed to the next attempt. The fraction is the done part, 0 to 1, or nil.
func (a *Attempt) Progress(data []byte, fraction *float64) error {
	if len(data) > progressBytesMax {
		return failure(ErrInvalidField, "progress: %d bytes, at most %d", len(data), progressBytesMax)
	}
	if fraction != nil && !(*fraction >= 0 && *fraction <= 1) {
		return failure(ErrInvalidField, "progress: fraction %v is outside 0 to 1", *fraction)
	}
	a.host.tellProgress(a.run, &pb.Progress{Data: slices.Clone(data), Fraction: fraction})
	return nil
}

// Output decodes the output of a parent, by its id, into what into points to. It waits out a broken
// connection for about 20 s.
func (a *Attempt) Output(ctx context.Context, parent uint64, into any) error {
	answer, err := a.host.fetchOutput(ctx, a.run.message.GetLease(), parent)
	if err != nil {
		return err
	}
	if err := a.host.codec().Decode(answer.GetOutput(), answer.GetContentType(), into); err != nil {
		return payloadError(err)
	}
	return nil
}
