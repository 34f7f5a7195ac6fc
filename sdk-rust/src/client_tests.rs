//! Clients against a scripted server.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tonic::{Code, Status};

use super::*;
use crate::errors::ErrorKind;
use crate::options::Backoff;
use crate::proto;
use crate::proto::submit_outcome::Outcome as Told;
use crate::scripted::{ScriptedServer, endless, many, refusal, soon, status_message};
use crate::{Dep, TaskSpec};

fn options(server: &ScriptedServer) -> ClientOptions {
    let millisecond = Duration::from_millis(1);
    ClientOptions {
        endpoint: server.endpoint(),
        backoff: Backoff { initial: millisecond, maximum: 5 * millisecond },
        ..ClientOptions::default()
    }
}

fn client_of(server: &ScriptedServer) -> Client {
    Client::new(options(server)).unwrap()
}

fn admitted(ids: impl IntoIterator<Item = u64>) -> proto::SubmitManyResponse {
    let told = |id| Told::Response(proto::SubmitResponse { id, ..Default::default() });
    let outcomes = ids.into_iter().map(|id| proto::SubmitOutcome { outcome: Some(told(id)) });
    proto::SubmitManyResponse { outcomes: outcomes.collect() }
}

fn refused(code: Code, reason: &str) -> proto::SubmitOutcome {
    let status = status_message(code, reason, "tasks[0].kind: refused");
    proto::SubmitOutcome { outcome: Some(Told::Error(status)) }
}

fn succeeded(id: u64, output: &'static [u8]) -> proto::TaskResult {
    proto::TaskResult {
        id,
        status: TaskStatus::Succeeded.number(),
        output: Some(output.into()),
        output_available: true,
        content_type: "application/json".to_owned(),
        ..Default::default()
    }
}

fn results(results: Vec<proto::TaskResult>) -> proto::TaskResults {
    proto::TaskResults { results, errors: Vec::new() }
}

/// Submits that begin together go out in one request, in order.
#[tokio::test]
async fn concurrent_submits_share_a_request() {
    let server = ScriptedServer::start().await;
    server.reply("submit_many", Ok(admitted(1..=20)));
    let client = client_of(&server);
    let submit = |number: u32| client.submit(TaskSpec::new("k", number));
    let handles = soon(futures_util::future::try_join_all((1..=20).map(submit))).await.unwrap();
    let ids: Vec<u64> = handles.iter().map(TaskHandle::id).collect();
    assert_eq!(ids, (1..=20).collect::<Vec<_>>());
    let requests = server.requests::<proto::SubmitManyRequest>("submit_many");
    assert_eq!(requests.len(), 1);
    assert_eq!(&requests[0].tasks[2].payload[..], b"3");
}

/// A task that names no trace context is given the present one, if the program wants that.
#[tokio::test]
async fn tasks_carry_the_trace_context() {
    let server = ScriptedServer::start().await;
    server.reply("submit_many", Ok(admitted([1, 2])));
    let present = || [("traceparent".to_owned(), "present".to_owned())].into();
    let traced =
        ClientOptions { trace_context: Some(std::sync::Arc::new(present)), ..options(&server) };
    let own = [("traceparent".to_owned(), "own".to_owned())].into();
    let tasks = [TaskSpec::of("a"), TaskSpec { trace_context: own, ..TaskSpec::of("b") }];
    soon(Client::new(traced).unwrap().submit_many(tasks)).await;
    let sent = server.requests::<proto::SubmitManyRequest>("submit_many").remove(0).tasks;
    let told: Vec<&str> =
        sent.iter().map(|task| task.trace_context["traceparent"].as_str()).collect();
    assert_eq!(told, ["present", "own"]);
}

