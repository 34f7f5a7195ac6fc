//! Workers against a scripted server.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tonic::transport::{Certificate, ServerTlsConfig};
use tonic::{Code, Status};

use super::*;
use crate::errors::ErrorKind;
use crate::options::{Backoff, Keepalive, TlsOptions};
use crate::payload::Payload;
use crate::proto;
use crate::proto::report::Report as Told;
use crate::proto::server_message::Message as Heard;
use crate::proto::worker_message::Message as Said;
use crate::scripted::{
    ScriptedServer, accepted, lease_of, redirect, refusal, server_identity, soon,
};
use crate::{Interceptor, Next, TaskStatus};

fn options(server: &ScriptedServer) -> WorkerOptions {
    let millisecond = Duration::from_millis(1);
    WorkerOptions {
        endpoint: server.endpoint(),
        slots: 4,
        backoff: Backoff { initial: millisecond, maximum: 5 * millisecond },
        ..WorkerOptions::default()
    }
}

async fn echo(_attempt: Attempt, payload: Payload) -> Result<Payload, HandlerError> {
    Ok(payload)
}

fn echoing(server: &ScriptedServer) -> Worker {
    let mut worker = Worker::new(options(server)).unwrap();
    worker.handler("echo", echo).unwrap();
    worker
}

/// A worker whose handler tells that it began and waits until it is told to stop or to go on.
fn blocking_until(
    options: WorkerOptions,
    go_on: Arc<Notify>,
) -> (Worker, mpsc::UnboundedReceiver<Attempt>) {
    let (began, attempts) = mpsc::unbounded_channel();
    let mut worker = Worker::new(options).unwrap();
    let handler = move |attempt: Attempt, (): ()| {
        let (began, go_on) = (began.clone(), Arc::clone(&go_on));
        async move {
            began.send(attempt.clone()).unwrap();
            attempt.until_cancelled(go_on.notified()).await?;
            Ok::<_, HandlerError>("done")
        }
    };
    worker.handler("echo", handler).unwrap();
    (worker, attempts)
}

async fn stopped(worker: &Worker, stream: crate::scripted::WorkStream) {
    tokio::join!(soon(worker.stop()), stream.finish());
}

/// The registration says what the worker is, and a lease's result comes back (WP-01, WP-10, WP-17).
#[tokio::test]
async fn registers_and_runs_what_it_is_given() {
    let mut server = ScriptedServer::start().await;
    let mut worker = Worker::new(WorkerOptions {
        pool: "ovens".to_owned(),
        labels: [("gpu".to_owned(), "no".to_owned())].into(),
        token: Some("secret-token-of-16".to_owned()),
        ..options(&server)
    })
    .unwrap();
    worker.handler("echo", echo).unwrap().handler("other", echo).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    assert_eq!(stream.register.pool, "ovens");
    assert_eq!(stream.register.slots, 4);
    assert_eq!(stream.register.kinds, ["echo", "other"]);
    assert_eq!(stream.register.protocol_version, 4);
    assert_eq!(stream.register.sdk, format!("rust/{}", crate::VERSION));
    assert!(!stream.register.worker_name.is_empty());
    let credential = stream.metadata.get("authorization").unwrap();
    assert_eq!(credential.to_str().unwrap(), "Bearer secret-token-of-16");
    assert!(!worker.is_ready());
    stream.accept();
    soon(worker.wait_ready()).await.unwrap();
    stream.lease([lease_of(1)]);
    let report = stream.reports(1).await.remove(0);
    let Told::Complete(complete) = report else { panic!("{report:?}") };
    assert_eq!((complete.lease, &complete.output[..]), (1, &b"\"x\""[..]));
    stopped(&worker, stream).await;
    assert!(!worker.is_ready());
}

