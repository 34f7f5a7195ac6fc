//! Decides how the calls of those who run the queue are made: schedules, pools, resources.
//!
//! A pool tells apart schedules of one name.

use std::time::SystemTime;

use crate::calls::rpc;
use crate::client::Client;
use crate::convert::{
    instant_of, maybe_instant, missing, read_pool, read_resource, read_schedule,
    read_schedule_spec, read_totals, read_worker, unix_ns, write_schedule,
};
use crate::errors::Result;
use crate::proto;
use crate::proto::preview_recurring_request::Schedule;
use crate::spec::ScheduleSpec;
use crate::views::{
    BackfillOutcome, Gathered, PoolSnapshot, ResourceInfo, ScheduleDetail, ScheduleInfo, Snapshot,
    WorkerInfo,
};

/// Names a schedule; `"name".into()` will do unless shards have schedules of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleRef {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: Option<String>,
}

impl From<&str> for ScheduleRef {
    fn from(name: &str) -> Self {
        Self { name: name.to_owned(), pool: None }
    }
}

impl From<String> for ScheduleRef {
    fn from(name: String) -> Self {
        Self { name, pool: None }
    }
}

/// A new size for a resource; `None` leaves a part as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResourceSize {
    /// Of a semaphore.
    pub permits: Option<u32>,
    /// Of a token bucket, per second.
    pub rate: Option<f64>,
    /// Of a token bucket.
    pub burst: Option<u32>,
}

fn gathered<M, T>(
    messages: Vec<M>,
    read: impl Fn(M) -> T,
    unavailable_shards: Vec<String>,
) -> Gathered<T> {
    Gathered { items: messages.into_iter().map(read).collect(), unavailable_shards }
}