/// A program is told as a submission begins, when it can give its tasks a trace context, and as it
/// ends, however it does.
#[tokio::test]
async fn submissions_are_told_as_they_begin_and_end() {
    let server = ScriptedServer::start().await;
    server.reply("submit_many", Ok(admitted([1, 2])));
    let refusal = Status::new(Code::InvalidArgument, "no");
    server.reply::<proto::SubmitBatchResponse>("submit_batch", Err(refusal));
    let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let ears = std::sync::Arc::clone(&heard);
    let hook: crate::OnSubmit = std::sync::Arc::new(move |submission| {
        submission.trace_context = Some([("traceparent".to_owned(), "span".to_owned())].into());
        let ears = std::sync::Arc::clone(&ears);
        Box::new(move |ended, error| {
            let told = (ended.operation, ended.tasks.len(), ended.task_ids.clone());
            ears.lock().unwrap().push((told, error.map(Error::kind)));
        })
    });
    let client = Client::new(ClientOptions { on_submit: Some(hook), ..options(&server) }).unwrap();
    let own = [("traceparent".to_owned(), "own".to_owned())].into();
    let tasks = [TaskSpec::of("a"), TaskSpec { trace_context: own, ..TaskSpec::of("b") }];
    soon(client.submit_many(tasks.clone())).await;
    soon(client.submit_batch(tasks)).await.unwrap_err();
    let sent = server.requests::<proto::SubmitManyRequest>("submit_many").remove(0).tasks;
    let told: Vec<&str> =
        sent.iter().map(|task| task.trace_context["traceparent"].as_str()).collect();
    assert_eq!(told, ["span", "own"]);
    let refused = Some(ErrorKind::InvalidRequest);
    assert_eq!(
        *heard.lock().unwrap(),
        [(("submit_many", 2, vec![1, 2]), None), (("submit_batch", 2, vec![]), refused)]
    );
}

/// However often a server says that it does not lead, or not for long, it is asked again soon.
#[test]
fn a_standby_is_asked_again_soon() {
    for reason in [ErrorReason::NotLeader, ErrorReason::Stopping] {
        let mut delays = crate::calls::Delays::new(&ClientOptions::default());
        let error = Error::of(reason, "no");
        let longest = (0..100).map(|_| delays.next(Some(&error))).max();
        assert!(longest.unwrap() <= Duration::from_millis(200));
        let longest = (0..100).map(|_| delays.next(None)).max();
        assert!(longest.unwrap() > Duration::from_millis(200));
    }
}

/// Requests are bounded by count and by half a message.
#[tokio::test]
async fn requests_are_split_by_count_and_size() {
    let server = ScriptedServer::start().await;
    for part in [1..=2, 3..=3, 4..=4] {
        server.reply("submit_many", Ok(admitted(part)));
    }
    let bounded = ClientOptions {
        max_tasks_per_batch: 2,
        max_message_bytes: 1024 * 1024,
        ..options(&server)
    };
    let client = Client::new(bounded).unwrap();
    let sizes = [10, 10, 400_000, 400_000];
    let tasks = sizes.map(|size| TaskSpec::new("k", vec![0u8; size]));
    let outcomes = soon(client.submit_many(tasks)).await;
    assert!(outcomes.iter().all(Result::is_ok));
    let counts = server.requests::<proto::SubmitManyRequest>("submit_many");
    assert_eq!(counts.iter().map(|request| request.tasks.len()).collect::<Vec<_>>(), [2, 1, 1]);
    let huge = client.submit(TaskSpec::new("k", vec![0u8; 1024 * 1024])).await.unwrap_err();
    assert_eq!(huge.reason(), Some(ErrorReason::TooLarge));
}

/// Each task has an outcome of its own, whose text knows nothing of the request it shared.
#[tokio::test]
async fn outcomes_are_each_callers_own() {
    let server = ScriptedServer::start().await;
    let mut answer = admitted([1, 2]);
    answer.outcomes[0] = refused(Code::InvalidArgument, "INVALID_FIELD");
    server.reply("submit_many", Ok(answer));
    let outcomes = soon(client_of(&server).submit_many(["a", "b"].map(TaskSpec::of))).await;
    let error = outcomes[0].as_ref().unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::InvalidField));
    assert_eq!((error.message(), error.details()["field"].as_str()), ("kind: refused", "kind"));
    assert_eq!(outcomes[1].as_ref().unwrap().id(), 2);
}