/// Every way in which a handler can end is reported as what it is (WP-17).
#[tokio::test]
async fn ends_are_reported_as_what_they_are() {
    let mut server = ScriptedServer::start().await;
    let mut worker = Worker::new(options(&server)).unwrap();
    let ending = |_attempt: Attempt, how: String| async move {
        match how.as_str() {
            "later" => Err(HandlerError::retry_after(Duration::from_secs(5), "later")),
            "never" => Err(HandlerError::permanent("never")),
            "cancel" => Err(HandlerError::cancel("why")),
            "reject" => Err(HandlerError::reject("elsewhere")),
            "panic" => panic!("on purpose"),
            other => Ok(other.parse::<u32>()?),
        }
    };
    worker.handler("end", ending).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    let mut ends = Vec::new();
    for (lease, how) in (1..).zip(["later", "never", "cancel", "reject", "panic", "x", "7"]) {
        let payload = format!("{how:?}").into_bytes().into();
        stream.lease([proto::Lease { kind: "end".to_owned(), payload, ..lease_of(lease) }]);
        ends.push(stream.reports(1).await.remove(0));
    }
    let fails: Vec<_> = ends
        .iter()
        .filter_map(|end| match end {
            Told::Fail(fail) => Some((fail.message.as_str(), fail.permanent, fail.retry_after_s)),
            _ => None,
        })
        .collect();
    let expected = [
        ("later", false, Some(5.0)),
        ("never", true, None),
        ("panic: on purpose", false, None),
        ("invalid digit found in string", false, None),
    ];
    assert_eq!(fails, expected);
    assert!(matches!(&ends[2], Told::Cancelled(_)));
    assert!(matches!(&ends[3], Told::Nack(nack) if nack.reason == "elsewhere"));
    assert!(matches!(&ends[6], Told::Complete(complete) if &complete.output[..] == b"7"));
    stopped(&worker, stream).await;
}

/// A payload that is not what the handler takes fails for good, and the worker lives on (WP-14, R18).
// Covers R18.
#[tokio::test]
async fn payloads_that_do_not_fit_fail_for_good() {
    let mut server = ScriptedServer::start().await;
    let mut worker = Worker::new(options(&server)).unwrap();
    worker.handler("echo", |_: Attempt, n: u32| async move { Ok::<_, HandlerError>(n) }).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    let good = proto::Lease { payload: (&b"5"[..]).into(), ..lease_of(2) };
    let strange = proto::Lease { content_type: "what/ever".to_owned(), ..lease_of(3) };
    stream.lease([lease_of(1), good, strange]);
    let mut ends = stream.reports(3).await;
    ends.sort_by_key(|end| !matches!(end, Told::Complete(_)));
    assert!(matches!(&ends[0], Told::Complete(complete) if complete.lease == 2));
    assert!(ends[1..].iter().all(|end| matches!(end, Told::Fail(fail) if fail.permanent)));
    stopped(&worker, stream).await;
}

/// A kind without handler is given back, and fails the second time (WP-13).
#[tokio::test]
async fn unknown_kinds_are_given_back_once() {
    let mut server = ScriptedServer::start().await;
    let worker = echoing(&server);
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    let unknown = |lease| proto::Lease { kind: "what".to_owned(), task_id: 7, ..lease_of(lease) };
    stream.lease([unknown(1)]);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Nack(_)));
    stream.lease([unknown(2)]);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Fail(fail) if fail.permanent));
    stopped(&worker, stream).await;
}

/// Never more handlers run than there are slots; what is aborted while it waits is given back
/// (WP-11, WP-16).
#[tokio::test]
async fn slots_are_never_exceeded() {
    let mut server = ScriptedServer::start().await;
    let go_on = Arc::new(Notify::new());
    let one_slot = WorkerOptions { slots: 1, ..options(&server) };
    let (worker, mut attempts) = blocking_until(one_slot, Arc::clone(&go_on));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1), lease_of(2), lease_of(3)]);
    assert_eq!(soon(attempts.recv()).await.unwrap().task_id(), 1001);
    stream.abort(2);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Cancelled(end) if end.lease == 2));
    assert!(attempts.try_recv().is_err());
    go_on.notify_one();
    assert_eq!(soon(attempts.recv()).await.unwrap().task_id(), 1003);
    go_on.notify_one();
    assert_eq!(stream.reports(2).await.len(), 2);
    stopped(&worker, stream).await;
}

