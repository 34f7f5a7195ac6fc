//! What a session says and believes, by a clock of the test's own.

use tokio::sync::mpsc;

use super::*;
use crate::payload::Encoded;
use crate::proto::report::Report as Told;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u32) -> Moment {
    SECOND * seconds
}

/// A session and what it writes.
struct Bench {
    session: Session,
    written: mpsc::UnboundedReceiver<proto::WorkerMessage>,
}

impl Bench {
    fn new(answer: &proto::Registered) -> Self {
        let mut session = Session::new(proto::Register::default(), 4 * 1024 * 1024);
        session.opening(Moment::ZERO);
        let (outbox, written) = mpsc::unbounded_channel();
        session.registered(answer, outbox, Moment::ZERO);
        Self { session, written }
    }

    /// A session of the present version with a TTL of 30 s.
    fn open() -> Self {
        Self::new(&accepted())
    }

    fn take(&mut self) -> Vec<Said> {
        std::iter::from_fn(|| self.written.try_recv().ok())
            .filter_map(|said| said.message)
            .collect()
    }

    fn lease(&mut self, leases: &[u64], now: Moment) -> Vec<Arc<Run>> {
        let leases = leases.iter().map(|lease| lease_of(*lease)).collect();
        self.receive(Heard::Leases(proto::LeaseBatch { leases }), now).begun
    }

    fn receive(&mut self, message: Heard, now: Moment) -> Received {
        self.session.receive(proto::ServerMessage { message: Some(message) }, now)
    }

    fn receipt(&mut self, reports: u64, heartbeats: u64) {
        self.receive(Heard::Receipt(proto::Receipt { reports, heartbeats }), at(1));
    }

    /// Breaks the stream and registers again with this answer; tells what was lost.
    fn resume(
        &mut self,
        answer: &proto::Registered,
        now: Moment,
    ) -> (Option<proto::Resume>, Vec<u64>) {
        self.session.broken();
        let Some(Said::Register(register)) = self.session.opening(now).message else {
            panic!("the first message is no registration");
        };
        let (outbox, written) = mpsc::unbounded_channel();
        self.written = written;
        let lost = self.session.registered(answer, outbox, now);
        (register.resume, lost.iter().map(|run| run.lease()).collect())
    }
}

fn accepted() -> proto::Registered {
    proto::Registered {
        protocol_version: PROTOCOL_VERSION,
        lease_ttl_s: Some(30.0),
        session_token: Bytes::from_static(b"token"),
        ..proto::Registered::default()
    }
}

fn lease_of(lease: u64) -> proto::Lease {
    proto::Lease { lease, task_id: 1000 + lease, attempt: 1, ..proto::Lease::default() }
}

fn completed(size: usize) -> Outcome {
    Outcome::Completed(Encoded { payload: vec![0; size], content_type: String::new() })
}

fn reports_in(said: Vec<Said>) -> Vec<(u64, Vec<proto::Report>)> {
    let reports = |said| match said {
        Said::Reports(reports) => Some((reports.number, reports.reports)),
        _ => None,
    };
    said.into_iter().filter_map(reports).collect()
}

fn beats_in(said: Vec<Said>) -> Vec<proto::Heartbeats> {
    let beats = |said| match said {
        Said::Heartbeats(beats) => Some(beats),
        _ => None,
    };
    said.into_iter().filter_map(beats).collect()
}

/// Every third of the TTL one message names all leases; the last one, empty, says that none is left
/// (WP-23).
#[test]
fn beats_every_third_of_the_ttl() {
    let mut bench = Bench::open();
    let run = bench.lease(&[5], at(1)).remove(0);
    assert_eq!(bench.session.next_pulse(), at(10));
    bench.session.pulse(at(10));
    let beat = beats_in(bench.take()).remove(0);
    assert_eq!((beat.leases, beat.last_lease, beat.number), (vec![5], 5, 1));
    bench.session.report(vec![(run, completed(1))], at(11));
    bench.take();
    bench.session.pulse(at(20));
    let last = beats_in(bench.take()).remove(0);
    assert_eq!((last.leases, last.number), (vec![], 2));
    bench.session.pulse(at(30));
    assert!(bench.take().is_empty());
}

