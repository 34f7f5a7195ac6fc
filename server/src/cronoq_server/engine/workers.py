"""Sessions of workers: who may join, what a broken one leaves, what a resume takes over.

A worker's name identifies nothing; sessions do. A session whose stream broke has no capacity, but
its leases stay out for a full TTL, and a worker that comes back with the session's token goes on
with those that it names. A session that closed in order, or that can't be resumed, fails its
leases at once.
"""

from __future__ import annotations

from cronoq_server.engine.attempts import fail_retryable, give_back
from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Dropped, Joined, NotJoined
from cronoq_server.engine.events import SlotsSet, WorkerJoined, WorkerLost
from cronoq_server.engine.model import ErrorReason, Outcome, Refusal
from cronoq_server.engine.records import Pool, Session
from cronoq_server.engine.state import State

RESUMABLE_PROTOCOL = 4
"""First protocol version whose sessions outlive their streams."""


def joined(draft: Draft, event: WorkerJoined) -> None:
    """A worker registers; with a token that fits it goes on with the session it had."""
    state = draft.state
    pool = state.pools.get(event.pool)
    if pool is None or not pool.configured:
        refusal = Refusal(ErrorReason.POOL_UNKNOWN, f"pool: there is no pool {event.pool!r}")
        draft.effects.append(NotJoined(event.session, refusal))
        return
    session = Session(
        event.session,
        event.pool,
        event.name,
        event.labels,
        event.kinds,
        event.protocol,
        event.credential,
        event.token,
        event.sdk,
        draft.now.wall,
    )
    adopted = _resume(draft, session, event)
    session.asked = event.slots
    session.granted = grantable(state, pool, event.slots)
    pool.granted += session.granted
    state.sessions[session.number] = session
    if event.protocol >= RESUMABLE_PROTOCOL:
        state.tokens[session.token] = session.number
    labels = [f"{name}={value}" for name, value in session.labels]
    state.placement.session_joined(
        session.number, session.pool, labels, session.kinds, session.free
    )
    draft.effects.append(
        Joined(
            session.number,
            session.granted,
            pool.settings.lease_ttl,
            session.token if event.protocol >= RESUMABLE_PROTOCOL else b"",
            adopted,
            session.reports_seen,
        )
    )


def grantable(state: State, pool: Pool, asked: int, has: int = 0) -> int:
    """How many slots a session that has `has` can be granted: the least of all bounds."""
    settings = pool.settings
    granted = min(asked, state.settings.max_slots_per_worker)
    if settings.max_slots_per_worker is not None:
        granted = min(granted, settings.max_slots_per_worker)
    if settings.max is not None:
        granted = min(granted, settings.max - pool.granted + has)
    return max(0, granted)


def _resume(draft: Draft, session: Session, event: WorkerJoined) -> tuple[int, ...]:
    """Takes over the session that the token names: the leases that both sides know of."""
    resume = event.resume
    if resume is None or event.protocol < RESUMABLE_PROTOCOL:
        return ()
    state = draft.state
    old = state.sessions.get(state.tokens.get(resume.token, -1))
    if old is None or old.credential != event.credential or old.pool != event.pool:
        return ()
    if old.connected:
        _disconnect(draft, old)
        draft.effects.append(Dropped(old.number))
    # The token stays: if this answer is lost as well, the worker comes back with the one it has.
    session.token = old.token
    session.reports_seen = old.reports_seen
    named = set(resume.leases)
    adopted = []
    for lease in list(old.leases):
        attempt = old.leases[lease]
        if lease not in named:
            give_back(draft, old, attempt)
            continue
        del old.leases[lease]
        session.leases[lease] = attempt
        attempt.task.session = session.number
        if attempt.released:
            state.pools[session.pool].leases.renew(attempt, draft.lease_now)
        adopted.append(lease)
    for lease in old.stuck:
        if lease in named:
            session.stuck[lease] = None
    draft.touched.pop(old.number, None)
    state.drop_session(old)
    return tuple(adopted)


def lost(draft: Draft, event: WorkerLost) -> None:
    """A stream has ended."""
    state = draft.state
    session = state.sessions.get(event.session)
    if session is None:
        return
    if session.connected:
        _disconnect(draft, session)
    if event.clean or session.protocol < RESUMABLE_PROTOCOL:
        for attempt in list(session.leases.values()):
            if attempt.released:
                message = "its worker's session ended"
                fail_retryable(draft, session, attempt, Outcome.WORKER_LOST, message)
            else:
                give_back(draft, session, attempt)  # it never left, so it is not used up
    else:
        leases = state.pools[session.pool].leases
        for attempt in session.leases.values():
            if attempt.released:
                leases.renew(attempt, draft.lease_now)
    draft.touched[session.number] = session


def _disconnect(draft: Draft, session: Session) -> None:
    """A session without a stream is zero capacity."""
    session.connected = False
    pool = draft.state.pools[session.pool]
    pool.granted -= session.granted
    session.granted = 0
    draft.regrant[session.pool] = pool
    draft.state.placement.session_left(session.number)


def slots_set(draft: Draft, event: SlotsSet) -> None:
    """A worker asks for more or fewer slots; 0 = it drains."""
    state = draft.state
    session = state.sessions.get(event.session)
    if session is None or not session.connected:
        return
    pool = state.pools[session.pool]
    pool.granted -= session.granted
    session.asked = event.slots
    session.granted = grantable(state, pool, event.slots)
    pool.granted += session.granted
    draft.regrant[session.pool] = pool
    draft.touched[session.number] = session


def top_up(draft: Draft) -> None:
    """Hands slots that were given back to sessions of a bounded pool that asked for more.

    Those who joined first get theirs first. A worker is not told: it asked for as many.
    """
    for name, pool in draft.regrant.items():
        if pool.settings.max is None or pool.granted >= pool.settings.max:
            continue
        for session in draft.state.sessions.values():
            if session.pool != name or not session.connected:
                continue
            more = grantable(draft.state, pool, session.asked, session.granted)
            if more > session.granted:
                pool.granted += more - session.granted
                session.granted = more
                draft.touched[session.number] = session
    draft.regrant.clear()
