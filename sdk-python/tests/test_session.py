"""Holds one worker's session to docs/spec/worker-protocol.md, without any connection."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_server import make_lease

from cronoq._outcome import MESSAGE_BYTES_MAX, Cancelled, Completed, Failed, Nacked, clean_message
from cronoq._proto import workers_pb2
from cronoq._session import Received, Run, Session, Stop

TTL = 30.0
MESSAGE_BYTES = 4 * 1024 * 1024


class Peer:
    """The server's side: what was written, and what it answers."""

    def __init__(self, max_message_bytes: int = MESSAGE_BYTES) -> None:
        self.session = Session(workers_pb2.Register(slots=8), max_message_bytes)
        self.written: list[workers_pb2.WorkerMessage] = []
        self.max_message_bytes = max_message_bytes

    def connect(self, now: float = 0.0, **fields: Any) -> list[Run]:
        """Opens a stream and accepts it."""
        self.opening = self.session.opening(now).register
        self.written = []
        answer = {
            "protocol_version": 4,
            "lease_ttl_s": TTL,
            "session_token": b"t",
            "slots": 8,
            "max_message_bytes": self.max_message_bytes,
        } | fields
        return self.session.registered(workers_pb2.Registered(**answer), self.written.append, now)

    def send(self, now: float = 0.0, **fields: Any) -> Received:
        """Sends one message to the worker."""
        return self.session.receive(workers_pb2.ServerMessage(**fields), now)

    def lease(self, *leases: workers_pb2.Lease, now: float = 0.0) -> list[Run]:
        """Sends leases."""
        return self.send(now, leases=workers_pb2.LeaseBatch(leases=leases)).begun

    def receipt(self, reports: int = 0, heartbeats: int = 0) -> None:
        """Confirms."""
        self.send(receipt=workers_pb2.Receipt(reports=reports, heartbeats=heartbeats))

    def kinds(self) -> list[str | None]:
        """What was written since the last look."""
        kinds = [message.WhichOneof("message") for message in self.written]
        return list(kinds)


def _done(run: Run) -> tuple[Run, Completed]:
    return run, Completed(b"1", "application/json")


@pytest.fixture
def peer() -> Peer:
    """A connected session."""
    peer = Peer()
    peer.connect()
    return peer


def test_attempts_that_end_together_are_reported_together(peer: Peer) -> None:
    """Many ends make one message with a number (WP-20, WP-21)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 101)))
    peer.session.report([_done(run) for run in runs], 1.0)
    assert peer.kinds() == ["reports"]
    assert list(range(1, 101)) == [r.complete.lease for r in peer.written[0].reports.reports]
    assert peer.written[0].reports.number == 1


def test_reports_are_split_by_count(peer: Peer) -> None:
    """No message holds more than 500 reports (WP-20)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 1102)))
    peer.session.report([_done(run) for run in runs], 1.0)
    assert [len(m.reports.reports) for m in peer.written] == [500, 500, 101]
    assert [m.reports.number for m in peer.written] == [1, 2, 3]


def test_reports_are_split_by_size() -> None:
    """No message is larger than the server takes (WP-20)."""
    peer = Peer(1024 * 1024)
    peer.connect()
    runs = peer.lease(*(make_lease(n) for n in range(1, 8)))
    output = b"x" * (400 * 1024)
    peer.session.report([(run, Completed(output, "")) for run in runs], 1.0)
    assert [len(m.reports.reports) for m in peer.written] == [2, 2, 2, 1]
    assert max(m.ByteSize() for m in peer.written) <= 1024 * 1024


@pytest.mark.regression("R19")
@pytest.mark.parametrize(("extra", "fails"), [(-1, False), (0, False), (1, True)])
def test_an_output_over_the_limit_fails_permanently(extra: int, fails: bool) -> None:
    """The limit is the largest message less 64 KiB, and the reason says so (WP-18)."""
    peer = Peer()
    peer.connect()
    limit = MESSAGE_BYTES - 64 * 1024
    (run,) = peer.lease(make_lease(1))
    peer.session.report([(run, Completed(b"x" * (limit + extra), ""))], 1.0)
    report = peer.written[0].reports.reports[0]
    assert fails == (report.WhichOneof("report") == "fail")
    if fails:
        assert report.fail.permanent
        assert report.fail.message == f"output too large ({limit + 1} > {limit})"


