//! Client and worker against a real server in memory, whose clock these tests move.

#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use cronoq::testing::TestServer;
use cronoq::{
    Attempt, BulkAction, BulkOptions, Client, ClientOptions, Dep, EdgeCond, ErrorKind, ErrorReason,
    HandlerError, ListOptions, Priority, RetryPolicy, ScheduleSpec, TaskFilter, TaskRef, TaskSpec,
    TaskStatus, WatchOptions, Worker, WorkerOptions,
};
use tokio::sync::mpsc;

/// How long a test waits for a fact before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

async fn soon<T>(fact: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, fact).await.expect("the fact does not come")
}

/// The server to test against; `None` skips the test, which CI does not allow.
fn server_program() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/bin/cronoq-server");
    let program = std::env::var_os("CRONOQ_SERVER").map_or(beside, PathBuf::from);
    if program.exists() {
        return Some(program);
    }
    let text = format!("no server to test against: {} (see CRONOQ_SERVER)", program.display());
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{text}");
    eprintln!("skipped: {text}");
    None
}

/// Server, worker and client of one test.
struct Bench {
    server: TestServer,
    client: Client,
    worker: Worker,
    /// Tasks whose handler `linger` has begun.
    lingering: mpsc::UnboundedReceiver<u64>,
}

async fn square(_attempt: Attempt, number: u64) -> Result<u64, HandlerError> {
    Ok(number * number)
}

async fn total(attempt: Attempt, (): ()) -> Result<u64, HandlerError> {
    let mut sum = 0;
    for parent in attempt.parents() {
        sum += attempt.output::<u64>(*parent).await?;
    }
    Ok(sum)
}

async fn refuse(_attempt: Attempt, _bytes: Vec<u8>) -> Result<(), HandlerError> {
    Err(HandlerError::permanent("never"))
}

/// Fails until its third attempt, and tells which one it is.
async fn third_time(attempt: Attempt, (): ()) -> Result<u32, std::io::Error> {
    if attempt.number() < 3 { Err(std::io::Error::other("not yet")) } else { Ok(attempt.number()) }
}

impl Bench {
    async fn new() -> Option<Self> {
        let server = soon(TestServer::start_program(server_program()?)).await.unwrap();
        let endpoint = server.endpoint().to_owned();
        let options =
            WorkerOptions { endpoint: endpoint.clone(), slots: 4, ..WorkerOptions::default() };
        let mut worker = Worker::new(options).unwrap();
        let (began, lingering) = mpsc::unbounded_channel();
        let linger = move |attempt: Attempt, (): ()| {
            let began = began.clone();
            async move {
                began.send(attempt.task_id()).unwrap();
                attempt.cancelled().await;
                Err::<(), _>(HandlerError::stopped())
            }
        };
        worker.handler("square", square).unwrap().handler("total", total).unwrap();
        worker.handler("refuse", refuse).unwrap().handler("linger", linger).unwrap();
        worker.handler("third_time", third_time).unwrap();
        worker.start().unwrap();
        soon(worker.wait_ready()).await.unwrap();
        let client = Client::new(ClientOptions { endpoint, ..ClientOptions::default() }).unwrap();
        Some(Self { server, client, worker, lingering })
    }

    async fn end(self) {
        soon(self.worker.stop()).await;
        self.client.close();
    }
}

/// Submissions of all kinds run and come back; keys deduplicate.
#[tokio::test]
async fn runs_what_is_submitted() {
    let Some(bench) = Bench::new().await else { return };
    let client = &bench.client;
    let squares = (0..500u64).map(|number| TaskSpec::new("square", number));
    for (number, outcome) in (0u64..).zip(soon(client.submit_many(squares)).await) {
        let output: u64 = soon(outcome.unwrap().result()).await.unwrap();
        assert_eq!(output, number * number);
    }
    let parts = (1..=3u64).map(|number| TaskSpec::new("square", number).key(format!("p{number}")));
    let sum = TaskSpec {
        deps: (1..=3).map(|number| Dep::from(format!("p{number}"))).collect(),
        ..TaskSpec::of("total")
    };
    let tasks = soon(client.submit_batch(parts.chain([sum]))).await.unwrap();
    assert_eq!(soon(tasks[3].result::<u64>()).await.unwrap(), 14);
    let again = soon(client.submit(TaskSpec::new("square", 1).key("p1"))).await.unwrap();
    assert!(again.duplicate() && again.id() == tasks[0].id());
    assert_eq!(soon(client.result::<u64>("p2")).await.unwrap(), 4);
    bench.end().await;
}

