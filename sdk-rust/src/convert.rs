//! Decides how the SDK's values stand on the wire, in both directions.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::errors::{Error, ErrorKind, ErrorReason, Result};
use crate::payload::{Codec, Payload};
use crate::proto;
use crate::spec::{
    CatchUp, Dep, EdgeCond, Fold, Gap, MissPolicy, Numbered, Overlap, Priority, RetryPolicy,
    ScheduleSpec, TaskFilter, TaskRef, TaskSpec, TaskStatus,
};
use crate::views::{
    AttemptRecord, ParentRecord, PoolSnapshot, Progress, ResourceInfo, ScheduleInfo, StatusEvent,
    TaskDetail, TaskInfo, TaskResult, Totals, WorkerGroup, WorkerInfo,
};

// --- scalars ---------------------------------------------------------------------------------------

/// An instant as Unix nanoseconds.
pub(crate) fn unix_ns(instant: SystemTime) -> Result<i64> {
    let nanoseconds = match instant.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).ok(),
        // The first instant of the wire is further from the epoch than the last.
        Err(before) => 0i64
            .checked_sub_unsigned(u64::try_from(before.duration().as_nanos()).unwrap_or(u64::MAX)),
    };
    nanoseconds.ok_or_else(|| {
        Error::of(ErrorReason::InvalidField, "an instant lies beyond what the wire can hold")
    })
}

/// Unix nanoseconds as an instant.
pub(crate) fn instant_of(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }
}