def test_a_lease_that_comes_twice_is_ignored(peer: Peer) -> None:
    """Neither while it runs nor after it ended is it run again (WP-12)."""
    (run,) = peer.lease(make_lease(1))
    assert peer.lease(make_lease(1)) == []
    peer.session.report([_done(run)], 1.0)
    assert peer.lease(make_lease(1)) == []


def test_an_abort_for_an_unknown_lease_is_ignored(peer: Peer) -> None:
    """It may have ended just now (WP-15)."""
    assert peer.send(abort=workers_pb2.Abort(lease=9)).stopped == []


def test_an_aborted_lease_ends_as_cancelled_whatever_its_handler_came_to(peer: Peer) -> None:
    """The report is Cancelled, sent when the handler has ended (WP-16)."""
    (run,) = peer.lease(make_lease(1))
    aborts = workers_pb2.AbortBatch(aborts=[workers_pb2.Abort(lease=1, reason="timeout")])
    assert [run] == peer.send(aborts=aborts).stopped
    assert run.stop is Stop.ABORTED
    assert run.stop_reason == "timeout"
    peer.session.report([_done(run)], 1.0)
    assert peer.written[0].reports.reports[0].WhichOneof("report") == "cancelled"


def test_heartbeats_name_every_lease_without_a_report(peer: Peer) -> None:
    """Aborted ones included, with the highest lease seen (WP-23)."""
    first, *_ = peer.lease(make_lease(1), make_lease(2), make_lease(7))
    peer.send(abort=workers_pb2.Abort(lease=2))
    peer.session.report([_done(first)], 1.0)
    assert peer.session.next_pulse(1.0) == pytest.approx(TTL / 3)
    peer.session.pulse(TTL / 3)
    beat = peer.written[-1].heartbeats
    assert list(beat.leases) == [2, 7]
    assert (beat.last_lease, beat.number) == (7, 1)


def test_an_idle_worker_says_so_once(peer: Peer) -> None:
    """After the last lease one empty heartbeat is sent, then none (WP-23)."""
    (run,) = peer.lease(make_lease(1))
    peer.session.pulse(10.0)
    peer.session.report([_done(run)], 11.0)
    for now in (20.0, 30.0, 40.0):
        peer.session.pulse(now)
    assert peer.kinds() == ["heartbeats", "reports", "heartbeats"]
    assert list(peer.written[-1].heartbeats.leases) == []


def test_a_lease_ends_one_ttl_after_the_last_confirmed_heartbeat(peer: Peer) -> None:
    """The instant of sending counts, not that of the receipt (WP-24)."""
    (run,) = peer.lease(make_lease(1), now=1.0)
    assert peer.session.pulse(10.0) == []
    assert peer.session.pulse(20.0) == []
    peer.receipt(heartbeats=1)
    assert peer.session.pulse(39.9) == []
    assert [run] == peer.session.pulse(40.0)
    assert run.stop is Stop.EXPIRED
    assert peer.session.pulse(50.0) == []


def test_a_lease_without_any_receipt_ends_one_ttl_after_its_arrival(peer: Peer) -> None:
    """A lost receipt never makes a lease last longer than the server granted (WP-24)."""
    (run,) = peer.lease(make_lease(1), now=5.0)
    assert peer.session.pulse(34.9) == []
    assert [run] == peer.session.pulse(35.0)


def test_a_lease_may_have_a_ttl_of_its_own(peer: Peer) -> None:
    """It sets the pace of heartbeats and its own end."""
    (run,) = peer.lease(make_lease(1, lease_ttl_s=3.0))
    assert peer.session.next_pulse(0.0) == pytest.approx(1.0)
    assert [run] == peer.session.pulse(3.0)


def test_an_expired_lease_is_reported_as_retryable(peer: Peer) -> None:
    """If the server still holds it, its attempt goes on elsewhere (WP-24)."""
    (run,) = peer.lease(make_lease(1))
    peer.session.pulse(TTL)
    peer.session.report([(run, Failed(Stop.EXPIRED.value))], TTL)
    fail = peer.written[-1].reports.reports[0].fail
    assert not fail.permanent
    assert "lease expired" in fail.message


