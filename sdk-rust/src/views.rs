//! Decides what a caller is told: tasks, results, events, pools, schedules, as plain values.
//!
//! `None` means not there (yet). Ids are 64 bits.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use crate::spec::{
    CatchUp, EdgeCond, Fold, Gap, Overlap, Priority, ScheduleSpec, TaskRef, TaskSpec, TaskStatus,
};

/// What a running handler said last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Bytes of the handler's own, at most 1 KiB.
    pub data: Vec<u8>,
    /// Done part, 0 to 1.
    pub fraction: Option<f64>,
}

/// A task as the server sees it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TaskInfo {
    /// The task's id.
    pub id: u64,
    /// Where it stands.
    pub status: TaskStatus,
    /// Pool it belongs to.
    pub pool: String,
    /// Name of its handler.
    pub kind: String,
    /// Its key, empty if it has none.
    pub key: String,
    /// Number of the last attempt, 0 before the first.
    pub attempt: u32,
    /// Attempts it may have in total.
    pub max_attempts: u32,
    /// When it was submitted.
    pub created_at: Option<SystemTime>,
    /// When the last attempt began.
    pub started_at: Option<SystemTime>,
    /// When it ended.
    pub finished_at: Option<SystemTime>,
    /// When it will be tried again or starts.
    pub next_run_at: Option<SystemTime>,
    /// Why it did not succeed.
    pub message: String,
    /// Whether the server has its output.
    pub output_available: bool,
    /// Whom it belongs to.
    pub tenant: String,
    /// Its class.
    pub priority: Priority,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Labels that its worker must have.
    pub labels: BTreeMap<String, String>,
    /// What its handler said last.
    pub progress: Option<Progress>,
    /// What it waits for, for people.
    pub waiting_for: Vec<String>,
    /// The schedule that made it, empty if none did.
    pub schedule: String,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskResult {
    /// The task.
    pub id: u64,
    /// Terminal status.
    pub status: TaskStatus,
    /// Bytes of a successful task's output; `None` when not kept.
    pub output: Option<Vec<u8>>,
    /// Of the output; empty when the server does not say.
    pub content_type: String,
    /// Why it did not succeed.
    pub message: String,
    /// Whether the server has the output.
    pub output_available: bool,
}

/// One attempt that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Number, from 1.
    pub number: u32,
    /// Name of the worker.
    pub worker: String,
    /// When it began.
    pub started_at: SystemTime,
    /// When it ended.
    pub ended_at: Option<SystemTime>,
    /// How it ended, in one word.
    pub outcome: String,
    /// Why, for people.
    pub message: String,
}

/// One dependency of a task and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParentRecord {
    /// The task depended on.
    pub target: TaskRef,
    /// How it must end.
    pub cond: EdgeCond,
    /// Where it stands, if it is known.
    pub status: Option<TaskStatus>,
}

/// All that the server knows about a task. The payload in `spec` is its bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TaskDetail {
    /// Where it stands.
    pub task: TaskInfo,
    /// What was asked for.
    pub spec: TaskSpec,
    /// Attempts that did not succeed, the latest ones.
    pub attempts: Vec<AttemptRecord>,
    /// What it depends on.
    pub parents: Vec<ParentRecord>,
    /// Tasks that depend on it, the first ones.
    pub children: Vec<u64>,
}

/// One change of a task's status.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StatusEvent {
    /// The task.
    pub id: u64,
    /// Its pool.
    pub pool: String,
    /// Its key, empty if it has none.
    pub key: String,
    /// The new status.
    pub status: TaskStatus,
    /// Number of the last attempt.
    pub attempt: u32,
    /// When it changed.
    pub at: SystemTime,
    /// Why, for people.
    pub message: String,
    /// Where a watch can resume after this event; empty on old servers.
    pub cursor: Vec<u8>,
    /// What its handler said last.
    pub progress: Option<Progress>,
}

/// What a bulk call did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkOutcome {
    /// Tasks that the filter found.
    pub matched: u64,
    /// Tasks that were changed.
    pub changed: u64,
    /// Pass it as `after` to go on; 0 when there is no more.
    pub next_after: u64,
    /// Shards that did not answer.
    pub unavailable_shards: Vec<String>,
}

/// A list gathered from all shards that answered.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Gathered<T> {
    /// What they told.
    pub items: Vec<T>,
    /// Shards that the list lacks.
    pub unavailable_shards: Vec<String>,
}

impl<T> Deref for Gathered<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<T> IntoIterator for Gathered<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.into_iter()
    }
}

/// Workers with the same labels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerGroup {
    /// Their labels.
    pub labels: BTreeMap<String, String>,
    /// Their slots.
    pub capacity: u32,
    /// Slots in use.
    pub busy: u32,
}