/// A lease ends one TTL after the last heartbeat with a receipt was sent (WP-24).
#[test]
fn leases_end_by_the_workers_own_clock() {
    let mut bench = Bench::open();
    let run = bench.lease(&[1], at(0)).remove(0);
    bench.session.pulse(at(10));
    bench.session.pulse(at(20));
    bench.receipt(0, 1);
    assert!(bench.session.pulse(at(39)).is_empty());
    assert_eq!(bench.session.pulse(at(40)).len(), 1);
    assert_eq!(run.stop(), Some(Stop::Expired));
    assert!(run.cancelled.is_cancelled());
    assert!(bench.session.pulse(at(41)).is_empty());
}

/// A lease with a TTL of its own counts by that one.
#[test]
fn leases_may_have_a_ttl_of_their_own() {
    let mut bench = Bench::open();
    let lease = proto::Lease { lease_ttl_s: Some(3.0), ..lease_of(1) };
    bench.receive(Heard::Lease(lease), at(0));
    assert_eq!(bench.session.next_pulse(), at(1));
    assert_eq!(bench.session.pulse(at(3)).len(), 1);
}

/// A lease that was seen, running or ended, is ignored (WP-12).
#[test]
fn leases_seen_before_are_ignored() {
    let mut bench = Bench::open();
    let run = bench.lease(&[1], at(0)).remove(0);
    assert!(bench.lease(&[1], at(1)).is_empty());
    bench.session.report(vec![(run, completed(1))], at(1));
    assert!(bench.lease(&[1], at(2)).is_empty());
    assert_eq!(bench.lease(&[2], at(2)).len(), 1);
}

/// What ends together is reported together, numbered from 1, and kept until its receipt (WP-20 …
/// WP-22).
#[test]
fn reports_are_kept_until_their_receipt() {
    let mut bench = Bench::open();
    let runs = bench.lease(&[1, 2, 3], at(0));
    let [first, second, third] = runs.try_into().unwrap_or_else(|_| panic!("three runs"));
    bench.session.report(vec![(first, completed(1)), (second, completed(1))], at(1));
    bench.session.report(vec![(third, completed(1))], at(1));
    let reports = reports_in(bench.take());
    assert_eq!(
        reports.iter().map(|(n, reports)| (*n, reports.len())).collect::<Vec<_>>(),
        [(1, 2), (2, 1)]
    );
    bench.receipt(1, 0);
    assert_eq!(bench.session.unconfirmed_tasks(), [1003]);
    bench.receipt(2, 0);
    assert!(bench.session.is_settled());
}

/// Reports are split by count and by size (WP-20).
#[test]
fn reports_are_split_by_count_and_size() {
    let mut bench = Bench::open();
    let leases: Vec<u64> = (1..=501).collect();
    let runs = bench.lease(&leases, at(0));
    bench.session.report(runs.into_iter().map(|run| (run, completed(1))).collect(), at(1));
    let sizes: Vec<usize> = reports_in(bench.take()).iter().map(|(_, list)| list.len()).collect();
    assert_eq!(sizes, [500, 1]);
    let runs = bench.lease(&[601, 602, 603], at(2));
    let big = runs.into_iter().map(|run| (run, completed(3 * 1024 * 1024))).collect();
    bench.session.report(big, at(2));
    let reports = reports_in(bench.take());
    assert_eq!(reports.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3, 4, 5]);
}

/// An output that no message can carry is a permanent failure, found before sending (WP-18, R19).
// Covers R19.
#[test]
fn outputs_too_large_fail_for_good() {
    let limit = 1024 * 1024;
    let mut bench = Bench::new(&proto::Registered { max_message_bytes: limit, ..accepted() });
    let most = limit as usize - MESSAGE_ROOM;
    let runs = bench.lease(&[1, 2], at(0));
    let sizes = [most, most + 1];
    bench.session.report(runs.into_iter().zip(sizes.map(completed)).collect(), at(1));
    let told: Vec<Told> = reports_in(bench.take())
        .into_iter()
        .flat_map(|(_, reports)| reports)
        .filter_map(|report| report.report)
        .collect();
    assert!(matches!(&told[0], Told::Complete(complete) if complete.output.len() == most));
    let text = format!("output too large ({} > {most})", most + 1);
    assert!(matches!(&told[1], Told::Fail(fail) if fail.permanent && fail.message == text));
}