def test_a_resume_names_running_and_unconfirmed_leases(peer: Peer) -> None:
    """Everything whose report has no receipt, with the session's token (WP-30)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 5)))
    peer.session.report([_done(runs[0])], 1.0)
    peer.session.report([_done(runs[1])], 1.0)
    peer.receipt(reports=1)
    peer.session.broken()
    peer.connect(2.0, adopted=[2, 3, 4])
    assert peer.opening.resume.session_token == b"t"
    assert sorted(peer.opening.resume.leases) == [2, 3, 4]


def test_a_first_registration_resumes_nothing() -> None:
    """There is no token yet (WP-01)."""
    peer = Peer()
    peer.connect()
    assert not peer.opening.HasField("resume")


def test_leases_that_are_not_adopted_are_lost_and_not_reported(peer: Peer) -> None:
    """Their handlers are told to stop; nobody waits for what they come to (WP-32)."""
    kept, lost = peer.lease(make_lease(1), make_lease(2))
    peer.session.broken()
    assert [lost] == peer.connect(2.0, adopted=[1])
    assert kept.stop is None
    peer.session.report([_done(kept), _done(lost)], 3.0)
    assert [r.complete.lease for r in peer.written[-1].reports.reports] == [1]
    peer.receipt(reports=1)
    assert peer.session.is_settled


def test_reports_the_server_has_not_read_are_sent_again(peer: Peer) -> None:
    """With the numbers they had; those it has read are only awaited (WP-33)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 4)))
    for run in runs:
        peer.session.report([_done(run)], 1.0)
    peer.session.broken()
    peer.connect(2.0, reports_seen=1)
    assert [m.reports.number for m in peer.written] == [2, 3]
    assert not peer.session.is_settled
    peer.receipt(reports=3)
    assert peer.session.is_settled


def test_a_result_of_the_gap_is_sent_after_it_once(peer: Peer) -> None:
    """A handler may end while there is no stream."""
    (run,) = peer.lease(make_lease(1))
    peer.session.broken()
    peer.session.report([_done(run)], 1.0)
    assert peer.written == []
    peer.connect(2.0, adopted=[1])
    assert peer.kinds() == ["reports"]


def test_a_server_that_counts_anew_is_believed(peer: Peer) -> None:
    """After a restart it may give out lease ids again; old ones tell nothing then (WP-34)."""
    first, second, third = peer.lease(make_lease(1), make_lease(2), make_lease(3))
    peer.session.report([_done(first)], 1.0)
    peer.receipt(reports=1)
    peer.session.report([_done(second)], 1.0)
    peer.session.broken()
    assert [third] == peer.connect(2.0)
    assert peer.written == []
    again = peer.lease(make_lease(1), make_lease(2), make_lease(3), now=2.0)
    assert [run.lease for run in again] == [1, 2, 3]
    peer.session.report([_done(third)], 3.0)
    assert peer.written == []
    peer.session.pulse(12.0)
    assert peer.written[-1].heartbeats.last_lease == 3
    assert list(peer.written[-1].heartbeats.leases) == [1, 2, 3]
    peer.session.report([_done(again[0])], 13.0)
    peer.session.broken()
    peer.connect(14.0, adopted=[1, 2, 3])
    assert [message.reports.number for message in peer.written] == [3]


def test_an_adopted_lease_gets_a_full_ttl_from_the_registration(peer: Peer) -> None:
    """Counted from when the registration was sent (WP-24, WP-31)."""
    (run,) = peer.lease(make_lease(1))
    peer.session.broken()
    peer.connect(20.0, adopted=[1])
    assert peer.session.pulse(49.9) == []
    assert [run] == peer.session.pulse(50.0)


def test_a_lease_can_end_while_there_is_no_stream(peer: Peer) -> None:
    """The worker's own clock goes on (WP-24)."""
    (run,) = peer.lease(make_lease(1))
    peer.session.broken()
    assert [run] == peer.session.pulse(TTL)