/// An abort cancels the handler's token and calls the hook; the report says cancelled (WP-15, WP-16).
#[tokio::test]
async fn aborts_cancel_the_handler() {
    let mut server = ScriptedServer::start().await;
    let (told, mut reasons) = mpsc::unbounded_channel();
    let hooked = WorkerOptions {
        on_abort: Some(Arc::new(move |attempt, reason| {
            told.send((attempt.task_id(), reason.to_owned())).unwrap();
        })),
        ..options(&server)
    };
    let (worker, mut attempts) = blocking_until(hooked, Arc::new(Notify::new()));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.abort(99);
    stream.lease([lease_of(1)]);
    let attempt = soon(attempts.recv()).await.unwrap();
    assert!(!attempt.is_cancelled() && attempt.cancel_reason().is_empty());
    stream.abort(1);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Cancelled(end) if end.lease == 1));
    assert_eq!(soon(reasons.recv()).await.unwrap(), (1001, "by the test".to_owned()));
    assert!(attempt.is_cancelled());
    stopped(&worker, stream).await;
}

/// Handlers go on while the stream is gone; the resume names them, and what the server has not seen
/// is sent again, once (WP-30, WP-33, R7, R9).
// Covers R7, R9.
#[tokio::test]
async fn a_broken_stream_is_resumed() {
    let mut server = ScriptedServer::start().await;
    let go_on = Arc::new(Notify::new());
    let (worker, mut attempts) = blocking_until(options(&server), Arc::clone(&go_on));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1), lease_of(2)]);
    for _ in 0..2 {
        soon(attempts.recv()).await.unwrap();
    }
    go_on.notify_one();
    assert!(matches!(stream.next_but_beats().await, Some(Said::Reports(_))));
    stream.cut();
    let mut second = server.stream().await;
    assert!(!worker.is_ready());
    let resume = second.register.resume.clone().unwrap();
    assert_eq!(&resume.session_token[..], b"token-1");
    let mut named = resume.leases;
    named.sort_unstable();
    assert_eq!(named, [1, 2]);
    second.accept_as(proto::Registered { adopted: vec![1, 2], ..accepted() });
    go_on.notify_one();
    assert_eq!(second.reports(2).await.len(), 2);
    stopped(&worker, second).await;
}

/// What the server does not adopt is told to stop, and nothing is reported for it (WP-32).
#[tokio::test]
async fn leases_that_are_not_adopted_stop() {
    let mut server = ScriptedServer::start().await;
    let (worker, mut attempts) = blocking_until(options(&server), Arc::new(Notify::new()));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1)]);
    let attempt = soon(attempts.recv()).await.unwrap();
    stream.cut();
    let mut second = server.stream().await;
    second.accept();
    soon(attempt.cancelled()).await;
    assert!(attempt.cancel_reason().contains("lost"));
    second.lease([lease_of(9)]);
    soon(attempts.recv()).await.unwrap();
    second.abort(9);
    // The only report is that of the other lease.
    assert!(matches!(second.reports(1).await.remove(0), Told::Cancelled(end) if end.lease == 9));
    stopped(&worker, second).await;
}

