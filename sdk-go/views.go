package cronoq

import "time"

// What a caller is told: tasks, results, events, as plain values. A zero instant means that it is not
// there (yet).

// Progress is what a running handler said last.
type Progress struct {
	// Data is the handler's own, at most 1 KiB.
	Data []byte
	// Fraction is the done part, 0 to 1; nil if unknown.
	Fraction *float64
}

// TaskInfo is a task as the server sees it.
type TaskInfo struct {
	ID              uint64
	Status          TaskStatus
	Pool            string
	Kind            string
	Key             string
	Attempt         int
	MaxAttempts     int
	CreatedAt       time.Time
	StartedAt       time.Time
	FinishedAt      time.Time
	NextRunAt       time.Time
	Message         string
	OutputAvailable bool
	Tenant          string
	Priority        Priority
	Tags            map[string]string
	Labels          map[string]string
	Progress        *Progress
	WaitingFor      []string
	Schedule        string
}

// TaskResult is how a task ended.
type TaskResult struct {
	// ID is the task's.
	ID uint64
	// Status is terminal.
	Status TaskStatus
	// Output holds the bytes of a successful task's output; nil when not kept.
	Output []byte
	// ContentType is the output's; empty when the server does not say.
	ContentType string
	// Message says why it did not succeed.
	Message string
	// OutputAvailable says whether the server has the output.
	OutputAvailable bool
}

// AttemptRecord is one attempt that did not succeed.
type AttemptRecord struct {
	Number    int
	Worker    string
	StartedAt time.Time
	EndedAt   time.Time
	Outcome   string
	Message   string
}

// ParentRecord is one dependency of a task and where it stands.
type ParentRecord struct {
	Target TaskRef
	Cond   EdgeCond
	// Status is zero when the parent is not known any more.
	Status TaskStatus
}

// TaskDetail is all that the server knows about a task. The payload in Spec is its bytes.
type TaskDetail struct {
	Task     TaskInfo
	Spec     TaskSpec
	Attempts []AttemptRecord
	Parents  []ParentRecord
	Children []uint64
}

// StatusEvent is one change of a task's status.
type StatusEvent struct {
	ID      uint64
	Pool    string
	Key     string
	Status  TaskStatus
	Attempt int
	At      time.Time
	Message string
	// Cursor is where a watch can resume after this event; empty on old servers.
	Cursor   []byte
	Progress *Progress
}

// BulkOutcome is what a bulk call did.
type BulkOutcome struct {
	// Matched counts the tasks that the filter found.
	Matched uint64
	// Changed counts those that were changed.
	Changed uint64
	// NextAfter is passed as After to go on; 0 when there is no more.
	NextAfter uint64
	// UnavailableShards names shards that did not answer.
	UnavailableShards []string
}

// Gathered is a list gathered from all shards that answered.
type Gathered[T any] struct {
	// Items are what they have.
	Items []T
	// UnavailableShards names the shards that the list lacks.
	UnavailableShards []string
}

// WorkerGroup is the workers with the same labels.
type WorkerGroup struct {
	Labels   map[string]string
	Capacity int
	Busy     int
}

// PoolSnapshot is a pool at one moment.
type PoolSnapshot struct {
	Name     string
	Capacity int
	Busy     int
	// Held counts slots kept free for fixed starts.
	Held int
	// Desired counts slots that the autoscaler wants.
	Desired int
	// PendingByClass counts waiting tasks from the highest class to the lowest.
	PendingByClass     []uint64
	Reservations       uint64
	Dispatched         uint64
	Succeeded          uint64
	Failed             uint64
	PriorityAdherence  float64
	FixedStartHitRate  float64
	Utilization        float64
	ScheduleEfficiency float64
	WaitP50            time.Duration
	WaitP90            time.Duration
	WaitP99            time.Duration
	// Cost counts slot seconds provided.
	Cost             float64
	WorkersConnected uint64
	Groups           []WorkerGroup
	Paused           bool
	// OldestReady is how long the longest waiting ready task has waited.
	OldestReady time.Duration
}

// Totals is what has happened since the leader began.
type Totals struct {
	Submitted        uint64
	Dispatched       uint64
	Succeeded        uint64
	Failed           uint64
	DeadLettered     uint64
	Cancelled        uint64
	Skipped          uint64
	Missed           uint64
	Shed             uint64
	Retries          uint64
	Timeouts         uint64
	LeaseExpiries    uint64
	StaleCompletions uint64
}

// ResourceInfo is a resource at one moment.
type ResourceInfo struct {
	Name string
	// Kind is "semaphore" or "token_bucket".
	Kind    string
	Permits uint32
	// Rate is in tokens per second.
	Rate    float64
	Burst   uint32
	Held    uint64
	Tokens  float64
	Waiting uint64
	// Overridden says whether its size was changed at run time.
	Overridden bool
	// PerValue says whether each value counts alone.
	PerValue bool
}

// Snapshot is everything at one moment.
type Snapshot struct {
	Pools             []PoolSnapshot
	LiveTasks         uint64
	Running           uint64
	Pending           uint64
	Totals            Totals
	WorkersConnected  uint64
	UnavailableShards []string
	Resources         []ResourceInfo
}

// WorkerInfo is a connected worker.
type WorkerInfo struct {
	ID          uint64
	Name        string
	Pool        string
	Labels      map[string]string
	Slots       int
	Busy        int
	ConnectedAt time.Time
	SDK         string
	// Kinds is what it handles; empty means anything.
	Kinds []string
}

// ScheduleInfo is a schedule and when it is due next.
type ScheduleInfo struct {
	Name    string
	Cron    string
	TZ      string
	Pool    string
	Kind    string
	Overlap Overlap
	// NextAt is zero when there is no next occurrence.
	NextAt time.Time
	// LastTaskID is zero before the first occurrence.
	LastTaskID uint64
	Paused     bool
	Gap        Gap
	Fold       Fold
	CatchUp    CatchUp
}

// ScheduleDetail is all that is known about a schedule. The payload in its template is bytes.
type ScheduleDetail struct {
	Schedule ScheduleInfo
	Spec     ScheduleSpec
	// Skipped counts occurrences that were left out.
	Skipped uint64
	// ChainBroken says whether a chain waits for the schedule to be put again.
	ChainBroken bool
}

// Backfill is what a backfill did.
type Backfill struct {
	// Created counts tasks made (or that would be made).
	Created uint64
	// NextAt is where to go on if the bound was reached; else zero.
	NextAt time.Time
}
