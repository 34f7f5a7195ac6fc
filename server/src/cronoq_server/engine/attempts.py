"""The life of an attempt: dispatch, reports, heartbeats, expiry, timeout, and being given back.

Rules a change must keep:

1. An attempt ends once, through `_end`, which gives slot and resources back; whatever comes for
   its lease later is stale: ignored, counted, never an error.
2. A lease's clocks start when its dispatch has been released, not when it was decided.
3. A report counts only from the session that holds the lease.
4. A handler that was told to stop keeps its slot until its worker says that it has ended; only
   then is the slot free (protocol 3 can't say it: free at once).
"""

from __future__ import annotations

from typing import cast

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Lease
from cronoq_server.engine.ending import finish
from cronoq_server.engine.events import (
    AttemptsReported,
    CancelledByWorker,
    Completed,
    Failed,
    HeartbeatsRead,
    Nacked,
    Released,
    Unsent,
)
from cronoq_server.engine.lifecycle import Cause
from cronoq_server.engine.model import Duration, Outcome, PastAttempt
from cronoq_server.engine.mutations import OutputStored
from cronoq_server.engine.placement import score
from cronoq_server.engine.policies import (
    RETRY_AFTER_MAX,
    backoff,
    effective_retry,
    learned_mean,
)
from cronoq_server.engine.records import (
    HISTORY_MAX,
    Attempt,
    Session,
    Task,
    Timeout,
    TimerKind,
    Total,
)

NACKS_MAX = 5
"""An attempt may be refused this often; the next refusal fails it."""

_STARTED = Cause.STARTED
_GIVEN_BACK = Cause.GIVEN_BACK
_COMPLETED = Cause.COMPLETED


def dispatch(draft: Draft) -> None:
    """Starts what may start now."""
    state = draft.state
    for session in draft.touched.values():
        if session.connected:
            state.placement.slots(session.number, session.free)
        elif not session.leases:
            state.drop_session(session)
    draft.touched.clear()
    if not state.dispatching or state.resting:
        return
    started = cast("list[tuple[Task, int]]", state.placement.run(draft.now.mono, draft.now.mono))
    if not started:
        return
    _judge_order(draft, started)
    sessions, lease, wall, mono = state.sessions, state.lease, draft.now.wall, draft.now.mono
    pools, transition, changed = state.pools, draft.transition, draft.changed
    dispatches, attempts = draft.dispatches, draft.attempts
    for task, number in started:
        if task.same_attempt:
            task.same_attempt = False
        else:
            if not task.attempt and (task.expires_at is not None or task.miss_at is not None):
                state.disarm(task)
            task.attempt += 1
            task.nacks = 0
            if task.miss_at is not None:
                state.pools[task.spec.pool].quality.starts.count(int(wall <= task.miss_at), 1)
        lease += 1
        attempt = Attempt(lease=lease, task=task, started_at=wall, began=mono)
        session = sessions[number]
        session.leases[lease] = attempt
        attempts.append(attempt)
        task.held = False
        task.lease = lease
        task.session = number
        task.started_at = wall
        task.retry_at = None
        task.message = ""
        transition(task, _STARTED)
        changed[task.id] = task
        spec = task.spec
        pool = pools[spec.pool]
        pool.dispatched += 1
        waited = mono - task.since
        pool.quality.count_wait(waited)
        offer = Lease(
            lease,
            task.id,
            task.attempt,
            spec,
            pool.settings.lease_ttl,
            task.deadline_at,
            task.progress,
            state.parents[task.id] if spec.dependencies else (),
            waited,
        )
        offers = dispatches.get(number)
        if offers is None:
            dispatches[number] = [offer]
        else:
            offers.append(offer)
    state.lease = lease
    state.totals[Total.DISPATCHED] += len(started)


def _judge_order(draft: Draft, started: list[tuple[Task, int]]) -> None:
    """Counts, per pool, dispatches before which a task of higher score was passed over."""
    counts: dict[str, list[int]] = {}
    last: dict[str, Task] = {}
    mono = draft.now.mono
    for task, _ in started:
        name = task.spec.pool
        before = last.get(name)
        last[name] = task
        if before is None:
            counts[name] = [1, 1]
            continue
        count = counts[name]
        count[1] += 1
        if (before.priority == task.priority and before.since <= task.since) or score(
            before, mono
        ) >= score(task, mono):
            count[0] += 1
    for name, (hits, of) in counts.items():
        draft.state.pools[name].quality.adherence.count(hits, of)


def released(draft: Draft, event: Released) -> None:
    """The leases of these steps have gone out: their TTLs and timeouts start now."""
    state, unreleased = draft.state, draft.state.unreleased
    now = draft.lease_now
    pools = state.pools
    while unreleased and unreleased[0][0] <= event.step:
        for attempt in unreleased.popleft()[1]:
            task = attempt.task
            if task.lease != attempt.lease:
                continue
            attempt.released = True
            pools[task.spec.pool].leases.renew(attempt, now)
            length = task.spec.timeout
            if length is not None:
                attempt.timeout = timeout = Timeout(attempt=attempt)
                state.timeouts(length).renew(timeout, draft.now.mono)