impl Client {
    /// Returns pools, totals and resources at one moment.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        let answer = self.ask("snapshot", rpc!(admin, snapshot), proto::Empty {}, true).await?;
        Ok(Snapshot {
            pools: answer.pools.into_iter().map(read_pool).collect(),
            live_tasks: answer.live_tasks,
            running: answer.running,
            pending: answer.pending,
            totals: read_totals(answer.totals.unwrap_or_default()),
            workers_connected: answer.workers_connected,
            unavailable_shards: answer.unavailable_shards,
            resources: answer.resources.into_iter().map(read_resource).collect(),
        })
    }

    /// Returns the connected workers.
    pub async fn workers(&self) -> Result<Gathered<WorkerInfo>> {
        let answer = self.ask("workers", rpc!(admin, list_workers), proto::Empty {}, true).await?;
        Ok(gathered(answer.workers, read_worker, answer.unavailable_shards))
    }

    /// Creates a schedule, or replaces the one of its name. Fails with
    /// [`CronInvalid`](crate::ErrorReason::CronInvalid),
    /// [`CronNeverFires`](crate::ErrorReason::CronNeverFires) or
    /// [`ZoneUnknown`](crate::ErrorReason::ZoneUnknown).
    pub async fn put_schedule(&self, spec: &ScheduleSpec) -> Result<()> {
        let request = write_schedule(spec, self.caller.options.codec.as_ref())?;
        self.ask("put_schedule", rpc!(admin, add_recurring), request, true).await?;
        Ok(())
    }

    /// Removes a schedule; its tasks stay. True if it was there.
    pub async fn remove_schedule(&self, schedule: impl Into<ScheduleRef>) -> Result<bool> {
        let ScheduleRef { name, pool } = schedule.into();
        let request = proto::RemoveRecurringRequest { name, pool };
        let answer =
            self.ask("remove_schedule", rpc!(admin, remove_recurring), request, true).await?;
        Ok(answer.removed)
    }

    /// Returns all schedules.
    pub async fn schedules(&self) -> Result<Gathered<ScheduleInfo>> {
        let request = proto::Empty {};
        let answer = self.ask("schedules", rpc!(admin, list_recurring), request, true).await?;
        Ok(gathered(answer.schedules, read_schedule, answer.unavailable_shards))
    }

    /// Returns all that is known about one schedule.
    pub async fn schedule(&self, schedule: impl Into<ScheduleRef>) -> Result<ScheduleDetail> {
        let ScheduleRef { name, pool } = schedule.into();
        let request = proto::GetRecurringRequest { name, pool };
        let answer = self.ask("schedule", rpc!(admin, get_recurring), request, true).await?;
        Ok(ScheduleDetail {
            schedule: read_schedule(answer.info.ok_or_else(|| missing("the schedule"))?),
            spec: read_schedule_spec(answer.spec.unwrap_or_default()),
            skipped: answer.skipped,
            chain_broken: answer.chain_broken,
        })
    }

    /// Lets a schedule rest; pausing twice is pausing once.
    pub async fn pause_schedule(&self, schedule: impl Into<ScheduleRef>) -> Result<()> {
        self.set_paused(schedule.into(), true).await
    }

    /// Lets a schedule go on.
    pub async fn resume_schedule(&self, schedule: impl Into<ScheduleRef>) -> Result<()> {
        self.set_paused(schedule.into(), false).await
    }

    async fn set_paused(&self, schedule: ScheduleRef, paused: bool) -> Result<()> {
        let ScheduleRef { name, pool } = schedule;
        let request = proto::PauseRecurringRequest { name, paused, pool };
        self.ask("pause_schedule", rpc!(admin, pause_recurring), request, true).await?;
        Ok(())
    }

    /// Makes an occurrence now and returns its task's id; never repeated by itself.
    pub async fn trigger_schedule(&self, schedule: impl Into<ScheduleRef>) -> Result<u64> {
        let ScheduleRef { name, pool } = schedule.into();
        let request = proto::TriggerRecurringRequest { name, pool };
        let answer =
            self.ask("trigger_schedule", rpc!(admin, trigger_recurring), request, false).await?;
        Ok(answer.task_id)
    }

    /// Makes the occurrences of a past range that have no task; never repeated by itself. With
    /// `dry_run` it only counts them.
    pub async fn backfill_schedule(
        &self,
        schedule: impl Into<ScheduleRef>,
        start: SystemTime,
        end: SystemTime,
        dry_run: bool,
    ) -> Result<BackfillOutcome> {
        let ScheduleRef { name, pool } = schedule.into();
        let request = proto::BackfillRecurringRequest {
            name,
            from_unix_ns: unix_ns(start)?,
            to_unix_ns: unix_ns(end)?,
            pool,
            dry_run,
        };
        let answer = self
            .ask("backfill_schedule", rpc!(admin, backfill_recurring), request, dry_run)
            .await?;
        Ok(BackfillOutcome { created: answer.created, next_at: maybe_instant(answer.next_unix_ns) })
    }

    /// Returns the next `count` instants of a schedule, at most 100.
    pub async fn preview_schedule(
        &self,
        schedule: impl Into<ScheduleRef>,
        count: u32,
    ) -> Result<Vec<SystemTime>> {
        let ScheduleRef { name, pool } = schedule.into();
        self.preview(Schedule::Name(name), pool, count).await
    }

    /// Returns the next `count` instants of a schedule that need not be there, at most 100.
    pub async fn preview_schedule_spec(
        &self,
        spec: &ScheduleSpec,
        count: u32,
    ) -> Result<Vec<SystemTime>> {
        let request = write_schedule(spec, self.caller.options.codec.as_ref())?;
        self.preview(Schedule::Spec(request), None, count).await
    }

    async fn preview(
        &self,
        schedule: Schedule,
        pool: Option<String>,
        count: u32,
    ) -> Result<Vec<SystemTime>> {
        let request = proto::PreviewRecurringRequest { count, pool, schedule: Some(schedule) };
        let answer =
            self.ask("preview_schedule", rpc!(admin, preview_recurring), request, true).await?;
        Ok(answer.at_unix_ns.into_iter().map(instant_of).collect())
    }

    /// Returns the pools at one moment.
    pub async fn pools(&self) -> Result<Gathered<PoolSnapshot>> {
        let answer = self.ask("pools", rpc!(admin, list_pools), proto::Empty {}, true).await?;
        Ok(gathered(answer.pools, read_pool, answer.unavailable_shards))
    }

    /// Starts no more attempts in a pool; running ones go on.
    pub async fn pause_pool(&self, pool: impl Into<String>) -> Result<()> {
        let request = proto::PausePoolRequest { pool: pool.into() };
        self.ask("pause_pool", rpc!(admin, pause_pool), request, true).await?;
        Ok(())
    }

    /// Starts attempts in a pool again.
    pub async fn resume_pool(&self, pool: impl Into<String>) -> Result<()> {
        let request = proto::ResumePoolRequest { pool: pool.into() };
        self.ask("resume_pool", rpc!(admin, resume_pool), request, true).await?;
        Ok(())
    }

    /// Returns the resources at one moment.
    pub async fn resources(&self) -> Result<Gathered<ResourceInfo>> {
        let request = proto::Empty {};
        let answer = self.ask("resources", rpc!(admin, list_resources), request, true).await?;
        Ok(gathered(answer.resources, read_resource, answer.unavailable_shards))
    }

    /// Changes the size of a resource until its configured size changes.
    pub async fn set_resource(
        &self,
        name: impl Into<String>,
        size: ResourceSize,
    ) -> Result<ResourceInfo> {
        let request = proto::SetResourceRequest {
            name: name.into(),
            permits: size.permits,
            rate: size.rate,
            burst: size.burst,
        };
        let answer = self.ask("set_resource", rpc!(admin, set_resource), request, true).await?;
        Ok(read_resource(answer))
    }
}