/// A lost request is sent again for tasks with a key; the others' outcome is unknown.
#[tokio::test]
async fn lost_requests_are_repeated_for_keyed_tasks() {
    let server = ScriptedServer::start().await;
    server.reply::<proto::SubmitManyResponse>("submit_many", Err(Status::unavailable("lost")));
    server.reply("submit_many", Ok(admitted([7])));
    let client = client_of(&server);
    let tasks = [TaskSpec::of("a").key("k"), TaskSpec::of("b")];
    let outcomes = soon(client.submit_many(tasks)).await;
    assert_eq!(outcomes[0].as_ref().unwrap().id(), 7);
    assert_eq!(outcomes[1].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
}

/// What a standby refused was not executed, so it is sent again whatever it is.
#[tokio::test]
async fn refusals_by_standbys_are_repeated() {
    let server = ScriptedServer::start().await;
    for reason in ["NOT_LEADER", "STOPPING"] {
        let refused = Err(refusal(Code::Unavailable, reason));
        server.reply::<proto::SubmitManyResponse>("submit_many", refused);
    }
    server.reply("submit_many", Ok(admitted([7])));
    server.reply::<proto::RetryResponse>("retry", Err(refusal(Code::Unavailable, "NOT_LEADER")));
    server.reply("retry", Ok(proto::RetryResponse { retried: true }));
    let client = client_of(&server);
    assert_eq!(soon(client.submit(TaskSpec::of("a"))).await.unwrap().id(), 7);
    assert!(soon(client.retry(7)).await.unwrap());
    server.reply::<proto::RetryResponse>("retry", Err(Status::unavailable("lost")));
    assert!(soon(client.retry(7)).await.unwrap_err().is_unavailable());
}

/// A task for a full pool is sent again alone, by a call that waits for room.
#[tokio::test]
async fn tasks_for_full_pools_are_parked() {
    let server = ScriptedServer::start().await;
    let full = refused(Code::ResourceExhausted, "QUEUE_FULL");
    server.reply("submit_many", Ok(proto::SubmitManyResponse { outcomes: vec![full] }));
    server.reply("submit", Ok(proto::SubmitResponse { id: 5, ..Default::default() }));
    assert_eq!(soon(client_of(&server).submit(TaskSpec::of("a"))).await.unwrap().id(), 5);
    let parked = server.requests::<proto::SubmitRequest>("submit");
    assert_eq!(parked[0].task.as_ref().unwrap().kind, "a");
}

/// On a server without shared requests each task goes out alone (v3).
#[tokio::test]
async fn old_servers_get_single_submits_and_waits() {
    let server = ScriptedServer::start().await;
    for id in [1, 2] {
        server.reply("submit", Ok(proto::SubmitResponse { id, ..Default::default() }));
        server.reply("wait", Ok(succeeded(id, b"1")));
    }
    let client = client_of(&server);
    let handle = soon(client.submit(TaskSpec::of("a"))).await.unwrap();
    soon(client.submit(TaskSpec::of("b"))).await.unwrap();
    assert_eq!(soon(handle.result::<u32>()).await.unwrap(), 1);
    let detail = soon(client.detail(1)).await.unwrap_err();
    assert_eq!(detail.kind(), ErrorKind::Unsupported);
}

/// A call ends at its deadline, and tells what stood in the way.
#[tokio::test]
async fn calls_end_at_their_deadline() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = ClientOptions {
        endpoint: free.to_string(),
        backoff: Backoff { initial: Duration::from_millis(1), ..Backoff::default() },
        ..ClientOptions::default()
    };
    let client = Client::new(away).unwrap().with_deadline(Duration::from_millis(60));
    for error in [
        soon(client.get(1)).await.unwrap_err(),
        soon(client.submit(TaskSpec::of("a"))).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("cannot connect"), "{error}");
    }
}

/// Waits that begin together share a stream; each gets its own result.
#[tokio::test]
async fn concurrent_waits_share_a_stream() {
    let server = ScriptedServer::start().await;
    let answers = (1..=3).map(|id| succeeded(id, b"7")).collect();
    server.reply("wait_many", Ok(endless(vec![results(answers)])));
    let client = client_of(&server);
    let all = soon(client.wait_many([3, 1, 2])).await.unwrap();
    assert_eq!(all.iter().map(|result| result.id).collect::<Vec<_>>(), [3, 1, 2]);
    let asked = server.requests::<proto::WaitManyRequest>("wait_many");
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].ids.iter().copied().collect::<BTreeSet<_>>(), BTreeSet::from([1, 2, 3]));
}

/// A stream that breaks is opened again for what is unanswered; waits survive a failover.
#[tokio::test]
async fn waits_go_on_after_a_break() {
    let server = ScriptedServer::start().await;
    let first = many(vec![results(vec![succeeded(1, b"1")])], Some(Status::unavailable("cut")));
    server.reply("wait_many", Ok(first));
    server.reply("wait_many", Ok(endless(vec![results(vec![succeeded(2, b"2")])])));
    let client = client_of(&server);
    assert_eq!(soon(client.wait_many([1, 2])).await.unwrap().len(), 2);
    let asked = server.requests::<proto::WaitManyRequest>("wait_many");
    assert_eq!(asked[1].ids, [2]);
}