/// A lease whose heartbeats get no receipt ends one TTL later by the worker's clock (WP-24).
#[tokio::test]
async fn leases_without_receipts_expire() {
    let mut server = ScriptedServer::start().await;
    let (worker, mut attempts) = blocking_until(options(&server), Arc::new(Notify::new()));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.confirms_beats = false;
    stream.accept_as(proto::Registered { lease_ttl_s: Some(0.3), ..accepted() });
    stream.lease([lease_of(1)]);
    let attempt = soon(attempts.recv()).await.unwrap();
    soon(attempt.cancelled()).await;
    let Told::Fail(fail) = stream.reports(1).await.remove(0) else { panic!("no failure") };
    assert!(!fail.permanent && fail.message.contains("expired"), "{fail:?}");
    stopped(&worker, stream).await;
}

/// Heartbeats go on while a handler computes and blocks the only thread of its runtime (WP-26, R11).
// Covers R11.
#[tokio::test(flavor = "current_thread")]
async fn heartbeats_survive_a_blocked_runtime() {
    let mut server = ScriptedServer::start().await;
    let endpoint = server.endpoint();
    let beats = Arc::new(AtomicUsize::new(0));
    let enough = Arc::clone(&beats);
    // The worker has a runtime of its own, whose only thread its handler blocks.
    let blocked = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let options = WorkerOptions { endpoint, ..WorkerOptions::default() };
            let mut worker = Worker::new(options).unwrap();
            let handler = move |_: Attempt, _: Payload| {
                let enough = Arc::clone(&enough);
                async move {
                    while enough.load(Ordering::Acquire) < 5 {
                        std::thread::yield_now();
                    }
                    Ok::<_, HandlerError>(())
                }
            };
            worker.handler("echo", handler).unwrap();
            worker.run().await
        })
    });
    let mut stream = server.stream().await;
    stream.accept_as(proto::Registered { lease_ttl_s: Some(1.5), ..accepted() });
    stream.lease([lease_of(1)]);
    loop {
        match stream.next().await {
            Some(Said::Heartbeats(beat)) => {
                assert_eq!(beat.leases, [1]);
                stream.receipt(0, beat.number);
                beats.fetch_add(1, Ordering::Release);
            }
            Some(Said::Reports(reports)) => {
                let report = reports.reports[0].report.clone();
                assert!(matches!(report, Some(Told::Complete(_))), "{report:?}");
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    // A fatal answer ends the worker, and with it the thread.
    stream.end(Some(Status::permission_denied("enough")));
    let outcome = tokio::task::spawn_blocking(|| blocked.join()).await.unwrap().unwrap();
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::GaveUp);
}

/// A handler for code that blocks runs on a thread of its own, and hears when it should stop (R31).
// Covers R31.
#[tokio::test(flavor = "current_thread")]
async fn blocking_handlers_have_threads_of_their_own() {
    let mut server = ScriptedServer::start().await;
    let mut worker = Worker::new(options(&server)).unwrap();
    let patience = crate::scripted::PATIENCE;
    let handler = move |attempt: Attempt, (): ()| -> Result<(), HandlerError> {
        assert!(attempt.wait_cancelled(patience));
        Err(HandlerError::stopped())
    };
    worker.handler_blocking("echo", handler).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1)]);
    stream.abort(1);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Cancelled(_)));
    stopped(&worker, stream).await;
}

/// A stop asks for no more work, waits for what runs, and beats until the last receipt (WP-40 …
/// WP-44, R10).
// Covers R10.
#[tokio::test]
async fn a_stop_lets_handlers_finish() {
    let mut server = ScriptedServer::start().await;
    let go_on = Arc::new(Notify::new());
    let (worker, mut attempts) = blocking_until(options(&server), Arc::clone(&go_on));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept_as(proto::Registered { lease_ttl_s: Some(1.5), ..accepted() });
    stream.lease([lease_of(1)]);
    soon(attempts.recv()).await.unwrap();
    let serve = async {
        assert!(
            matches!(stream.next_but_beats().await, Some(Said::SetSlots(set)) if set.slots == 0)
        );
        stream.lease([lease_of(2)]);
        assert!(matches!(stream.reports(1).await.remove(0), Told::Nack(nack) if nack.lease == 2));
        for _ in 0..3 {
            let Some(Said::Heartbeats(beat)) = stream.next().await else { panic!("no heartbeat") };
            stream.receipt(0, beat.number);
        }
        go_on.notify_one();
        let Some(Said::Reports(message)) = stream.next_but_beats().await else {
            panic!("no report");
        };
        stream.receipt(message.number, 0);
        stream.finish().await;
    };
    tokio::join!(soon(worker.stop()), soon(worker.stop()), serve);
}