/// An aborted lease is reported as cancelled, whatever its handler came to (WP-15, WP-16).
#[test]
fn aborted_leases_end_as_cancelled() {
    let mut bench = Bench::open();
    let run = bench.lease(&[1], at(0)).remove(0);
    let aborts = [1, 99].map(|lease| proto::Abort { lease, reason: "client".to_owned() });
    let batch = proto::AbortBatch { aborts: aborts.to_vec() };
    assert_eq!(bench.receive(Heard::Aborts(batch.clone()), at(1)).stopped.len(), 1);
    assert!(bench.receive(Heard::Aborts(batch), at(1)).stopped.is_empty());
    assert_eq!(run.stop_reason(), "client");
    bench.session.pulse(at(10));
    assert_eq!(beats_in(bench.take()).remove(0).leases, [1]);
    bench.session.report(vec![(run, completed(1))], at(11));
    let report = reports_in(bench.take()).remove(0).1.remove(0);
    assert_eq!(report.report, Some(Told::Cancelled(proto::Cancelled { lease: 1 })));
}

/// A resume names every lease without receipt; the adopted go on, the others stop, reports above
/// those seen are sent again (WP-30 … WP-33).
#[test]
fn a_resume_names_running_and_finished_leases() {
    let mut bench = Bench::open();
    let runs = bench.lease(&[1, 2, 3, 4], at(0));
    bench.session.report(vec![(Arc::clone(&runs[0]), completed(1))], at(1));
    bench.session.report(vec![(Arc::clone(&runs[1]), completed(1))], at(1));
    let answer = proto::Registered { adopted: vec![3], reports_seen: 1, ..accepted() };
    let (resume, lost) = bench.resume(&answer, at(20));
    let resume = resume.unwrap();
    assert_eq!(resume.session_token, Bytes::from_static(b"token"));
    let mut named = resume.leases;
    named.sort_unstable();
    assert_eq!(named, [1, 2, 3, 4]);
    assert_eq!(lost, [4]);
    assert_eq!(runs[3].stop(), Some(Stop::Lost));
    let again = reports_in(bench.take());
    assert_eq!(again.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [2]);
    // The adopted lease counts from the registration that adopted it.
    assert!(bench.session.pulse(at(49)).is_empty());
    assert_eq!(bench.session.pulse(at(50)).len(), 1);
    // Nothing is reported for a lost lease.
    bench.take();
    bench.session.report(vec![(Arc::clone(&runs[3]), completed(1))], at(51));
    assert!(reports_in(bench.take()).is_empty());
}

/// A server that began anew holds no lease of old reports, and may use old numbers (WP-34).
#[test]
fn a_server_that_began_anew_is_not_told_of_old_leases() {
    let mut bench = Bench::open();
    let runs = bench.lease(&[1, 2], at(0));
    bench.session.report(vec![(Arc::clone(&runs[0]), completed(1))], at(1));
    bench.receipt(1, 0);
    bench.session.report(vec![(Arc::clone(&runs[1]), completed(1))], at(1));
    bench.resume(&accepted(), at(2));
    assert!(bench.take().is_empty());
    assert!(bench.session.is_settled());
    assert_eq!(bench.lease(&[1], at(3)).len(), 1);
}