/// A pool at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// Its name.
    pub name: String,
    /// Slots of its workers.
    pub capacity: u32,
    /// Slots in use.
    pub busy: u32,
    /// Slots kept free for fixed starts.
    pub held: u32,
    /// Slots that the autoscaler wants.
    pub desired: u32,
    /// Waiting tasks from the highest class to the lowest.
    pub pending_by_class: Vec<u64>,
    /// Fixed starts that are booked.
    pub reservations: u64,
    /// Attempts started since the leader began.
    pub dispatched: u64,
    /// Tasks that succeeded since then.
    pub succeeded: u64,
    /// Tasks that failed since then.
    pub failed: u64,
    /// Part of the starts that kept to the order of classes.
    pub priority_adherence: f64,
    /// Part of the fixed starts that were met.
    pub fixed_start_hit_rate: f64,
    /// Part of the slots in use.
    pub utilization: f64,
    /// Part of the time that slots spent on work.
    pub schedule_efficiency: f64,
    /// Wait for a slot, median.
    pub wait_p50: Duration,
    /// Wait for a slot, 90th percentile.
    pub wait_p90: Duration,
    /// Wait for a slot, 99th percentile.
    pub wait_p99: Duration,
    /// The autoscaler's measure.
    pub cost: f64,
    /// Workers that are connected.
    pub workers_connected: u64,
    /// They by labels.
    pub groups: Vec<WorkerGroup>,
    /// Whether the pool is paused.
    pub paused: bool,
    /// How long the longest waiting ready task has waited.
    pub oldest_ready: Duration,
}

/// What has happened since the leader began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Tasks submitted.
    pub submitted: u64,
    /// Attempts started.
    pub dispatched: u64,
    /// Tasks that succeeded.
    pub succeeded: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks whose attempts were used up.
    pub dead_lettered: u64,
    /// Tasks cancelled.
    pub cancelled: u64,
    /// Tasks skipped.
    pub skipped: u64,
    /// Tasks missed.
    pub missed: u64,
    /// Tasks pushed out of full queues.
    pub shed: u64,
    /// Attempts after the first.
    pub retries: u64,
    /// Attempts that took too long.
    pub timeouts: u64,
    /// Leases that expired.
    pub lease_expiries: u64,
    /// Reports that came too late.
    pub stale_completions: u64,
}

/// A resource at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ResourceInfo {
    /// Its name.
    pub name: String,
    /// `semaphore` or `token_bucket`.
    pub kind: String,
    /// Permits of a semaphore.
    pub permits: u32,
    /// Tokens per second.
    pub rate: f64,
    /// Most tokens at once.
    pub burst: u32,
    /// Permits in use.
    pub held: u64,
    /// Tokens left.
    pub tokens: f64,
    /// Tasks that wait for it.
    pub waiting: u64,
    /// Whether its size was changed at run time.
    pub overridden: bool,
    /// Whether each value counts alone.
    pub per_value: bool,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The pools.
    pub pools: Vec<PoolSnapshot>,
    /// Tasks that have not ended.
    pub live_tasks: u64,
    /// Tasks that run.
    pub running: u64,
    /// Tasks that wait.
    pub pending: u64,
    /// What has happened so far.
    pub totals: Totals,
    /// Workers that are connected.
    pub workers_connected: u64,
    /// Shards that did not answer.
    pub unavailable_shards: Vec<String>,
    /// The resources.
    pub resources: Vec<ResourceInfo>,
}

/// A connected worker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerInfo {
    /// Number of its session.
    pub id: u64,
    /// What it calls itself.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its slots.
    pub slots: u32,
    /// Slots in use.
    pub busy: u32,
    /// Since when it is connected.
    pub connected_at: SystemTime,
    /// Its SDK and version.
    pub sdk: String,
    /// What it handles; empty means anything.
    pub kinds: Vec<String>,
}

/// A schedule and when it is due next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// Its cron expression.
    pub cron: String,
    /// Its time zone.
    pub tz: String,
    /// Pool of its tasks.
    pub pool: String,
    /// Kind of its tasks.
    pub kind: String,
    /// What happens while the occurrence before is alive.
    pub overlap: Overlap,
    /// When it is due next.
    pub next_at: Option<SystemTime>,
    /// The task of its last occurrence.
    pub last_task_id: Option<u64>,
    /// Whether it rests.
    pub paused: bool,
    /// Local times that do not exist.
    pub gap: Gap,
    /// Local times that come twice.
    pub fold: Fold,
    /// Occurrences that were missed.
    pub catch_up: CatchUp,
}

/// All that is known about a schedule. The payload in its template is bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ScheduleDetail {
    /// Where it stands.
    pub schedule: ScheduleInfo,
    /// What was asked for.
    pub spec: ScheduleSpec,
    /// Occurrences that were left out.
    pub skipped: u64,
    /// Whether a chain waits for the schedule to be put again.
    pub chain_broken: bool,
}

/// What a backfill did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackfillOutcome {
    /// Tasks made (or that would be made).
    pub created: u64,
    /// Where to go on if the bound was reached.
    pub next_at: Option<SystemTime>,
}