/// Seconds of the wire as a duration; what no duration can hold counts as none.
pub(crate) fn duration_of(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn maybe_duration(seconds: Option<f64>) -> Option<Duration> {
    seconds.map(duration_of)
}

fn seconds_of(duration: Option<Duration>) -> Option<f64> {
    duration.map(|value| value.as_secs_f64())
}

fn maybe_unix_ns(instant: Option<SystemTime>) -> Result<Option<i64>> {
    instant.map(unix_ns).transpose()
}

pub(crate) fn maybe_instant(nanoseconds: Option<i64>) -> Option<SystemTime> {
    nanoseconds.map(instant_of)
}

fn write_map<V: Clone>(pairs: &BTreeMap<String, V>) -> HashMap<String, V> {
    pairs.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

pub(crate) fn read_map<V>(pairs: HashMap<String, V>) -> BTreeMap<String, V> {
    pairs.into_iter().collect()
}

pub(crate) fn missing(part: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("the server's answer lacks {part}"))
}

pub(crate) fn read_status(number: i32) -> Result<TaskStatus> {
    TaskStatus::from_number(number).ok_or_else(|| {
        Error::new(ErrorKind::Internal, format!("the server names an unknown status {number}"))
    })
}

// --- what callers say ------------------------------------------------------------------------------

pub(crate) fn write_ref(target: TaskRef) -> proto::TaskRef {
    let named = match target {
        TaskRef::Id(id) => proto::task_ref::Ref::Id(id),
        TaskRef::Key(key) => proto::task_ref::Ref::Key(key),
    };
    proto::TaskRef { r#ref: Some(named) }
}

fn read_ref(target: Option<proto::TaskRef>) -> TaskRef {
    match target.and_then(|target| target.r#ref) {
        Some(proto::task_ref::Ref::Key(key)) => TaskRef::Key(key),
        Some(proto::task_ref::Ref::Id(id)) => TaskRef::Id(id),
        None => TaskRef::Id(0),
    }
}

pub(crate) fn write_spec(spec: &TaskSpec, codec: &dyn Codec) -> Result<proto::TaskSpec> {
    let encoded = spec.payload.encode(codec)?;
    let (payload, mut content_type) = match encoded {
        Some(encoded) => (encoded.payload, encoded.content_type),
        None => (Vec::new(), String::new()),
    };
    if !spec.content_type.is_empty() {
        content_type.clone_from(&spec.content_type);
    }
    Ok(proto::TaskSpec {
        payload: payload.into(),
        content_type,
        kind: spec.kind.clone(),
        pool: spec.pool.clone(),
        priority: spec.priority.map_or(0, Priority::number),
        key: spec.key.clone(),
        deadline_in_s: seconds_of(spec.deadline_in),
        deadline_unix_ns: maybe_unix_ns(spec.deadline_at)?,
        start_in_s: seconds_of(spec.start_in),
        start_unix_ns: maybe_unix_ns(spec.start_at)?,
        tolerance_s: seconds_of(spec.tolerance),
        on_miss: spec.on_miss.map_or(0, MissPolicy::number),
        duration_hint_s: seconds_of(spec.duration_hint),
        timeout_s: seconds_of(spec.timeout),
        retry: spec.retry.map(write_retry),
        deps: spec.deps.iter().map(write_dep).collect(),
        resources: write_map(&spec.resources),
        tags: write_map(&spec.tags),
        labels: write_map(&spec.labels),
        tenant: spec.tenant.clone(),
        trace_context: write_map(&spec.trace_context),
        delay_s: seconds_of(spec.delay),
        not_before_unix_ns: maybe_unix_ns(spec.not_before)?,
        expires_in_s: seconds_of(spec.expires_in),
    })
}

fn write_retry(retry: RetryPolicy) -> proto::RetryPolicy {
    proto::RetryPolicy {
        max_attempts: retry.max_attempts,
        initial_backoff_s: retry.initial_backoff.as_secs_f64(),
        multiplier: retry.multiplier,
        max_backoff_s: retry.max_backoff.as_secs_f64(),
        jitter: retry.jitter,
    }
}

fn write_dep(dep: &Dep) -> proto::Dep {
    proto::Dep { target: Some(write_ref(dep.target.clone())), cond: dep.cond.number() }
}

pub(crate) fn write_filter(wanted: &TaskFilter) -> proto::TaskFilter {
    proto::TaskFilter {
        pools: wanted.pools.clone(),
        statuses: wanted.statuses.iter().map(|status| status.number()).collect(),
        kinds: wanted.kinds.clone(),
        keys: wanted.keys.clone(),
        tags: write_map(&wanted.tags),
        tenants: wanted.tenants.clone(),
        schedule: wanted.schedule.clone(),
    }
}

pub(crate) fn write_schedule(
    spec: &ScheduleSpec,
    codec: &dyn Codec,
) -> Result<proto::RecurringRequest> {
    Ok(proto::RecurringRequest {
        name: spec.name.clone(),
        cron: spec.cron.clone(),
        tz: spec.tz.clone(),
        template: Some(write_spec(&spec.template, codec)?),
        overlap: spec.overlap.map_or(0, Overlap::number),
        gap: spec.gap.map_or(0, Gap::number),
        fold: spec.fold.map_or(0, Fold::number),
        catch_up: spec.catch_up.map_or(0, CatchUp::number),
        paused: spec.paused,
    })
}

// --- what callers are told -------------------------------------------------------------------------

pub(crate) fn read_progress(message: proto::Progress) -> Progress {
    Progress { data: message.data.into(), fraction: message.fraction }
}

pub(crate) fn read_result(message: proto::TaskResult) -> Result<TaskResult> {
    Ok(TaskResult {
        id: message.id,
        status: read_status(message.status)?,
        output: message.output.map(Vec::from),
        content_type: message.content_type,
        message: message.message,
        output_available: message.output_available,
    })
}

pub(crate) fn read_info(message: proto::TaskInfo) -> Result<TaskInfo> {
    Ok(TaskInfo {
        id: message.id,
        status: read_status(message.status)?,
        pool: message.pool,
        kind: message.kind,
        key: message.key,
        attempt: message.attempt,
        max_attempts: message.max_attempts,
        created_at: maybe_instant(message.created_unix_ns),
        started_at: maybe_instant(message.started_unix_ns),
        finished_at: maybe_instant(message.finished_unix_ns),
        next_run_at: maybe_instant(message.next_run_unix_ns),
        message: message.message,
        output_available: message.output_available,
        tenant: message.tenant,
        priority: Priority::from_number(message.priority).unwrap_or(Priority::Normal),
        tags: read_map(message.tags),
        labels: read_map(message.labels),
        progress: message.progress.map(read_progress),
        waiting_for: message.waiting_for,
        schedule: message.schedule,
    })
}

pub(crate) fn read_event(message: proto::StatusEvent) -> Result<StatusEvent> {
    Ok(StatusEvent {
        id: message.id,
        pool: message.pool,
        key: message.key,
        status: read_status(message.status)?,
        attempt: message.attempt,
        at: instant_of(message.at_unix_ns),
        message: message.message,
        cursor: message.cursor.into(),
        progress: message.progress.map(read_progress),
    })
}

pub(crate) fn read_spec(message: proto::TaskSpec) -> TaskSpec {
    let payload = if message.payload.is_empty() && message.content_type.is_empty() {
        Payload::nothing()
    } else {
        Payload::bytes(message.payload.into())
    };
    TaskSpec {
        kind: message.kind,
        payload,
        content_type: message.content_type,
        pool: message.pool,
        priority: Priority::from_number(message.priority),
        key: message.key,
        deadline_in: maybe_duration(message.deadline_in_s),
        deadline_at: maybe_instant(message.deadline_unix_ns),
        start_in: maybe_duration(message.start_in_s),
        start_at: maybe_instant(message.start_unix_ns),
        tolerance: maybe_duration(message.tolerance_s),
        on_miss: MissPolicy::from_number(message.on_miss),
        duration_hint: maybe_duration(message.duration_hint_s),
        timeout: maybe_duration(message.timeout_s),
        retry: message.retry.map(read_retry),
        deps: message.deps.into_iter().map(read_dep).collect(),
        resources: read_map(message.resources),
        tags: read_map(message.tags),
        labels: read_map(message.labels),
        tenant: message.tenant,
        trace_context: read_map(message.trace_context),
        delay: maybe_duration(message.delay_s),
        not_before: maybe_instant(message.not_before_unix_ns),
        expires_in: maybe_duration(message.expires_in_s),
    }
}

fn read_retry(retry: proto::RetryPolicy) -> RetryPolicy {
    RetryPolicy {
        max_attempts: retry.max_attempts,
        initial_backoff: duration_of(retry.initial_backoff_s),
        multiplier: retry.multiplier,
        max_backoff: duration_of(retry.max_backoff_s),
        jitter: retry.jitter,
    }
}

fn read_dep(dep: proto::Dep) -> Dep {
    let cond = EdgeCond::from_number(dep.cond).unwrap_or(EdgeCond::OnSuccess);
    Dep { target: read_ref(dep.target), cond }
}

pub(crate) fn read_detail(message: proto::TaskDetail) -> Result<TaskDetail> {
    Ok(TaskDetail {
        task: read_info(message.info.ok_or_else(|| missing("the task"))?)?,
        spec: read_spec(message.spec.unwrap_or_default()),
        attempts: message.attempts.into_iter().map(read_attempt).collect(),
        parents: message.parents.into_iter().map(read_parent).collect(),
        children: message.children,
    })
}

fn read_attempt(message: proto::Attempt) -> AttemptRecord {
    AttemptRecord {
        number: message.number,
        worker: message.worker,
        started_at: instant_of(message.started_unix_ns),
        ended_at: maybe_instant(message.ended_unix_ns),
        outcome: message.outcome,
        message: message.message,
    }
}

fn read_parent(message: proto::Parent) -> ParentRecord {
    ParentRecord {
        target: read_ref(message.task),
        cond: EdgeCond::from_number(message.cond).unwrap_or(EdgeCond::OnSuccess),
        status: TaskStatus::from_number(message.status),
    }
}

// --- what operators are told -----------------------------------------------------------------------

pub(crate) fn read_pool(message: proto::PoolSnapshot) -> PoolSnapshot {
    PoolSnapshot {
        name: message.name,
        capacity: message.capacity,
        busy: message.busy,
        held: message.held,
        desired: message.desired,
        pending_by_class: message.pending_by_class,
        reservations: message.reservations,
        dispatched: message.dispatched,
        succeeded: message.succeeded,
        failed: message.failed,
        priority_adherence: message.priority_adherence,
        fixed_start_hit_rate: message.fixed_start_hit_rate,
        utilization: message.utilization,
        schedule_efficiency: message.schedule_efficiency,
        wait_p50: duration_of(message.wait_p50_s),
        wait_p90: duration_of(message.wait_p90_s),
        wait_p99: duration_of(message.wait_p99_s),
        cost: message.cost,
        workers_connected: message.workers_connected,
        groups: message.groups.into_iter().map(read_group).collect(),
        paused: message.paused,
        oldest_ready: duration_of(message.oldest_ready_s),
    }
}

fn read_group(message: proto::WorkerGroup) -> WorkerGroup {
    WorkerGroup { labels: read_map(message.labels), capacity: message.capacity, busy: message.busy }
}

pub(crate) fn read_totals(message: proto::Totals) -> Totals {
    Totals {
        submitted: message.submitted,
        dispatched: message.dispatched,
        succeeded: message.succeeded,
        failed: message.failed,
        dead_lettered: message.dead_lettered,
        cancelled: message.cancelled,
        skipped: message.skipped,
        missed: message.missed,
        shed: message.shed,
        retries: message.retries,
        timeouts: message.timeouts,
        lease_expiries: message.lease_expiries,
        stale_completions: message.stale_completions,
    }
}

pub(crate) fn read_resource(message: proto::Resource) -> ResourceInfo {
    ResourceInfo {
        name: message.name,
        kind: message.kind,
        permits: message.permits,
        rate: message.rate,
        burst: message.burst,
        held: message.held,
        tokens: message.tokens,
        waiting: message.waiting,
        overridden: message.overridden,
        per_value: message.per_value,
    }
}

pub(crate) fn read_worker(message: proto::WorkerInfo) -> WorkerInfo {
    WorkerInfo {
        id: message.id,
        name: message.name,
        pool: message.pool,
        labels: read_map(message.labels),
        slots: message.slots,
        busy: message.busy,
        connected_at: instant_of(message.connected_unix_ns),
        sdk: message.sdk,
        kinds: message.kinds,
    }
}

pub(crate) fn read_schedule(message: proto::RecurringInfo) -> ScheduleInfo {
    ScheduleInfo {
        name: message.name,
        cron: message.cron,
        tz: message.tz,
        pool: message.pool,
        kind: message.kind,
        overlap: Overlap::from_number(message.overlap).unwrap_or(Overlap::Skip),
        next_at: maybe_instant(message.next_unix_ns),
        last_task_id: message.last_task_id,
        paused: message.paused,
        gap: Gap::from_number(message.gap).unwrap_or(Gap::RunAfter),
        fold: Fold::from_number(message.fold).unwrap_or(Fold::First),
        catch_up: CatchUp::from_number(message.catch_up).unwrap_or(CatchUp::Latest),
    }
}

pub(crate) fn read_schedule_spec(message: proto::RecurringRequest) -> ScheduleSpec {
    ScheduleSpec {
        name: message.name,
        cron: message.cron,
        template: read_spec(message.template.unwrap_or_default()),
        tz: message.tz,
        overlap: Overlap::from_number(message.overlap),
        gap: Gap::from_number(message.gap),
        fold: Fold::from_number(message.fold),
        catch_up: CatchUp::from_number(message.catch_up),
        paused: message.paused,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