/// Failures, retries after a backoff that the test skips, cancellation and redrive.
#[tokio::test]
async fn failures_end_as_they_should() {
    let Some(mut bench) = Bench::new().await else { return };
    let client = bench.client.clone();
    let refused = soon(client.submit(TaskSpec::new("refuse", vec![1u8]))).await.unwrap();
    let error = soon(refused.result::<()>()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TaskFailed);
    assert_eq!(error.task_failure().unwrap().message, "never");
    assert!(soon(client.retry(&refused)).await.unwrap());
    soon(refused.wait()).await.unwrap();
    assert!(soon(client.delete(&refused)).await.unwrap());
    assert_eq!(
        soon(client.get(&refused)).await.unwrap_err().reason(),
        Some(ErrorReason::TaskUnknown)
    );

    let patient = RetryPolicy {
        max_attempts: 3,
        initial_backoff: Duration::from_secs(600),
        max_backoff: Duration::from_secs(600),
        multiplier: 1.0,
        jitter: false,
    };
    let spec = TaskSpec { retry: Some(patient), ..TaskSpec::of("third_time") };
    let task = soon(client.submit(spec)).await.unwrap();
    let mut events = client.watch(WatchOptions {
        ids: vec![task.id()],
        all_transitions: true,
        ..WatchOptions::default()
    });
    for _ in 0..2 {
        while soon(client.get(&task)).await.unwrap().status != TaskStatus::Retrying {
            soon(bench.server.settle()).await.unwrap();
        }
        soon(bench.server.advance(Duration::from_secs(601))).await.unwrap();
    }
    assert_eq!(soon(task.result::<u32>()).await.unwrap(), 3);
    loop {
        let event = soon(events.next()).await.unwrap().unwrap();
        if event.status == TaskStatus::Succeeded {
            assert_eq!(event.id, task.id());
            break;
        }
    }
    let detail = soon(client.detail(&task)).await.unwrap();
    let failed: Vec<&str> = detail.attempts.iter().map(|each| each.message.as_str()).collect();
    assert_eq!(failed, ["not yet", "not yet"]);

    let lingering = soon(client.submit(TaskSpec::of("linger"))).await.unwrap();
    assert_eq!(soon(bench.lingering.recv()).await.unwrap(), lingering.id());
    assert!(soon(lingering.cancel()).await.unwrap());
    assert_eq!(soon(lingering.wait()).await.unwrap().status, TaskStatus::Cancelled);
    bench.end().await;
}