/// The last progress goes out within a second, and before the report (WP-25, R33).
// Covers R33.
#[test]
fn progress_goes_out_soon_and_before_the_report() {
    let mut bench = Bench::open();
    let run = bench.lease(&[1], at(0)).remove(0);
    let progress = |part| proto::Progress { data: Bytes::new(), fraction: Some(part) };
    run.set_progress(progress(0.1));
    run.set_progress(progress(0.2));
    bench.session.note_progress();
    assert_eq!(bench.session.next_pulse(), at(1));
    bench.session.pulse(at(1));
    let beat = beats_in(bench.take()).remove(0);
    assert_eq!(beat.progress[0].progress, Some(progress(0.2)));
    run.set_progress(progress(0.9));
    bench.session.report(vec![(run, completed(1))], at(1));
    let said = bench.take();
    assert!(
        matches!(&said[0], Said::Heartbeats(beat) if beat.progress[0].progress == Some(progress(0.9)))
    );
    assert!(matches!(&said[1], Said::Reports(_)));
}

/// Heartbeats carry no more progress than fits, and the rest with the next ones (WP-25).
#[test]
fn progress_goes_out_as_far_as_it_fits() {
    let mut bench = Bench::open();
    let runs = bench.lease(&(1..=6_000).collect::<Vec<_>>(), at(0));
    for run in &runs {
        run.set_progress(proto::Progress { data: vec![0; 1024].into(), fraction: Some(0.5) });
    }
    bench.session.note_progress();
    bench.session.pulse(at(1));
    assert_eq!(bench.session.next_pulse(), at(2));
    bench.session.report(runs.into_iter().map(|run| (run, completed(1))).collect(), at(1));
    let said = bench.take();
    assert!(said.iter().all(|said| match said {
        Said::Heartbeats(beat) =>
            beat.encoded_len() < 4 * 1024 * 1024 && beat.leases.len() == 6_000,
        _ => true,
    }));
    let told: usize = beats_in(said).iter().map(|beat| beat.progress.len()).sum();
    assert_eq!(told, 6_000);
}

/// A draining worker asks for no slots, again after each registration, and gives back what comes
/// late (WP-40, WP-41).
#[test]
fn draining_asks_for_nothing_and_gives_back() {
    let mut bench = Bench::open();
    bench.session.drain();
    bench.session.drain();
    assert_eq!(bench.take().len(), 1);
    assert!(bench.lease(&[1], at(1)).is_empty());
    let report = reports_in(bench.take()).remove(0).1.remove(0);
    assert!(matches!(report.report, Some(Told::Nack(nack)) if nack.lease == 1));
    bench.resume(&proto::Registered { adopted: vec![1], ..accepted() }, at(2));
    assert!(bench.take().iter().any(|said| matches!(said, Said::SetSlots(set) if set.slots == 0)));
    assert!(!bench.session.is_serving);
}

/// An old server gets single messages, and reports are forgotten once written (v3).
#[test]
fn old_servers_get_single_messages() {
    let answer = proto::Registered { protocol_version: 3, ..accepted() };
    let mut bench = Bench::new(&answer);
    let runs = bench.lease(&[1, 2], at(0));
    bench.session.pulse(at(10));
    let beats = bench.take();
    assert!(beats.iter().all(|said| matches!(said, Said::Heartbeat(_))) && beats.len() == 2);
    // A written heartbeat counts as read.
    assert!(bench.session.pulse(at(39)).is_empty());
    bench.take();
    bench.session.report(vec![(Arc::clone(&runs[0]), completed(1))], at(39));
    assert!(matches!(&bench.take()[..], [Said::Complete(complete)] if complete.lease == 1));
    assert!(bench.session.unconfirmed_tasks().is_empty());
    let answer = proto::Registered { protocol_version: 3, ..accepted() };
    let (_, lost) = bench.resume(&answer, at(40));
    assert_eq!(lost, [2]);
}

/// Word of a shutdown ends readiness, and says whether another server leads (WP-03, WP-45).
#[test]
fn a_shutdown_ends_readiness() {
    let mut bench = Bench::open();
    assert!(bench.session.is_serving);
    let shutdown = proto::Shutdown { reason: "update".to_owned(), not_leader: true };
    assert!(bench.receive(Heard::Shutdown(shutdown), at(1)).shutdown.is_some());
    assert!(!bench.session.is_serving && bench.session.saw_not_leader);
    assert!(bench.session.is_registered);
}
