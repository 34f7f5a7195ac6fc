//! Decides what a program can ask of a server, and how each call is made.
//!
//! Every call has a deadline (60 s unless told otherwise) that covers its repetitions; waits have
//! none unless given. All of them may be dropped at any time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::calls::{Answered, Caller, FOREVER, end_of, rpc};
use crate::coalesce::Coalescer;
use crate::convert::{missing, read_detail, read_info, write_filter, write_ref, write_spec};
use crate::errors::{Error, ErrorKind, ErrorReason, Result, TaskFailure};
use crate::options::{ClientOptions, OnSubmitted, Submission};
use crate::payload;
use crate::proto;
use crate::spec::{BulkAction, TaskFilter, TaskRef, TaskSpec, TaskStatus};
use crate::views::{BulkOutcome, TaskDetail, TaskInfo, TaskResult};
use crate::waits::SharedWaits;
use crate::watch::{ListOptions, TaskPages, Watch, WatchOptions};

/// A client of one cronoq server, or of the balancer in front of several.
///
/// Cheap to clone; clones share the connection and its requests. It belongs to the tokio runtime in
/// which it makes its first call.
#[derive(Clone)]
pub struct Client {
    pub(crate) caller: Arc<Caller>,
    submits: Arc<Coalescer>,
    waits: Arc<SharedWaits>,
    deadline: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("options", &self.caller.options).finish_non_exhaustive()
    }
}

/// A submitted task.
#[derive(Clone)]
pub struct TaskHandle {
    client: Client,
    id: u64,
    key: String,
    duplicate: bool,
}

impl fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskHandle")
            .field("id", &self.id)
            .field("key", &self.key)
            .field("duplicate", &self.duplicate)
            .finish_non_exhaustive()
    }
}

impl From<&TaskHandle> for TaskRef {
    fn from(handle: &TaskHandle) -> Self {
        Self::Id(handle.id)
    }
}

impl TaskHandle {
    /// The task's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its key, empty if it has none.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// True if the key was known and this submission changed nothing.
    #[must_use]
    pub fn duplicate(&self) -> bool {
        self.duplicate
    }

    /// Waits for success and returns the decoded output; see [`Client::result`].
    pub async fn result<T: DeserializeOwned + 'static>(&self) -> Result<T> {
        self.client.result(self).await
    }

    /// Waits until the task has ended, however it did; see [`Client::wait`].
    pub async fn wait(&self) -> Result<TaskResult> {
        self.client.wait(self).await
    }

    /// Cancels the task; true if it is cancelled now.
    pub async fn cancel(&self) -> Result<bool> {
        self.client.cancel(self).await
    }
}

/// A submission that the program's hook was told of.
struct Watched {
    submission: Submission,
    ended: OnSubmitted,
}

impl Watched {
    fn end(mut self, ids: Vec<u64>, error: Option<&Error>) {
        self.submission.task_ids = ids;
        (self.ended)(&self.submission, error);
    }
}

/// Bounds of one bulk call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkOptions {
    /// Most tasks to change; 0 is the server's limit.
    pub limit: u32,
    /// Only tasks with a higher id.
    pub after: u64,
    /// Count, but change nothing.
    pub dry_run: bool,
}

impl Client {
    /// Makes a client; nothing is sent before its first call. Fails with
    /// [`ErrorKind::InvalidOption`] when an option is out of its range.
    pub fn new(options: ClientOptions) -> Result<Self> {
        let deadline = options.deadline;
        let caller = Arc::new(Caller::new(options)?);
        Ok(Self {
            submits: Arc::new(Coalescer::new(Arc::clone(&caller))),
            waits: Arc::new(SharedWaits::new(Arc::clone(&caller))),
            caller,
            deadline,
        })
    }

    /// Ends every call that is under way and closes the connection, for all clones.
    pub fn close(&self) {
        self.caller.close();
    }