def unsent(draft: Draft, event: Unsent) -> None:
    """These leases never left: each is offered again within its attempt, or frees its slot."""
    session = draft.state.sessions.get(event.session)
    if session is None:
        return
    for lease in event.leases:
        attempt = session.leases.get(lease)
        if attempt is not None:
            give_back(draft, session, attempt)
        elif lease in session.stuck:
            del session.stuck[lease]
            draft.touched[session.number] = session


def reported(draft: Draft, event: AttemptsReported) -> None:
    """Takes a message of reports; its receipt goes out when all of it is durable."""
    session = draft.state.sessions.get(event.session)
    if session is None:
        draft.state.totals[Total.STALE_REPORTS] += len(event.reports)
        return
    if event.number:
        if event.number <= session.reports_seen:
            draft.receipts[session.number] = session
            return
        session.reports_seen = event.number
        draft.receipts[session.number] = session
    leases = session.leases
    for report in event.reports:
        attempt = leases.get(report.lease)
        if attempt is None:
            _stale(draft, session, report)
        elif type(report) is Completed:
            _completed(draft, session, attempt, report)
        elif type(report) is Failed:
            _failed(draft, session, attempt, report)
        elif type(report) is Nacked:
            _nacked(draft, session, attempt, report)
        else:
            message = "cancelled by its worker"
            _end(draft, session, attempt)
            _remember(draft, session, attempt, Outcome.CANCELLED_BY_WORKER, message)
            finish(draft, attempt.task, Cause.CANCELLED, message)
    draft.touched[session.number] = session


def _stale(draft: Draft, session: Session, report: object) -> None:
    """A report for a lease that is not held: at most a slot becomes free."""
    lease = report.lease  # type: ignore[attr-defined]
    if lease in session.stuck:
        del session.stuck[lease]
        if type(report) is CancelledByWorker:
            return
    draft.state.totals[Total.STALE_REPORTS] += 1


def _completed(draft: Draft, session: Session, attempt: Attempt, report: Completed) -> None:
    task = attempt.task
    _end(draft, session, attempt)
    spec = task.spec
    pool = draft.state.pools[spec.pool]
    kind = spec.kind
    elapsed = draft.now.mono - attempt.began
    pool.means[kind] = learned_mean(pool.means.get(kind), elapsed)
    pool.mean = learned_mean(pool.mean, elapsed)
    stored = OutputStored(task.id, report.output, report.content_type)
    finish(draft, task, _COMPLETED, "", stored)


def _failed(draft: Draft, session: Session, attempt: Attempt, report: Failed) -> None:
    if report.permanent:
        _end(draft, session, attempt)
        _remember(draft, session, attempt, Outcome.FAILED_PERMANENTLY, report.message)
        finish(draft, attempt.task, Cause.FAILED_PERMANENTLY, report.message)
    else:
        fail_retryable(draft, session, attempt, Outcome.FAILED, report.message, report.retry_after)


def fail_retryable(
    draft: Draft,
    session: Session,
    attempt: Attempt,
    outcome: Outcome,
    message: str,
    retry_after: Duration | None = None,
) -> None:
    """Ends an attempt that may be tried again, if its budget allows.

    Args:
        draft: The step.
        session: Who held it.
        attempt: What ended.
        outcome: How, for the history.
        message: Why, for people.
        retry_after: Wait asked for by the worker; replaces the backoff, up to 24 h.
    """
    _end(draft, session, attempt)
    _remember(draft, session, attempt, outcome, message)
    task = attempt.task
    if task.attempt >= task.attempts_max:
        finish(draft, task, Cause.ATTEMPTS_USED_UP, message)
        return
    state, now = draft.state, draft.now
    if retry_after is None:
        policy = effective_retry(task.spec.retry, state.pools[task.spec.pool].retry)
        number = task.attempt - task.attempts_max + policy.max_attempts
        wait = backoff(policy, number, state.chance)
    else:
        wait = min(retry_after, RETRY_AFTER_MAX)
    if task.booked is not None:
        state.unbook(task)
    task.message = message
    task.retry_at = now.wall + wait
    task.backoff_until = now.mono + wait
    state.totals[Total.RETRIES] += 1
    draft.transition(task, Cause.WILL_RETRY)
    draft.changed[task.id] = task
    state.mono_timers.arm(task.backoff_until, TimerKind.BACKOFF, task)