def test_a_draining_session_gives_late_leases_back(peer: Peer) -> None:
    """SetSlots(0), then Nack for what was on its way; again after a resume (WP-40, WP-41)."""
    peer.session.drain()
    peer.session.drain()
    assert peer.kinds() == ["set_slots"]
    assert peer.lease(make_lease(1)) == []
    assert peer.written[-1].reports.reports[0].nack.lease == 1
    peer.session.broken()
    peer.connect(1.0)
    assert peer.kinds() == ["reports", "set_slots"]


@pytest.mark.regression("R33")
def test_progress_goes_out_before_the_report_of_its_attempt(peer: Peer) -> None:
    """The next attempt sees the last word (WP-25)."""
    run, other = peer.lease(make_lease(1), make_lease(2))
    for step in range(1000):
        run.progress = (b"%d" % step, step / 1000)
        run.progress_is_new = peer.session.has_progress = True
    peer.session.report([(run, Failed("x"))], 1.0)
    assert peer.kinds() == ["heartbeats", "reports"]
    beat = peer.written[0].heartbeats
    assert [1, other.lease] == list(beat.leases)
    assert (beat.progress[0].progress.data, beat.progress[0].progress.fraction) == (b"999", 0.999)


def test_a_word_of_progress_is_not_lost_to_the_beat_that_carries_the_one_before(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's thread says it while the beat is being made (WP-25)."""
    (run,) = peer.lease(make_lease(1))

    class Racing(Run):
        __slots__ = ("said",)
        is_raced = False

        @property  # type: ignore[override]
        def progress(self) -> tuple[bytes, float | None]:
            before = self.said
            if not Racing.is_raced:
                Racing.is_raced = True
                self.say(b"2")
            return before

        def say(self, word: bytes) -> None:
            self.said = (word, None)
            self.progress_is_new = peer.session.has_progress = True

    racing = Racing.__new__(Racing)
    for name in Run.__slots__:
        if name != "progress":
            setattr(racing, name, getattr(run, name))
    monkeypatch.setitem(peer.session._runs, 1, racing)
    racing.say(b"1")
    peer.session.pulse(1.0)
    peer.session.pulse(2.0)
    words = [m.heartbeats.progress[0].progress.data for m in peer.written]
    assert words == [b"1", b"2"]


def test_progress_waits_at_most_a_second(peer: Peer) -> None:
    """A heartbeat comes early for it, but not for each word (WP-25)."""
    (run,) = peer.lease(make_lease(1))
    run.progress, run.progress_is_new = (b"1", None), True
    peer.session.has_progress = True
    assert peer.session.next_pulse(0.2) == pytest.approx(1.0)
    peer.session.pulse(0.5)
    assert peer.kinds() == []
    peer.session.pulse(1.0)
    assert not peer.written[0].heartbeats.progress[0].progress.HasField("fraction")
    assert peer.session.next_pulse(1.0) == pytest.approx(1.0 + TTL / 3)


def _speak(peer: Peer, runs: list[Run], size: int) -> None:
    for run in runs:
        run.progress, run.progress_is_new = (b"x" * size, 0.5), True
    peer.session.has_progress = True


def test_progress_goes_out_as_far_as_it_fits(peer: Peer) -> None:
    """The rest goes with the next heartbeats, and before the reports (WP-25)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 6001)))
    _speak(peer, runs, 1024)
    peer.session.pulse(1.0)
    assert peer.session.next_pulse(1.0) == pytest.approx(2.0)
    peer.session.report([_done(run) for run in runs], 1.0)
    beats = [m.heartbeats for m in peer.written if m.WhichOneof("message") == "heartbeats"]
    assert peer.kinds()[: len(beats)] == ["heartbeats"] * len(beats)
    assert max(m.ByteSize() for m in peer.written) <= MESSAGE_BYTES
    assert all(len(beat.leases) == 6000 for beat in beats)
    told = [progress.lease for beat in beats for progress in beat.progress]
    assert sorted(told) == list(range(1, 6001))
    peer.session.pulse(2.0)
    assert not peer.written[-1].heartbeats.progress


def test_what_ends_is_told_before_what_others_say(peer: Peer) -> None:
    """However much that is, a report does not wait for it (WP-25)."""
    runs = peer.lease(*(make_lease(n) for n in range(1, 6001)))
    _speak(peer, runs, 1024)
    peer.session.report([_done(runs[-1])], 1.0)
    assert peer.kinds() == ["heartbeats", "reports"]
    assert peer.written[0].heartbeats.progress[0].lease == 6000
    assert peer.written[0].ByteSize() <= MESSAGE_BYTES


def test_progress_of_a_lease_that_is_lost_holds_up_no_report(peer: Peer) -> None:
    """Nobody asks for it any more."""
    lost, kept = peer.lease(make_lease(1), make_lease(2))
    peer.session.broken()
    peer.connect(1.0, adopted=[2])
    _speak(peer, [lost], 1)
    peer.session.report([_done(lost), _done(kept)], 2.0)
    assert peer.kinds()[-1] == "reports"


@pytest.mark.parametrize("is_old", [True, False], ids=["old server", "no stream"])
def test_progress_that_nobody_hears_holds_up_no_report(is_old: bool) -> None:
    """A server of version 3 is told none; without a stream there is no heartbeat."""
    peer = Peer()
    peer.connect(protocol_version=3 if is_old else 4)
    run = peer.send(lease=make_lease(1)).begun[0]
    _speak(peer, [run], 1)
    if not is_old:
        peer.session.broken()
    peer.session.report([_done(run)], 1.0)
    assert peer.session.open_runs() == []
    assert "heartbeats" not in peer.kinds()


def test_an_old_server_gets_single_messages(peer: Peer) -> None:
    """No batches, no numbers, nothing kept after it is written."""
    peer = Peer()
    peer.connect(protocol_version=3, session_token=b"")
    runs = [peer.send(lease=make_lease(n)).begun[0] for n in range(1, 6)]
    peer.session.pulse(10.0)
    assert peer.kinds() == ["heartbeat"] * 5
    outcomes = [Completed(b"", ""), Failed("f"), Nacked("n"), Cancelled(), Failed("p", True)]
    peer.session.report(list(zip(runs, outcomes, strict=True)), 1.0)
    assert peer.kinds()[5:] == ["complete", "fail", "nack", "cancelled", "fail"]
    assert peer.session.is_settled


def test_an_old_server_resumes_nothing() -> None:
    """Running handlers of a broken stream are lost to it (WP-32)."""
    peer = Peer()
    peer.connect(protocol_version=3, session_token=b"")
    run = peer.send(lease=make_lease(1)).begun[0]
    peer.session.broken()
    assert [run] == peer.connect(1.0, protocol_version=3, session_token=b"")
    assert not peer.opening.HasField("resume")


def test_a_shutdown_notice_ends_readiness_only(peer: Peer) -> None:
    """Handlers go on and report (WP-45)."""
    (run,) = peer.lease(make_lease(1))
    assert peer.session.is_serving
    peer.send(shutdown=workers_pb2.Shutdown(reason="bye", not_leader=True))
    assert not peer.session.is_serving
    assert peer.session.saw_not_leader
    peer.session.report([_done(run)], 1.0)
    assert peer.kinds() == ["reports"]


def test_a_message_this_version_does_not_know_is_passed_over(peer: Peer) -> None:
    """Newer servers may say more."""
    received = peer.session.receive(workers_pb2.ServerMessage(), 0.0)
    assert (received.begun, received.stopped, received.shutdown) == ([], [], None)


@pytest.mark.regression("R17")
@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("nul\0here", "nul\ufffdhere"),
        ("half \ud800 pair", "half \ufffd pair"),
        ("paired \U0001f600", "paired \U0001f600"),
    ],
)
def test_messages_are_cleaned(text: str, clean: str) -> None:
    """Text that stores cannot hold is replaced (WP-19)."""
    assert clean == clean_message(text)


@pytest.mark.parametrize("text", ["x" * 1_000_000, "é" * 1_000_000])
def test_long_messages_are_cut_and_marked(text: str) -> None:
    """A message never fills a report (WP-19)."""
    cut = clean_message(text)
    assert cut.endswith("(cut)")
    assert MESSAGE_BYTES_MAX - 4 < len(cut.encode()) <= MESSAGE_BYTES_MAX
