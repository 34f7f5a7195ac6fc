//! Decides how watches and listings are read: event by event, page by page.
//!
//! A watch goes on across breaks, from the cursor of the last event or bookmark that its reader
//! took. A listing fetches pages while it is read.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{BoxStream, StreamExt, unfold};
use prost::bytes::Bytes;

use crate::calls::{Answers, Caller, Delays, end_of, rpc};
use crate::convert::{read_event, read_info};
use crate::errors::{Error, ErrorReason, Result};
use crate::proto;
use crate::views::{StatusEvent, TaskInfo};

/// What a watch watches. With neither pools, ids nor keys: all tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchOptions {
    /// Tasks of these pools.
    pub pools: Vec<String>,
    /// These tasks.
    pub ids: Vec<u64>,
    /// Tasks with these keys.
    pub keys: Vec<String>,
    /// Every change; else only ends.
    pub all_transitions: bool,
    /// Resume after an event seen before.
    pub after_cursor: Vec<u8>,
}

/// Changes of tasks, for ever, over as many streams as it takes.
///
/// The end of a task is never missed and may come twice; other transitions may be missed across a
/// reconnection. It ends after an error that no new stream can mend.
pub struct Watch(BoxStream<'static, Result<StatusEvent>>);

impl Watch {
    pub(crate) fn new(caller: Arc<Caller>, options: WatchOptions) -> Self {
        let request = proto::WatchRequest {
            pools: options.pools,
            ids: options.ids,
            keys: options.keys,
            all_transitions: options.all_transitions,
            after_cursor: options.after_cursor.into(),
            bookmarks: true,
        };
        let delays = Delays::new(&caller.options);
        let state = Watching {
            caller,
            request,
            delays,
            is_old: false,
            stream: None,
            events: VecDeque::new(),
            bookmark: Bytes::new(),
            is_over: false,
        };
        Self(unfold(state, Watching::step).boxed())
    }

    /// The next change. The future may be dropped and called for again.
    pub async fn next(&mut self) -> Option<Result<StatusEvent>> {
        self.0.next().await
    }
}

impl Stream for Watch {
    type Item = Result<StatusEvent>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

enum Changes {
    Batches(Answers<proto::StatusEvents>),
    Singles(Answers<proto::StatusEvent>),
}

struct Watching {
    caller: Arc<Caller>,
    request: proto::WatchRequest,
    delays: Delays,
    /// The server has no `WatchBatches`.
    is_old: bool,
    stream: Option<Changes>,
    events: VecDeque<proto::StatusEvent>,
    /// Where the reader stands once it has taken all events at hand.
    bookmark: Bytes,
    is_over: bool,
}

impl Watching {
    async fn step(mut self) -> Option<(Result<StatusEvent>, Self)> {
        if self.is_over {
            return None;
        }
        loop {
            if let Some(event) = self.events.pop_front() {
                self.delays.reset();
                // Moved only now: a break before the reader asked would resume before it.
                if !event.cursor.is_empty() {
                    self.request.after_cursor = event.cursor.clone();
                }
                return Some((read_event(event), self));
            }
            if !self.bookmark.is_empty() {
                self.request.after_cursor = std::mem::take(&mut self.bookmark);
            }
            if let Err(error) = self.fill().await {
                self.stream = None;
                if error.is_unsupported() && !self.is_old {
                    self.is_old = true;
                    continue;
                }
                if !self.may_go_on(&error) {
                    self.is_over = true;
                    return Some((Err(error), self));
                }
                tokio::time::sleep(self.delays.next(Some(&error))).await;
            }
        }
    }

    /// Reads one message. A stream that ends does so for its server's reasons, as a break would.
    async fn fill(&mut self) -> Result<()> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => self.stream.insert(open(&self.caller, &self.request, self.is_old).await?),
        };
        match stream {
            Changes::Batches(answers) => {
                let message = answers.next().await?.ok_or_else(ended)?;
                self.events.extend(message.events);
                self.bookmark = message.cursor;
            }
            Changes::Singles(answers) => {
                self.events.push_back(answers.next().await?.ok_or_else(ended)?);
            }
        }
        Ok(())
    }

    fn may_go_on(&self, error: &Error) -> bool {
        // Too slow: the stream is gone, but the cursor says where this reader stands.
        let is_resumable = error.reason() == Some(ErrorReason::WatchTooSlow)
            && !self.request.after_cursor.is_empty();
        error.is_unavailable() || is_resumable
    }
}