/// A task that does not exist is an error of its own, whoever else waits on the stream.
#[tokio::test]
async fn waits_for_unknown_tasks_fail_alone() {
    let server = ScriptedServer::start().await;
    let error = proto::WaitError {
        task: Some(write_ref(TaskRef::Id(1))),
        status: Some(status_message(Code::NotFound, "TASK_UNKNOWN", "no such task")),
    };
    let message = proto::TaskResults { results: vec![succeeded(2, b"2")], errors: vec![error] };
    server.reply("wait_many", Ok(endless(vec![message])));
    let client = client_of(&server);
    let (unknown, known) = soon(async { tokio::join!(client.wait(1), client.wait(2)) }).await;
    assert_eq!(unknown.unwrap_err().reason(), Some(ErrorReason::TaskUnknown));
    assert_eq!(known.unwrap().id, 2);
}

/// A result is the decoded output, or an error that says what is wrong with it.
#[tokio::test]
async fn results_are_decoded_or_say_why_not() {
    let server = ScriptedServer::start().await;
    let failed = proto::TaskResult {
        id: 2,
        status: TaskStatus::DeadLettered.number(),
        message: "no flour".to_owned(),
        ..Default::default()
    };
    let lost = proto::TaskResult { output: None, output_available: false, ..succeeded(3, b"") };
    let answers = vec![succeeded(1, b"[1,2]"), failed, lost];
    server.reply("wait_many", Ok(endless(vec![results(answers)])));
    let client = client_of(&server);
    let all = soon(client.wait_many([1, 2, 3])).await.unwrap();
    assert_eq!(client.decode::<Vec<u32>>(&all[0]).unwrap(), [1, 2]);
    assert_eq!(client.decode::<String>(&all[0]).unwrap_err().kind(), ErrorKind::Payload);
    let failure = client.decode::<u32>(&all[1]).unwrap_err();
    assert_eq!(failure.task_failure().unwrap().status, TaskStatus::DeadLettered);
    assert_eq!(failure.message(), "task 2 dead_lettered: no flour");
    let gone = client.decode::<u32>(&all[2]).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::OutputUnavailable);
}

/// A wait by key finds the id first; a wait that takes too long says so.
#[tokio::test]
async fn waits_take_keys_and_timeouts() {
    let server = ScriptedServer::start().await;
    server.reply::<proto::TaskInfo>("get", Err(Status::unavailable("failover")));
    let info =
        proto::TaskInfo { id: 9, status: TaskStatus::Running.number(), ..Default::default() };
    server.reply("get", Ok(info));
    server.reply("wait_many", Ok(endless::<proto::TaskResults>(Vec::new())));
    let client = client_of(&server);
    let waiting = client.wait_within("the-key", Duration::from_millis(200));
    assert_eq!(soon(waiting).await.unwrap_err().reason(), Some(ErrorReason::WaitTimeout));
    assert_eq!(server.requests::<proto::WaitManyRequest>("wait_many")[0].ids, [9]);
}

fn event(id: u64, cursor: &'static [u8]) -> proto::StatusEvent {
    let status = TaskStatus::Succeeded.number();
    proto::StatusEvent { id, status, cursor: cursor.into(), ..Default::default() }
}