/// The hooks hear of a stream that begins and of its end, in order or not.
#[tokio::test]
async fn hooks_hear_of_every_stream_and_its_end() {
    let mut server = ScriptedServer::start().await;
    let (heard, mut news) = mpsc::unbounded_channel();
    let (connected, ended) = (heard.clone(), heard);
    let mut worker = Worker::new(WorkerOptions {
        on_connect: Some(Arc::new(move |_| connected.send("connected".to_owned()).unwrap())),
        on_disconnect: Some(Arc::new(move |_, reason| ended.send(reason.to_owned()).unwrap())),
        ..options(&server)
    })
    .unwrap();
    worker.handler("echo", echo).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    assert_eq!(soon(news.recv()).await.unwrap(), "connected");
    stream.cut();
    assert_eq!(soon(news.recv()).await.unwrap(), "cut");
    let stream = server.stream().await;
    stream.accept();
    assert_eq!(soon(news.recv()).await.unwrap(), "connected");
    stopped(&worker, stream).await;
    assert_eq!(soon(news.recv()).await.unwrap(), "the server ended the stream");
}

/// When the drain's time is up handlers are told to stop and reported as retryable (WP-42).
#[tokio::test]
async fn a_drain_that_times_out_tells_handlers_to_stop() {
    let mut server = ScriptedServer::start().await;
    let (worker, mut attempts) = blocking_until(options(&server), Arc::new(Notify::new()));
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1)]);
    soon(attempts.recv()).await.unwrap();
    let serve = async {
        assert!(matches!(stream.next_but_beats().await, Some(Said::SetSlots(_))));
        let Told::Fail(fail) = stream.reports(1).await.remove(0) else { panic!("no failure") };
        assert_eq!((fail.message.as_str(), fail.permanent), ("worker stopped", false));
        stream.finish().await;
    };
    tokio::join!(soon(worker.stop_within(Duration::ZERO)), serve);
}

/// A handler that ignores its token is reported without it, and dropped where it waits (WP-42).
#[tokio::test]
async fn handlers_that_do_not_end_are_reported_without_them() {
    let mut server = ScriptedServer::start().await;
    let dropped = CancelledOnDrop::default();
    let (token, handler_token) = (dropped.0.clone(), dropped);
    let mut worker = Worker::new(options(&server)).unwrap();
    let held = Arc::new(std::sync::Mutex::new(Some(handler_token)));
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let handler = move |_: Attempt, (): ()| {
        let guard = held.lock().unwrap().take();
        begins.notify_one();
        async move {
            std::future::pending::<()>().await;
            drop(guard);
            Ok::<_, HandlerError>(())
        }
    };
    worker.handler("echo", handler).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1)]);
    soon(begun.notified()).await;
    let serve = async {
        assert!(matches!(stream.next_but_beats().await, Some(Said::SetSlots(_))));
        let Told::Fail(fail) = stream.reports(1).await.remove(0) else { panic!("no failure") };
        assert_eq!(fail.message, "worker stopped");
        stream.finish().await;
    };
    tokio::join!(soon(worker.stop_within(Duration::ZERO)), serve);
    soon(token.cancelled()).await;
}

/// Tells when it is dropped.
#[derive(Default)]
struct CancelledOnDrop(crate::CancellationToken);