async fn open(
    caller: &Arc<Caller>,
    request: &proto::WatchRequest,
    is_old: bool,
) -> Result<Changes> {
    if is_old {
        caller.open(rpc!(tasks, watch), request.clone()).await.map(Changes::Singles)
    } else {
        caller.open(rpc!(tasks, watch_batches), request.clone()).await.map(Changes::Batches)
    }
}

fn ended() -> Error {
    Error::from_code(tonic::Code::Unavailable, None, "the server ended the watch")
}

/// How a listing is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only tasks beyond this id.
    pub after: u64,
    /// Tasks per request; 0 is the server's choice.
    pub page_size: u32,
    /// Highest ids first.
    pub newest_first: bool,
}

/// Tasks of a listing, fetched page by page while they are read.
pub struct TaskPages {
    tasks: BoxStream<'static, Result<TaskInfo>>,
    unavailable_shards: Arc<Mutex<BTreeSet<String>>>,
}

impl TaskPages {
    pub(crate) fn new(
        caller: Arc<Caller>,
        request: proto::ListTasksRequest,
        deadline: Duration,
    ) -> Self {
        let unavailable_shards = Arc::new(Mutex::new(BTreeSet::new()));
        let state = Listing {
            caller,
            request: Some(request),
            deadline,
            tasks: VecDeque::new(),
            unavailable_shards: Arc::clone(&unavailable_shards),
        };
        Self { tasks: unfold(state, Listing::step).boxed(), unavailable_shards }
    }

    /// The next task. The future may be dropped and called for again.
    pub async fn next(&mut self) -> Option<Result<TaskInfo>> {
        self.tasks.next().await
    }

    /// Reads all that is left.
    pub async fn collect(mut self) -> Result<Vec<TaskInfo>> {
        let mut tasks = Vec::new();
        while let Some(task) = self.next().await {
            tasks.push(task?);
        }
        Ok(tasks)
    }

    /// Shards that the pages read so far lack.
    #[must_use]
    pub fn unavailable_shards(&self) -> BTreeSet<String> {
        self.unavailable_shards.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Stream for TaskPages {
    type Item = Result<TaskInfo>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.tasks.poll_next_unpin(context)
    }
}

impl fmt::Debug for TaskPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TaskPages")
    }
}

struct Listing {
    caller: Arc<Caller>,
    /// For the next page; `None` after the last one.
    request: Option<proto::ListTasksRequest>,
    deadline: Duration,
    tasks: VecDeque<proto::TaskInfo>,
    unavailable_shards: Arc<Mutex<BTreeSet<String>>>,
}

impl Listing {
    async fn step(mut self) -> Option<(Result<TaskInfo>, Self)> {
        loop {
            if let Some(task) = self.tasks.pop_front() {
                return Some((read_info(task), self));
            }
            let request = self.request.take()?;
            let ends_at = end_of(self.deadline);
            let call =
                self.caller.call("list", rpc!(tasks, list_tasks), request.clone(), true, ends_at);
            let page = match call.await {
                Ok(page) => page,
                Err(error) => return Some((Err(error), self)),
            };
            self.tasks.extend(page.tasks);
            self.unavailable_shards
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(page.unavailable_shards);
            // Pages may be short or empty; only 0 is the end.
            if page.next_after != 0 {
                self.request = Some(proto::ListTasksRequest { after: page.next_after, ..request });
            }
        }
    }
}