/// Listings, bulk calls, schedules, pools and the snapshot, as operators use them.
#[tokio::test]
async fn operators_see_and_change_things() {
    let Some(bench) = Bench::new().await else { return };
    let client = &bench.client;
    let later = |number: u32| TaskSpec {
        priority: Some(Priority::Low),
        delay: Some(Duration::from_secs(3600)),
        tags: [("group".to_owned(), "late".to_owned())].into(),
        ..TaskSpec::new("square", number)
    };
    soon(client.submit_many((0..5).map(later))).await;
    let late = TaskFilter {
        tags: [("group".to_owned(), "late".to_owned())].into(),
        ..TaskFilter::default()
    };
    let pages = client.list(&late, ListOptions { page_size: 2, ..ListOptions::default() });
    let listed = soon(pages.collect()).await.unwrap();
    assert_eq!(listed.len(), 5);
    assert!(listed.iter().all(|task| task.priority == Priority::Low));
    let dry = BulkOptions { dry_run: true, ..BulkOptions::default() };
    assert_eq!(soon(client.bulk(BulkAction::Cancel, &late, dry)).await.unwrap().matched, 5);
    let bulk = client.bulk(BulkAction::Cancel, &late, BulkOptions::default());
    assert_eq!(soon(bulk).await.unwrap().changed, 5);

    let mut spec = ScheduleSpec {
        name: "hourly".to_owned(),
        cron: "0 * * * *".to_owned(),
        template: TaskSpec::new("square", 12),
        ..ScheduleSpec::default()
    };
    soon(client.put_schedule(&spec)).await.unwrap();
    assert_eq!(soon(client.preview_schedule("hourly", 3)).await.unwrap().len(), 3);
    let triggered = soon(client.trigger_schedule("hourly")).await.unwrap();
    assert_eq!(soon(client.result::<u64>(triggered)).await.unwrap(), 144);
    soon(client.pause_schedule("hourly")).await.unwrap();
    assert!(soon(client.schedule("hourly")).await.unwrap().schedule.paused);
    soon(client.resume_schedule("hourly")).await.unwrap();
    assert_eq!(soon(client.schedules()).await.unwrap().len(), 1);
    assert!(soon(client.remove_schedule("hourly")).await.unwrap());
    spec.cron = "0 0 31 4 *".to_owned();
    let impossible = soon(client.put_schedule(&spec)).await.unwrap_err();
    assert_eq!(impossible.reason(), Some(ErrorReason::CronNeverFires));

    soon(client.pause_pool("default")).await.unwrap();
    assert!(soon(client.pools()).await.unwrap()[0].paused);
    soon(client.resume_pool("default")).await.unwrap();
    let workers = soon(client.workers()).await.unwrap();
    assert_eq!((workers[0].slots, workers[0].sdk.as_str()), (4, concat!("rust/", "0.3.0")));
    let snapshot = soon(client.snapshot()).await.unwrap();
    assert_eq!((snapshot.totals.cancelled, snapshot.workers_connected), (5, 1));
    assert!(soon(client.resources()).await.unwrap().is_empty());
    bench.end().await;
}

/// Tasks that wait for others' ends follow the condition that was asked for.
#[tokio::test]
async fn dependants_follow_their_parents() {
    let Some(bench) = Bench::new().await else { return };
    let client = &bench.client;
    let parent = soon(client.submit(TaskSpec::new("refuse", vec![0u8]))).await.unwrap();
    let child = |cond| TaskSpec {
        deps: vec![Dep { target: TaskRef::from(&parent), cond }],
        ..TaskSpec::new("square", 3)
    };
    let children = [EdgeCond::OnSuccess, EdgeCond::OnFailure, EdgeCond::OnComplete].map(child);
    let mut ends = Vec::new();
    for outcome in soon(client.submit_many(children)).await {
        ends.push(soon(outcome.unwrap().wait()).await.unwrap().status);
    }
    assert_eq!(ends, [TaskStatus::Skipped, TaskStatus::Succeeded, TaskStatus::Succeeded]);
    bench.end().await;
}

/// What the README shows of tests, done; it needs a server on the path, which `./justw` puts there.
#[tokio::test]
async fn the_readme_tests_handlers() {
    let found = std::env::var_os("CRONOQ_SERVER").is_some()
        || std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join("cronoq-server").exists())
        });
    if !found {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "no server: see CRONOQ_SERVER");
        eprintln!("skipped: no server to test against (see CRONOQ_SERVER)");
        return;
    }
    the_readme().await.unwrap();
}

async fn greet(_attempt: Attempt, name: String) -> Result<String, HandlerError> {
    Ok(format!("hello {name}"))
}

async fn the_readme() -> cronoq::Result<()> {
    // docs: testing
    use cronoq::testing::{FakeAttempt, TestServer, run_handler};

    let outcome = run_handler(greet, FakeAttempt::with_payload("world")).await?;
    assert_eq!(outcome.value::<String>()?, "hello world");

    let server = TestServer::start().await?; // in memory, and its time stands still
    server.advance(Duration::from_secs(3600)).await?; // until you move it
    server.settle().await?; // all that is due has been done
    // docs: end
    Ok(())
}