impl Drop for CancelledOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Redirects are followed at once, told to the hook, and back again after three in a row (RR-09,
/// RR-10, RR-16, R15).
// Covers R15.
#[tokio::test]
async fn redirects_are_followed_three_times() {
    let mut configured = ScriptedServer::start().await;
    let other = ScriptedServer::start().await;
    let target = format!("http://{}", other.endpoint());
    configured.refuse_stream(redirect(&target));
    for _ in 0..3 {
        other.refuse_stream(redirect(&target));
    }
    let (told, mut redirects) = mpsc::unbounded_channel();
    let hooked = WorkerOptions {
        on_redirect: Some(Arc::new(move |endpoint, refused| {
            told.send((endpoint.to_owned(), refused.is_empty())).unwrap();
        })),
        ..options(&configured)
    };
    let mut worker = Worker::new(hooked).unwrap();
    worker.handler("echo", echo).unwrap();
    worker.start().unwrap();
    let stream = configured.stream().await;
    stream.accept();
    soon(worker.wait_ready()).await.unwrap();
    for is_followed in [true, true, true, false] {
        assert_eq!(soon(redirects.recv()).await.unwrap(), (target.clone(), is_followed));
    }
    stopped(&worker, stream).await;
}

/// A redirect may come with the initial metadata too, and the token goes where it may (RR-15).
#[tokio::test]
async fn the_token_follows_a_redirect_to_loopback() {
    let configured = ScriptedServer::start().await;
    let mut other = ScriptedServer::start().await;
    configured.refuse_stream(redirect(&format!("http://{}", other.endpoint())));
    let token = Some("secret-token-of-16".to_owned());
    let mut worker = Worker::new(WorkerOptions { token, ..options(&configured) }).unwrap();
    worker.handler("echo", echo).unwrap();
    worker.start().unwrap();
    let stream = other.stream().await;
    assert!(stream.metadata.contains_key("authorization"));
    stream.accept();
    stopped(&worker, stream).await;
}

/// A code that no retry can change ends the worker, which says why (RR-06).
#[tokio::test]
async fn fatal_codes_end_the_worker() {
    let server = ScriptedServer::start().await;
    server.refuse_stream(refusal(Code::PermissionDenied, "POOL_NOT_ALLOWED"));
    let worker = echoing(&server);
    let error = soon(worker.run()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::GaveUp);
    assert_eq!(error.details()["code"], "PERMISSION_DENIED");
    assert!(!worker.is_ready());
}

/// Standbys, ends in order and servers that are away are reasons to come again (RR-03, RR-06, R14).
// Covers R14.
#[tokio::test]
async fn other_ends_are_reasons_to_come_again() {
    let mut server = ScriptedServer::start().await;
    server.refuse_stream(refusal(Code::Unavailable, "NOT_LEADER"));
    server.refuse_stream(Status::internal("a defect"));
    let worker = echoing(&server);
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.end(None);
    let mut stream = server.stream().await;
    stream.accept();
    let shutdown = proto::Shutdown { reason: "update".to_owned(), not_leader: true };
    stream.send(Heard::Shutdown(shutdown));
    stream.end(None);
    let stream = server.stream().await;
    stream.accept();
    soon(worker.wait_ready()).await.unwrap();
    stopped(&worker, stream).await;
}

/// A listener that takes connections and never speaks counts as unreachable (RR-08, R8).
// Covers R8.
#[tokio::test]
async fn a_silent_listener_is_given_up() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = WorkerOptions {
        endpoint: silent.local_addr().unwrap().to_string(),
        connect_timeout: Duration::from_millis(50),
        ..WorkerOptions::default()
    };
    let connect = ConnectOptions::of_worker(&options).unwrap();
    let error = soon(crate::transport::dial(&connect, &connect.endpoint)).await.unwrap_err();
    assert!(error.is_unavailable());
    assert_eq!(error.executed(), Some(false));
}