    /// The same client with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Self {
        Self { deadline, ..self.clone() }
    }

    fn ends_at(&self) -> Instant {
        end_of(self.deadline)
    }

    pub(crate) async fn ask<Q: Clone, A>(
        &self,
        name: &str,
        rpc: impl Fn(tonic::transport::Channel, tonic::Request<Q>) -> Answered<A>,
        message: Q,
        is_idempotent: bool,
    ) -> Result<A> {
        self.caller.call(name, rpc, message, is_idempotent, self.ends_at()).await
    }

    // --- submitting --------------------------------------------------------------------------------

    /// Submits one task and returns once it is acknowledged durably; concurrent submits share
    /// requests. [`ErrorKind::Unavailable`] without a key means that the outcome may be unknown.
    pub async fn submit(&self, task: TaskSpec) -> Result<TaskHandle> {
        let watched = self.watched("submit", || vec![task.clone()]);
        let outcome = self.submit_one(self.traced(task, watched.as_ref())).await;
        if let Some(watched) = watched {
            let ids = outcome.iter().map(TaskHandle::id).collect();
            watched.end(ids, outcome.as_ref().err());
        }
        outcome
    }

    async fn submit_one(&self, task: TaskSpec) -> Result<TaskHandle> {
        let mut waiting = self.submits.enqueue(&task, self.ends_at())?;
        let admitted = waiting.admitted().await?;
        Ok(self.handle(task.key, admitted))
    }

    /// Tells the program's hook, if there is one, that a submission begins.
    fn watched(
        &self,
        operation: &'static str,
        tasks: impl FnOnce() -> Vec<TaskSpec>,
    ) -> Option<Watched> {
        let hook = self.caller.options.on_submit.as_ref()?;
        let mut submission = Submission { operation, tasks: tasks(), ..Submission::default() };
        let ended = hook(&mut submission);
        Some(Watched { submission, ended })
    }

    /// The task with the trace context of its submission, or else the present one, if it names none
    /// and the program wants it.
    fn traced(&self, mut task: TaskSpec, watched: Option<&Watched>) -> TaskSpec {
        if !task.trace_context.is_empty() {
            return task;
        }
        if let Some(context) = watched.and_then(|one| one.submission.trace_context.as_ref()) {
            task.trace_context.clone_from(context);
        } else if let Some(ask) = &self.caller.options.trace_context {
            task.trace_context = ask();
        }
        task
    }

    fn handle(&self, key: String, (id, duplicate): (u64, bool)) -> TaskHandle {
        TaskHandle { client: self.clone(), id, key, duplicate }
    }

    /// Submits many tasks, each on its own: some may be refused while others are admitted. Returns
    /// the outcomes in the order of the tasks.
    pub async fn submit_many(
        &self,
        tasks: impl IntoIterator<Item = TaskSpec>,
    ) -> Vec<Result<TaskHandle>> {
        let ends_at = self.ends_at();
        let mut watched = self.watched("submit_many", Vec::new);
        let mut outcomes: Vec<Result<TaskHandle>> = Vec::new();
        let mut waiting = std::collections::VecDeque::new();
        for task in tasks {
            if let Some(watched) = &mut watched {
                watched.submission.tasks.push(task.clone());
            }
            let task = self.traced(task, watched.as_ref());
            waiting.push_back(self.submits.enqueue(&task, ends_at).map(|place| (task.key, place)));
            // Requests leave in order, so the oldest open task tells when there is room.
            while self.submits.has_backlog()
                && let Some(oldest) = waiting.pop_front()
            {
                outcomes.push(self.admitted(oldest).await);
            }
        }
        for place in waiting {
            outcomes.push(self.admitted(place).await);
        }
        if let Some(watched) = watched {
            let ids = outcomes.iter().map(|told| told.as_ref().map_or(0, TaskHandle::id)).collect();
            watched.end(ids, None);
        }
        outcomes
    }

    async fn admitted(
        &self,
        place: Result<(String, crate::coalesce::Waiting)>,
    ) -> Result<TaskHandle> {
        let (key, mut waiting) = place?;
        let admitted = waiting.admitted().await?;
        Ok(self.handle(key, admitted))
    }

    /// Submits tasks as one: all are admitted, or none and the error names the index. Tasks may
    /// depend on each other's keys in any order.
    pub async fn submit_batch(
        &self,
        tasks: impl IntoIterator<Item = TaskSpec>,
    ) -> Result<Vec<TaskHandle>> {
        let tasks: Vec<TaskSpec> = tasks.into_iter().collect();
        let watched = self.watched("submit_batch", || tasks.clone());
        let traced = tasks.into_iter().map(|task| self.traced(task, watched.as_ref())).collect();
        let outcome = self.submit_all(traced).await;
        if let Some(watched) = watched {
            let ids = outcome.iter().flatten().map(TaskHandle::id).collect();
            watched.end(ids, outcome.as_ref().err());
        }
        outcome
    }

    async fn submit_all(&self, tasks: Vec<TaskSpec>) -> Result<Vec<TaskHandle>> {
        let codec = self.caller.options.codec.as_ref();
        let written = tasks.iter().map(|task| write_spec(task, codec)).collect::<Result<_>>()?;
        // With a key on each, a repetition finds the tasks of the first try.
        let are_keyed = tasks.iter().all(|task| !task.key.is_empty());
        let request = proto::SubmitBatchRequest { tasks: written };
        let answer =
            self.ask("submit_batch", rpc!(tasks, submit_batch), request, are_keyed).await?;
        if answer.tasks.len() != tasks.len() {
            return Err(missing("an outcome"));
        }
        let pairs = tasks.into_iter().zip(answer.tasks);
        Ok(pairs.map(|(task, told)| self.handle(task.key, (told.id, told.duplicate))).collect())
    }

    // --- looking -----------------------------------------------------------------------------------

    /// Returns where a task stands.
    pub async fn get(&self, target: impl Into<TaskRef>) -> Result<TaskInfo> {
        let request = proto::GetRequest { task: Some(write_ref(target.into())) };
        read_info(self.ask("get", rpc!(tasks, get), request, true).await?)
    }

    /// Returns all that is known about a task: spec, payload, attempts, parents, children.
    /// [`ErrorKind::Unsupported`] means that the server is too old for it.
    pub async fn detail(&self, target: impl Into<TaskRef>) -> Result<TaskDetail> {
        let request = proto::GetRequest { task: Some(write_ref(target.into())) };
        read_detail(self.ask("detail", rpc!(tasks, describe), request, true).await?)
    }

    /// Lists tasks in id order.
    #[must_use]
    pub fn list(&self, wanted: &TaskFilter, options: ListOptions) -> TaskPages {
        let filter = write_filter(wanted);
        let request = proto::ListTasksRequest {
            pools: filter.pools,
            statuses: filter.statuses,
            after: options.after,
            limit: options.page_size,
            kinds: filter.kinds,
            keys: filter.keys,
            tags: filter.tags,
            tenants: filter.tenants,
            schedule: filter.schedule,
            newest_first: options.newest_first,
        };
        TaskPages::new(Arc::clone(&self.caller), request, self.deadline)
    }

    /// Watches tasks change; reconnects and resumes by itself, for ever.
    #[must_use]
    pub fn watch(&self, options: WatchOptions) -> Watch {
        Watch::new(Arc::clone(&self.caller), options)
    }

    // --- waiting -----------------------------------------------------------------------------------

    /// Waits until a task has ended, however it did; concurrent waits share streams. It has no
    /// deadline: drop it, or use [`wait_within`](Self::wait_within).
    pub async fn wait(&self, target: impl Into<TaskRef>) -> Result<TaskResult> {
        let id = match target.into() {
            TaskRef::Id(id) => id,
            // Shared streams answer by id.
            TaskRef::Key(key) => self.id_of(key).await?,
        };
        if self.caller.is_closed() {
            return Err(Error::closed());
        }
        self.waits.begin(id).result().await
    }

    /// The same, at most for `timeout`: then [`ErrorReason::WaitTimeout`].
    pub async fn wait_within(
        &self,
        target: impl Into<TaskRef>,
        timeout: Duration,
    ) -> Result<TaskResult> {
        let target = target.into();
        let text = format!("task {target} has not ended");
        within(timeout, self.wait(target), text).await
    }

    /// Finds the id of a key, however long it takes.
    async fn id_of(&self, key: String) -> Result<u64> {
        let patient = self.with_deadline(FOREVER);
        patient.get(TaskRef::Key(key)).await.map(|task| task.id)
    }

    /// Waits until all of the tasks have ended and returns their results in order.
    pub async fn wait_many(&self, ids: impl IntoIterator<Item = u64>) -> Result<Vec<TaskResult>> {
        if self.caller.is_closed() {
            return Err(Error::closed());
        }
        let waits: Vec<_> = ids.into_iter().map(|id| self.waits.begin(id)).collect();
        let mut results = Vec::with_capacity(waits.len());
        for wait in waits {
            results.push(wait.result().await?);
        }
        Ok(results)
    }

    /// The same, at most for `timeout`: then [`ErrorReason::WaitTimeout`].
    pub async fn wait_many_within(
        &self,
        ids: impl IntoIterator<Item = u64>,
        timeout: Duration,
    ) -> Result<Vec<TaskResult>> {
        within(timeout, self.wait_many(ids), "some tasks have not ended".to_owned()).await
    }

    /// Waits for a task to succeed and returns its output. Fails with [`ErrorKind::TaskFailed`] when
    /// it ended otherwise, [`ErrorKind::OutputUnavailable`] when the output is no longer kept,
    /// [`ErrorKind::Payload`] when the output is no `T`.
    pub async fn result<T: DeserializeOwned + 'static>(
        &self,
        target: impl Into<TaskRef>,
    ) -> Result<T> {
        self.decode(&self.wait(target).await?)
    }

    /// The same, at most for `timeout`: then [`ErrorReason::WaitTimeout`].
    pub async fn result_within<T: DeserializeOwned + 'static>(
        &self,
        target: impl Into<TaskRef>,
        timeout: Duration,
    ) -> Result<T> {
        self.decode(&self.wait_within(target, timeout).await?)
    }

    /// Returns the output in a result, as [`result`](Self::result) does.
    pub fn decode<T: DeserializeOwned + 'static>(&self, result: &TaskResult) -> Result<T> {
        if result.status != TaskStatus::Succeeded {
            return Err(Error::task_failed(TaskFailure {
                task_id: result.id,
                status: result.status,
                message: result.message.clone(),
            }));
        }
        let codec = self.caller.options.codec.as_ref();
        match &result.output {
            Some(output) => payload::decode(codec, output, &result.content_type),
            None if result.output_available => payload::decode(codec, &[], ""),
            None => {
                let text = format!("the output of task {} is no longer kept", result.id);
                Err(Error::new(ErrorKind::OutputUnavailable, text))
            }
        }
    }

    // --- changing ----------------------------------------------------------------------------------

    /// Cancels a task; true if it is cancelled, by whichever call.
    pub async fn cancel(&self, target: impl Into<TaskRef>) -> Result<bool> {
        let request = proto::CancelRequest { task: Some(write_ref(target.into())) };
        let answer = self.ask("cancel", rpc!(tasks, cancel), request, true).await?;
        Ok(answer.cancelled)
    }

    /// Puts a task that ended without success back, with fresh attempts. Fails with
    /// [`ErrorReason::KeyInUse`] when another live task has its key,
    /// [`ErrorReason::DependencyImpossible`] or [`ErrorReason::NotTerminal`].
    pub async fn retry(&self, target: impl Into<TaskRef>) -> Result<bool> {
        let request = proto::RetryRequest { task: Some(write_ref(target.into())) };
        let answer = self.ask("retry", rpc!(tasks, retry), request, false).await?;
        Ok(answer.retried)
    }

    /// Forgets a finished task; true if it was there. [`ErrorReason::NotTerminal`] means that it has
    /// not ended.
    pub async fn delete(&self, target: impl Into<TaskRef>) -> Result<bool> {
        let request = proto::DeleteRequest { task: Some(write_ref(target.into())) };
        let answer = self.ask("delete", rpc!(tasks, delete), request, true).await?;
        Ok(answer.deleted)
    }

    /// Cancels or retries the tasks that a filter finds, a bounded number per call; go on with the
    /// outcome's `next_after`.
    pub async fn bulk(
        &self,
        action: BulkAction,
        wanted: &TaskFilter,
        options: BulkOptions,
    ) -> Result<BulkOutcome> {
        let request = proto::BulkRequest {
            filter: Some(write_filter(wanted)),
            action: action.number(),
            limit: options.limit,
            after: options.after,
            dry_run: options.dry_run,
        };
        let answer = self.ask("bulk", rpc!(tasks, bulk), request, options.dry_run).await?;
        Ok(BulkOutcome {
            matched: answer.matched,
            changed: answer.changed,
            next_after: answer.next_after,
            unavailable_shards: answer.unavailable_shards,
        })
    }
}

async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T>>,
    text: String,
) -> Result<T> {
    match tokio::time::timeout(timeout, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Error::of(ErrorReason::WaitTimeout, text)),
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