/// A watch resumes from the cursor of the last event or bookmark that was read.
#[tokio::test]
async fn a_watch_resumes_from_the_last_cursor() {
    let server = ScriptedServer::start().await;
    let batch = proto::StatusEvents {
        events: vec![event(1, b"a"), event(2, b"b")],
        cursor: (&b"c"[..]).into(),
    };
    server.reply("watch_batches", Ok(many(vec![batch], Some(Status::unavailable("cut")))));
    let second = proto::StatusEvents { events: vec![event(3, b"d")], ..Default::default() };
    server.reply("watch_batches", Ok(many(vec![second], None)));
    let slow = Err(refusal(Code::DataLoss, "WATCH_TOO_SLOW"));
    server.reply::<crate::scripted::Many<proto::StatusEvents>>("watch_batches", slow);
    let lost = Err(refusal(Code::DataLoss, "CURSOR_UNKNOWN"));
    server.reply::<crate::scripted::Many<proto::StatusEvents>>("watch_batches", lost);
    let mut watch = client_of(&server).watch(WatchOptions::default());
    for id in [1, 2, 3] {
        assert_eq!(soon(watch.next()).await.unwrap().unwrap().id, id);
    }
    let end = soon(watch.next()).await.unwrap().unwrap_err();
    assert_eq!(end.reason(), Some(ErrorReason::CursorUnknown));
    assert!(soon(watch.next()).await.is_none());
    let asked = server.requests::<proto::WatchRequest>("watch_batches");
    let cursors: Vec<&[u8]> = asked.iter().map(|request| &request.after_cursor[..]).collect();
    assert_eq!(cursors, [&b""[..], b"c", b"d", b"d"]);
    assert!(asked.iter().all(|request| request.bookmarks));
}

/// A listing goes on over short and empty pages until the server says that it was the last.
#[tokio::test]
async fn listings_read_all_pages() {
    let server = ScriptedServer::start().await;
    let status = TaskStatus::Ready.number();
    let task = |id| proto::TaskInfo { id, status, ..Default::default() };
    for (tasks, next_after) in [(vec![task(1)], 1), (vec![], 5), (vec![task(6)], 0)] {
        let unavailable_shards = vec!["north".to_owned()];
        let page = proto::ListTasksResponse { tasks, next_after, unavailable_shards };
        server.reply("list_tasks", Ok(page));
    }
    let wanted = TaskFilter { kinds: vec!["k".to_owned()], ..TaskFilter::default() };
    let options = ListOptions { page_size: 2, ..ListOptions::default() };
    let mut pages = client_of(&server).list(&wanted, options);
    assert_eq!(soon(pages.next()).await.unwrap().unwrap().id, 1);
    assert_eq!(soon(pages.next()).await.unwrap().unwrap().id, 6);
    assert!(soon(pages.next()).await.is_none());
    assert!(pages.unavailable_shards().contains("north"));
    let asked = server.requests::<proto::ListTasksRequest>("list_tasks");
    assert_eq!(asked.iter().map(|page| page.after).collect::<Vec<_>>(), [0, 1, 5]);
    assert!(asked.iter().all(|page| page.limit == 2 && page.kinds == ["k"]));
}