/// Progress goes out with heartbeats, and the last word of the attempt before comes with the lease
/// (WP-25).
#[tokio::test]
async fn progress_is_told_and_handed_on() {
    let mut server = ScriptedServer::start().await;
    let mut worker = Worker::new(options(&server)).unwrap();
    let handler = |attempt: Attempt, (): ()| async move {
        let last = attempt.last_progress();
        attempt.progress(b"half", 0.5)?;
        assert!(attempt.progress([0; 1025], None).is_err());
        assert!(attempt.progress(b"", 1.5).is_err());
        Ok::<_, HandlerError>(last.map(|progress| progress.fraction))
    };
    worker.handler("echo", handler).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    let last = proto::Progress { data: (&b"before"[..]).into(), fraction: Some(0.25) };
    stream.lease([proto::Lease { last_progress: Some(last), ..lease_of(1) }]);
    let Some(Said::Heartbeats(beat)) = stream.next().await else { panic!("no heartbeat") };
    let told = beat.progress[0].progress.clone().unwrap();
    assert_eq!((&told.data[..], told.fraction), (&b"half"[..], Some(0.5)));
    let Told::Complete(complete) = stream.reports(1).await.remove(0) else { panic!("no result") };
    assert_eq!(&complete.output[..], b"0.25");
    stopped(&worker, stream).await;
}

/// A handler reads what its parents returned.
#[tokio::test]
async fn outputs_of_parents_are_fetched() {
    let mut server = ScriptedServer::start().await;
    server.reply::<proto::Output>("get_output", Err(Status::unavailable("not yet")));
    server.reply(
        "get_output",
        Ok(proto::Output {
            output: Some((&b"41"[..]).into()),
            content_type: "application/json".to_owned(),
            status: TaskStatus::Succeeded.number(),
        }),
    );
    let mut worker = Worker::new(options(&server)).unwrap();
    let handler = |attempt: Attempt, (): ()| async move {
        Ok::<_, HandlerError>(attempt.output::<u32>(attempt.parents()[0]).await? + 1)
    };
    worker.handler("echo", handler).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([proto::Lease { parents: vec![77], ..lease_of(1) }]);
    let Told::Complete(complete) = stream.reports(1).await.remove(0) else { panic!("no result") };
    assert_eq!(&complete.output[..], b"42");
    let request = proto::GetOutputRequest { lease: 1, task_id: 77 };
    assert_eq!(server.requests::<proto::GetOutputRequest>("get_output"), [request; 2]);
    stopped(&worker, stream).await;
}

struct Counting(Arc<AtomicUsize>);

impl Interceptor for Counting {
    fn around(
        &self,
        _attempt: Attempt,
        next: Next,
    ) -> futures_util::future::BoxFuture<'static, Result<(), HandlerError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(next.run())
    }
}

/// Interceptors are called around every handler and see how it ends.
#[tokio::test]
async fn interceptors_surround_handlers() {
    let mut server = ScriptedServer::start().await;
    let count = Arc::new(AtomicUsize::new(0));
    let (told, mut ends) = mpsc::unbounded_channel();
    let closure = move |_: Attempt, next: Next| {
        let told = told.clone();
        async move {
            let ended = next.run().await;
            told.send(ended.as_ref().map_err(ToString::to_string).err()).unwrap();
            ended
        }
    };
    let interceptors: Vec<Arc<dyn Interceptor>> =
        vec![Arc::new(Counting(Arc::clone(&count))), Arc::new(closure)];
    let mut worker = Worker::new(WorkerOptions { interceptors, ..options(&server) }).unwrap();
    worker.handler("echo", echo).unwrap();
    let failing = |_: Attempt, (): ()| async { Err::<(), _>(HandlerError::permanent("no")) };
    worker.handler("fail", failing).unwrap();
    worker.start().unwrap();
    let mut stream = server.stream().await;
    stream.accept();
    stream.lease([lease_of(1)]);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Complete(_)));
    stream.lease([proto::Lease { kind: "fail".to_owned(), ..lease_of(2) }]);
    assert!(matches!(stream.reports(1).await.remove(0), Told::Fail(fail) if fail.message == "no"));
    assert_eq!(count.load(Ordering::Relaxed), 2);
    assert_eq!(ends.recv().await.unwrap(), None);
    assert_eq!(ends.recv().await.unwrap().unwrap(), "permanent: no");
    stopped(&worker, stream).await;
}

