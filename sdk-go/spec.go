package cronoq

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// What a caller can say about a task. Values only: how they travel is convert.go's business, whether
// they are allowed the server's. What is absent means the server's or the pool's default.

// Priority is the class of a task; higher classes go first.
type Priority int32

// The classes. Zero in a TaskSpec is normal.
const (
	Critical Priority = 1
	High     Priority = 2
	Normal   Priority = 3
	Low      Priority = 4
)

// String returns the name in lower case.
func (p Priority) String() string { return word(pb.Priority(p).String(), "PRIORITY_") }

// TaskStatus is where a task stands. Terminal ones are left only by a retry from outside.
type TaskStatus int32

// The statuses; from Succeeded on they are terminal.
const (
	Blocked      TaskStatus = 1
	Scheduled    TaskStatus = 2
	Ready        TaskStatus = 3
	Running      TaskStatus = 4
	Retrying     TaskStatus = 5
	Succeeded    TaskStatus = 6
	Failed       TaskStatus = 7
	DeadLettered TaskStatus = 8
	Cancelled    TaskStatus = 9
	Skipped      TaskStatus = 10
	Missed       TaskStatus = 11
	Shed         TaskStatus = 12
)

// IsTerminal is true when the task has ended.
func (s TaskStatus) IsTerminal() bool { return s >= Succeeded }

// String returns the name in lower case.
func (s TaskStatus) String() string { return word(pb.TaskStatus(s).String(), "TASK_STATUS_") }

func word(name, prefix string) string { return strings.ToLower(strings.TrimPrefix(name, prefix)) }

// EdgeCond is how a parent must end before its child may run.
type EdgeCond int32

// The conditions. Zero in a Dep is OnSuccess.
const (
	OnSuccess  EdgeCond = 1
	OnComplete EdgeCond = 2
	OnFailure  EdgeCond = 3
)

// MissPolicy is what becomes of a task that did not start in time.
type MissPolicy int32

// The policies. Zero in a TaskSpec is MissRunLate.
const (
	MissRunLate MissPolicy = 1
	MissSkip    MissPolicy = 2
	MissFail    MissPolicy = 3
)

// BulkAction is what Bulk does to the tasks it finds.
type BulkAction int32

// The actions.
const (
	BulkCancel BulkAction = 1
	BulkRetry  BulkAction = 2
)

// Overlap is what becomes of an occurrence while the one before it is alive.
type Overlap int32

// The guards. Zero in a ScheduleSpec is OverlapSkip.
const (
	OverlapSkip           Overlap = 1
	OverlapAllow          Overlap = 2
	OverlapQueue          Overlap = 3
	OverlapQueueOnSuccess Overlap = 4
)

// Gap is when an occurrence runs whose local time does not exist that day.
type Gap int32

// The choices. Zero in a ScheduleSpec is GapRunAfter.
const (
	GapRunAfter Gap = 1
	GapSkip     Gap = 2
)

// Fold is when an occurrence runs whose local time comes twice that day.
type Fold int32

// The choices. Zero in a ScheduleSpec is FoldFirst.
const (
	FoldFirst Fold = 1
	FoldLast  Fold = 2
	FoldBoth  Fold = 3
)

// CatchUp is what becomes of occurrences that could not be created in time.
type CatchUp int32

// The choices. Zero in a ScheduleSpec is CatchUpLatest.
const (
	CatchUpLatest CatchUp = 1
	CatchUpNone   CatchUp = 2
	CatchUpAll    CatchUp = 3
)

// RetryPolicy says when a failed attempt is followed by another. Zero takes the pool's value.
type RetryPolicy struct {
	// MaxAttempts is the number of attempts in total.
	MaxAttempts int
	// InitialBackoff is the backoff after the first.
	InitialBackoff time.Duration
	// Multiplier is its growth per attempt.
	Multiplier float64
	// MaxBackoff is its upper bound.
	MaxBackoff time.Duration
	// Jitter says whether the delay is drawn from [0, backoff]; nil is true.
	Jitter *bool
}

// TaskRef names a task by its id or by its key.
type TaskRef struct {
	// ID is the task's id; zero if Key names it.
	ID uint64
	// Key is the submitter's own key.
	Key string
}

// ByID names a task by its id.
func ByID(id uint64) TaskRef { return TaskRef{ID: id} }