/// Closing ends what is under way, for all clones.
#[tokio::test]
async fn closing_ends_everything() {
    let server = ScriptedServer::start().await;
    server.reply("wait_many", Ok(endless::<proto::TaskResults>(Vec::new())));
    let client = client_of(&server);
    let clone = client.clone();
    let waiting = tokio::spawn(async move { clone.wait(1).await });
    while server.requests::<proto::WaitManyRequest>("wait_many").is_empty() {
        tokio::task::yield_now().await;
    }
    client.close();
    assert_eq!(soon(waiting).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    let after = soon(client.submit(TaskSpec::of("a"))).await.unwrap_err();
    assert_eq!(after.kind(), ErrorKind::Closed);
}

/// A submit that is given up before it went out is not sent.
#[tokio::test]
async fn dropped_submits_are_not_sent() {
    let server = ScriptedServer::start().await;
    server.reply("submit_many", Ok(admitted([2])));
    let client = client_of(&server);
    let mut dropped = Box::pin(client.submit(TaskSpec::of("dropped")));
    assert!(futures_util::poll!(dropped.as_mut()).is_pending());
    drop(dropped);
    assert_eq!(soon(client.submit(TaskSpec::of("kept"))).await.unwrap().id(), 2);
    let tasks = server.requests::<proto::SubmitManyRequest>("submit_many").remove(0).tasks;
    assert_eq!(tasks.iter().map(|task| task.kind.as_str()).collect::<Vec<_>>(), ["kept"]);
}

/// A connection that broke is made anew for the next call, which the break does not touch.
#[tokio::test]
async fn broken_connections_are_made_anew() {
    // On a runtime of its own, which takes the connections with it.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = runtime.spawn(ScriptedServer::start()).await.unwrap();
    server.reply("cancel", Ok(proto::CancelResponse { cancelled: true }));
    let client = client_of(&server);
    assert!(soon(client.cancel(1)).await.unwrap());
    runtime.shutdown_background();
    let impatient = client.with_deadline(Duration::from_millis(50));
    assert!(soon(impatient.cancel(1)).await.unwrap_err().is_unavailable());
    let again = ScriptedServer::start_at(server.address).await;
    again.reply("cancel", Ok(proto::CancelResponse { cancelled: true }));
    assert!(soon(client.cancel(1)).await.unwrap());
}

/// A runtime that ends takes along what it was about to send, and its connections, not the client.
#[test]
fn a_client_outlives_the_runtimes_it_is_used_on() {
    let home = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = home.block_on(ScriptedServer::start());
    server.reply("cancel", Ok(proto::CancelResponse { cancelled: true }));
    server.reply("cancel", Ok(proto::CancelResponse { cancelled: true }));
    server.reply("submit_many", Ok(admitted([2])));
    server.reply("wait_many", Ok(many(vec![results(vec![succeeded(1, b"1")])], None)));
    let client = client_of(&server);
    let brief = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    brief.block_on(async {
        assert!(soon(client.cancel(1)).await.unwrap());
        let mut submit = Box::pin(client.submit(TaskSpec::of("lost")));
        assert!(futures_util::poll!(submit.as_mut()).is_pending());
        let mut wait = Box::pin(client.wait(1));
        assert!(futures_util::poll!(wait.as_mut()).is_pending());
    });
    drop(brief);
    home.block_on(async {
        assert!(soon(client.cancel(1)).await.unwrap());
        assert_eq!(soon(client.submit(TaskSpec::of("kept"))).await.unwrap().id(), 2);
        assert_eq!(soon(client.wait(1)).await.unwrap().id, 1);
    });
}

/// A dial that its runtime did not live to end is begun anew on the next.
#[test]
fn a_dial_ends_with_its_runtime() {
    let home = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let brief = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (client, address) = brief.block_on(async {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let away = ClientOptions { endpoint: address.to_string(), ..ClientOptions::default() };
        let client = Client::new(away).unwrap();
        let hears = async {
            let mut preface = [0; 24];
            silent.accept().await.unwrap().0.read_exact(&mut preface).await.unwrap();
        };
        tokio::select! {
            biased;
            answer = client.cancel(1) => panic!("{answer:?}"),
            () = hears => {}
        }
        (client, address)
    });
    drop(brief);
    let server = home.block_on(ScriptedServer::start_at(address));
    server.reply("cancel", Ok(proto::CancelResponse { cancelled: true }));
    assert!(home.block_on(soon(client.cancel(1))).unwrap());
}

/// Those whose time is up are told so alike, the first and those after it.
#[tokio::test]
async fn submits_without_an_answer_run_out_of_time() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = silent.local_addr().unwrap().to_string();
    let away = ClientOptions { endpoint, connect_timeout: FOREVER, ..ClientOptions::default() };
    let client = Client::new(away).unwrap().with_deadline(Duration::from_millis(30));
    for kind in ["first", "second", "third"] {
        let error = soon(client.submit(TaskSpec::of(kind))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline);
    }
}

/// The longest time there is means for ever, and no time is too long to be added to the present.
#[tokio::test]
async fn times_may_be_as_long_as_there_are() {
    let server = ScriptedServer::start().await;
    server.reply("list_tasks", Ok(proto::ListTasksResponse::default()));
    server.reply("wait_many", Ok(many(vec![results(vec![succeeded(1, b"1")])], None)));
    let longest = Duration::MAX;
    let client =
        Client::new(ClientOptions { deadline: longest, max_wait: longest, ..options(&server) });
    let client = client.unwrap();
    let mut pages = client.list(&TaskFilter::default(), ListOptions::default());
    assert!(soon(pages.next()).await.is_none());
    assert_eq!(soon(client.wait_within(1, longest)).await.unwrap().id, 1);
}

/// Dependencies are named by whatever names a task.
#[tokio::test]
async fn handles_name_their_tasks() {
    let server = ScriptedServer::start().await;
    server.reply("submit_many", Ok(admitted([4])));
    let handle = soon(client_of(&server).submit(TaskSpec::of("a").key("k"))).await.unwrap();
    assert_eq!(Dep::from(&handle), Dep::from(4));
    assert_eq!((handle.key(), handle.duplicate()), ("k", false));
    assert_eq!(format!("{handle:?}"), r#"TaskHandle { id: 4, key: "k", duplicate: false, .. }"#);
}