/// Connections are encrypted with the worker's own settings, and files are read for each (RR-20).
#[tokio::test]
async fn tls_files_are_read_for_each_connection() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk-python/tests/certs");
    let authority = Certificate::from_pem(std::fs::read(folder.join("ca.pem")).unwrap());
    let tls = ServerTlsConfig::new().identity(server_identity(&folder)).client_ca_root(authority);
    let mut server = ScriptedServer::start_with(Some(tls)).await;
    let own = std::env::temp_dir().join(format!("cronoq-tls-{}", std::process::id()));
    std::fs::create_dir_all(&own).unwrap();
    for name in ["client.pem", "client.key"] {
        std::fs::copy(folder.join(name), own.join(name)).unwrap();
    }
    // Not there yet: that is a reason to come again.
    let files = TlsOptions {
        ca: Some(own.join("ca.pem")),
        cert: Some(own.join("client.pem")),
        key: Some(own.join("client.key")),
    };
    let endpoint = format!("localhost:{}", server.address.port());
    let mut worker =
        Worker::new(WorkerOptions { endpoint, tls: Some(files), ..options(&server) }).unwrap();
    worker.handler("echo", echo).unwrap();
    worker.start().unwrap();
    std::fs::copy(folder.join("ca.pem"), own.join("ca.pem")).unwrap();
    let stream = server.stream().await;
    stream.accept();
    soon(worker.wait_ready()).await.unwrap();
    stopped(&worker, stream).await;
    std::fs::remove_dir_all(&own).unwrap();
}

/// Options out of their range, a worker without handlers and a second start are refused (R13).
// Covers R13.
#[tokio::test]
async fn what_cannot_work_is_refused() {
    let refused = |options: WorkerOptions| Worker::new(options).unwrap_err().kind();
    let short = Keepalive { interval: Duration::from_secs(9), ..Keepalive::default() };
    for options in [
        WorkerOptions { slots: 0, ..WorkerOptions::default() },
        WorkerOptions { endpoint: "ftp://x".to_owned(), ..WorkerOptions::default() },
        WorkerOptions { keepalive: short, ..WorkerOptions::default() },
        WorkerOptions { token: Some("a\nb".to_owned()), ..WorkerOptions::default() },
        WorkerOptions {
            backoff: Backoff { initial: Duration::ZERO, ..Backoff::default() },
            ..WorkerOptions::default()
        },
        WorkerOptions {
            tls: Some(TlsOptions { cert: Some("x".into()), ..TlsOptions::default() }),
            ..WorkerOptions::default()
        },
    ] {
        assert_eq!(refused(options), ErrorKind::InvalidOption);
    }
    let mut worker = Worker::new(WorkerOptions::default()).unwrap();
    assert_eq!(worker.start().unwrap_err().kind(), ErrorKind::InvalidOption);
    worker.handler("echo", echo).unwrap();
    assert!(worker.handler("echo", echo).is_err());
    worker.start().unwrap();
    assert_eq!(worker.start().unwrap_err().kind(), ErrorKind::Closed);
    soon(worker.stop()).await;
    worker.start().unwrap();
    soon(worker.stop()).await;
}

/// No option and no error ever shows the token.
#[test]
fn tokens_are_never_shown() {
    let token = Some("a-very-secret-token".to_owned());
    let worker = WorkerOptions { token: token.clone(), ..WorkerOptions::default() };
    let client = crate::ClientOptions { token, ..crate::ClientOptions::default() };
    assert!(!format!("{worker:?} {client:?}").contains("secret"));
}