def _nacked(draft: Draft, session: Session, attempt: Attempt, report: Nacked) -> None:
    task = attempt.task
    task.nacks += 1
    if task.nacks > NACKS_MAX:
        message = f"refused {task.nacks} times: {report.reason}"
        fail_retryable(draft, session, attempt, Outcome.REFUSED_TOO_OFTEN, message)
        return
    policy = effective_retry(task.spec.retry, draft.state.pools[task.spec.pool].retry)
    forgive_at = draft.now.mono + policy.initial_backoff
    task.refused(session.number, forgive_at)
    give_back(draft, session, attempt)
    draft.state.mono_timers.arm(forgive_at, TimerKind.FORGIVE, task)


def give_back(draft: Draft, session: Session, attempt: Attempt) -> None:
    """An attempt that never ran: its task takes its old place, with the same attempt number."""
    task = attempt.task
    _end(draft, session, attempt)
    task.same_attempt = True
    draft.transition(task, _GIVEN_BACK)
    deadline = task.deadline_at
    latest = None
    if deadline is not None:
        latest = deadline - task.expected + draft.now.mono - draft.now.wall
    mono = draft.now.mono
    draft.state.placement.push_back(task, mono, latest, task.expected, task.avoids(mono))


def _end(draft: Draft, session: Session, attempt: Attempt) -> None:
    """The one way out of a lease: slot, resources and clocks go back."""
    state = draft.state
    task = attempt.task
    del session.leases[attempt.lease]
    state.pools[task.spec.pool].quality.count_run(draft.now.mono - attempt.began)
    task.lease = 0
    task.session = 0
    if attempt.released:
        state.pools[task.spec.pool].leases.remove(attempt)
        timeout = attempt.timeout
        if timeout is not None:
            attempt.timeout = None
            state.end_timeout(timeout, task.spec.timeout or 0)
    state.placement.finished(task)
    draft.touched[session.number] = session


def _remember(
    draft: Draft, session: Session, attempt: Attempt, outcome: Outcome, message: str
) -> None:
    """Adds an attempt that did not succeed to its task's history."""
    task = attempt.task
    past = PastAttempt(
        task.attempt, session.name, attempt.started_at, draft.now.wall, outcome, message
    )
    task.history = (*task.history[-(HISTORY_MAX - 1) :], past)


def end_from_outside(
    draft: Draft, attempt: Attempt, outcome: Outcome, message: str, cause: Cause | None = None
) -> None:
    """Ends an attempt that its worker may still run, and tells the worker to stop.

    With a `cause` the task ends by it; without, the attempt counts as failed and retryable.
    """
    session = draft.state.sessions[attempt.task.session]
    lease = attempt.lease
    if cause is None:
        fail_retryable(draft, session, attempt, outcome, message)
    else:
        task = attempt.task
        _end(draft, session, attempt)
        _remember(draft, session, attempt, outcome, message)
        finish(draft, task, cause, message)
    if session.connected:
        draft.abort(session, lease, message)
    if session.protocol >= 4:
        session.stuck[lease] = None


def heartbeats(draft: Draft, event: HeartbeatsRead) -> None:
    """A sign of life: renews what it names, and finds out what never arrived."""
    session = draft.state.sessions.get(event.session)
    if session is None:
        return
    leases, pools, now = session.leases, draft.state.pools, draft.lease_now
    for lease in event.leases:
        attempt = leases.get(lease)
        if attempt is not None and attempt.released:
            pools[attempt.task.spec.pool].leases.renew(attempt, now)
    for lease, progress in event.progress:
        attempt = leases.get(lease)
        if attempt is not None:
            attempt.task.progress = progress
            if draft.state.watches:
                draft.publish(attempt.task)
    if session.protocol >= 4:
        session.beat_seen = event.number
        draft.receipts[session.number] = session
        _find_lost(draft, session, event)


def _find_lost(draft: Draft, session: Session, event: HeartbeatsRead) -> None:
    """Leases that were read but are neither named nor reported were lost on their way."""
    named = set(event.leases)
    last = event.last_lease
    for lease in [x for x in session.leases if x <= last and x not in named]:
        give_back(draft, session, session.leases[lease])
    for lease in [x for x in session.stuck if x <= last and x not in named]:
        del session.stuck[lease]
        draft.touched[session.number] = session


def expire(draft: Draft) -> None:
    """Ends leases and attempts whose time is up, after everything that was heard in this step."""
    state = draft.state
    for leases in state.lease_lists.values():
        while (node := leases.first_due(draft.lease_now)) is not None:
            assert isinstance(node, Attempt)
            state.totals[Total.LEASE_EXPIRIES] += 1
            end_from_outside(
                draft, node, Outcome.LEASE_EXPIRED, "lease expired: no heartbeat in time"
            )
    for timeouts in list(state.timeout_lists.values()):
        while (node := timeouts.first_due(draft.now.mono)) is not None:
            assert isinstance(node, Timeout)
            state.totals[Total.TIMEOUTS] += 1
            message = f"timeout: ran longer than {timeouts.length / 1e9:g} s"
            end_from_outside(draft, node.attempt, Outcome.TIMED_OUT, message)