// ByKey names a task by its key.
func ByKey(key string) TaskRef { return TaskRef{Key: key} }

// String returns the key in quotes, or the id.
func (r TaskRef) String() string {
	if r.Key != "" {
		return fmt.Sprintf("%q", r.Key)
	}
	return fmt.Sprint(r.ID)
}

// Dep is a task that must end first.
type Dep struct {
	// Target names the task; within a batch a key may name another member.
	Target TaskRef
	// Cond says how it must end; zero is OnSuccess.
	Cond EdgeCond
}

// TaskSpec is one task as the caller wants it. Pointers and zero instants mean that nothing is said;
// new(5*time.Second) says five seconds.
type TaskSpec struct {
	// Kind is the name of the handler; empty is "default".
	Kind string
	// Payload is the value for the handler, encoded by the client's codec; bytes stay bytes and nil
	// is a task without payload.
	Payload any
	// ContentType overrides the codec's, for payloads that are bytes already.
	ContentType string
	// Pool is the pool to run in; empty is the server's default.
	Pool string
	// Priority is the class; zero is normal.
	Priority Priority
	// Key makes the submission idempotent: submitting it again returns the same task. See NewKey.
	Key string
	// DeadlineIn is the time within which the task should be done; raises urgency, ends nothing.
	DeadlineIn *time.Duration
	// DeadlineAt is the same as an instant.
	DeadlineAt time.Time
	// StartIn is a fixed start, from now.
	StartIn *time.Duration
	// StartAt is a fixed start as an instant.
	StartAt time.Time
	// Tolerance is how late a fixed start may be.
	Tolerance *time.Duration
	// OnMiss says what happens when it is later.
	OnMiss MissPolicy
	// DurationHint is the expected run time.
	DurationHint *time.Duration
	// Timeout is the longest time for one attempt.
	Timeout *time.Duration
	// Retry is the retry policy; nil is the pool's.
	Retry *RetryPolicy
	// Deps are tasks that must end first.
	Deps []Dep
	// Resources are amounts of named resources, held while an attempt runs.
	Resources map[string]uint32
	// Tags are free pairs, for listings and filters.
	Tags map[string]string
	// Labels are what the worker must have.
	Labels map[string]string
	// Tenant is whom the task belongs to.
	Tenant string
	// TraceContext is the W3C trace context of the submitter.
	TraceContext map[string]string
	// Delay is a time that must pass before it may run.
	Delay *time.Duration
	// NotBefore is an instant before which it may not run.
	NotBefore time.Time
	// ExpiresIn ends it as missed when not started by then.
	ExpiresIn *time.Duration
}

// TaskFilter says which tasks a listing or bulk call means: all conditions must hold, and empty ones
// hold for all.
type TaskFilter struct {
	// Pools: any of these.
	Pools []string
	// Statuses: any of these.
	Statuses []TaskStatus
	// Kinds: any of these.
	Kinds []string
	// Keys: any of these.
	Keys []string
	// Tags: all of these pairs.
	Tags map[string]string
	// Tenants: any of these.
	Tenants []string
	// Schedule: made by the schedule of this name.
	Schedule string
}

// ScheduleSpec is a schedule as the caller wants it; putting it again under the same name replaces
// it.
type ScheduleSpec struct {
	// Name is unique within a shard.
	Name string
	// Cron has five fields, or six with leading seconds, or is @hourly and the like.
	Cron string
	// Template is the task of each occurrence; without dependencies and fixed times.
	Template TaskSpec
	// TZ is the IANA time zone; UTC when empty.
	TZ string
	// Overlap says what happens while the occurrence before is alive.
	Overlap Overlap
	// Gap is about local times that do not exist.
	Gap Gap
	// Fold is about local times that come twice.
	Fold Fold
	// CatchUp is about occurrences that were missed.
	CatchUp CatchUp
	// Paused says whether it rests.
	Paused bool
}

// ScheduleRef names a schedule; the pool tells apart schedules of one name.
type ScheduleRef struct {
	// Name of the schedule.
	Name string
	// Pool of the schedule; empty if the name is enough.
	Pool string
}

// NewKey returns a key that nobody else has, for a submission that shall be safe to repeat.
func NewKey() string {
	var random [16]byte
	rand.Read(random[:]) // Never fails; it ends the program where there is no randomness.
	return hex.EncodeToString(random[:])
}
