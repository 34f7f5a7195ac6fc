"""What must be true of an engine's tables after every step, counted anew from the tasks alone."""

from __future__ import annotations

from collections import Counter

from cronoq_server.engine.engine import Engine
from cronoq_server.engine.model import PENDING, Status
from cronoq_server.engine.placement.waiting import OUT, STARTED
from cronoq_server.engine.records import Attempt, Task
from cronoq_server.engine.state import State


def check(engine: Engine) -> None:
    """Raises if an index, a count or an account says anything but what the tasks say."""
    state = engine._state
    _check_counts(state)
    _check_leases(state)
    _check_sessions(state)
    _check_edges(state)
    _check_names(state)
    _check_lines(state)
    _check_resources(state)
    _check_waits(state)
    _check_starts(state)


def _check_counts(state: State) -> None:
    by_status = Counter((t.spec.pool, t.status) for t in state.tasks.values())
    by_class = Counter(
        (t.spec.pool, t.priority) for t in state.tasks.values() if t.status in PENDING
    )
    for name, pool in state.pools.items():
        for status in (*PENDING, Status.RUNNING):
            assert pool.counts[status] == by_status[name, status], (name, status)
        assert pool.pending == sum(by_status[name, status] for status in PENDING)
        for priority in (1, 2, 3, 4):
            assert pool.pending_by_class[priority] == by_class[name, priority]
    assert state.pending == sum(pool.pending for pool in state.pools.values())
    assert all(t.status in (*PENDING, Status.RUNNING) for t in state.tasks.values())


def _check_leases(state: State) -> None:
    held = [a for session in state.sessions.values() for a in session.leases.values()]
    running = {t.id: t for t in state.tasks.values() if t.status == Status.RUNNING}
    assert len(held) == len(running)
    for session in state.sessions.values():
        for lease, attempt in session.leases.items():
            task = attempt.task
            assert running[task.id] is task
            assert attempt.lease == lease == task.lease
            assert task.session == session.number
            assert session.pool == task.spec.pool
    for task in state.tasks.values():
        assert (task.lease != 0) == (task.status == Status.RUNNING)
        assert task.attempt <= task.attempts_max
        assert len(task.history) <= 20
    _check_clocks(state, held)


def _check_clocks(state: State, held: list[Attempt]) -> None:
    ticking: dict[int, Attempt] = {}
    for expiries in state.lease_lists.values():
        node, last = expiries._head, 0
        while node is not None:
            assert isinstance(node, Attempt)
            assert node.at >= last
            last = node.at
            ticking[node.lease] = node
            node = node.after
    assert ticking == {a.lease: a for a in held if a.released}
    timed = 0
    for timeouts in state.timeout_lists.values():
        node = timeouts._head
        while node is not None:
            timed += 1
            node = node.after
    assert timed == sum(a.timeout is not None for a in held)


def _check_sessions(state: State) -> None:
    granted: Counter[str] = Counter()
    for number, session in state.sessions.items():
        assert session.number == number
        assert session.connected or session.leases
        assert session.connected or session.granted == 0
        granted[session.pool] += session.granted
        assert not session.stuck.keys() & session.leases.keys()
    for name, pool in state.pools.items():
        assert pool.granted == granted[name]
        assert pool.settings.max is None or pool.granted <= pool.settings.max
    assert set(state.tokens.values()) <= state.sessions.keys()


def _check_edges(state: State) -> None:
    open_edges: Counter[int] = Counter()
    awaiting: Counter[int] = Counter()
    for parent, entries in state.children.items():
        assert parent in state.tasks, "only live parents have children waiting"
        for child, _ in entries:
            # One that ended before its parent stays in the list, and is passed over later.
            if state.tasks.get(child.id) is child:
                open_edges[child.id] += 1
    for key, waiting in _awaited(state):
        assert key not in state.keys, "a key that is there is not awaited"
        for child in waiting:
            assert child.status == Status.BLOCKED
            assert state.tasks[child.id] is child
            open_edges[child.id] += 1
            awaiting[child.id] += 1
    pinned: Counter[int] = Counter()
    for task in state.tasks.values():
        if task.spec.dependencies:
            assert task.id in state.parents
        if task.status == Status.BLOCKED:
            assert task.unmet == open_edges[task.id] > 0, task
            assert task.awaiting == awaiting[task.id]
        pinned.update(state.parents.get(task.id, ()))
    assert state.parents.keys() <= state.tasks.keys()
    assert state.pinned == pinned


def _awaited(state: State) -> list[tuple[str, list[Task]]]:
    return [
        (key, [child for entries in waiting.values() for child, _ in entries])
        for key, waiting in state.awaited.items()
    ]


def _check_names(state: State) -> None:
    for task in state.tasks.values():
        if task.spec.key:
            assert state.keys[task.spec.key] == task.id
    for key, task_id in state.keys.items():
        live, ended = state.tasks.get(task_id), state.finished.get(task_id)
        assert (live is None) != (ended is None), "a task is in one place"
        named = live.spec.key if live is not None else ended.key  # type: ignore[union-attr]
        assert named == key
    assert not state.tasks.keys() & state.finished.keys()
    ids = list(state.index.walk(0, newest_first=False))
    assert ids == sorted(set(ids))
    assert ids[::-1] == list(state.index.walk(0, newest_first=True))
    assert state.tasks.keys() <= set(ids)
    assert len(ids) - sum(state.index._dead) == len(state.index) == len(state.tasks)


def _check_lines(state: State) -> None:
    ready: Counter[tuple[str, int]] = Counter()
    for task in state.tasks.values():
        if task.status == Status.READY:
            ready[task.spec.pool, task.priority] += 1
            assert task.p_at not in (OUT, STARTED)
        elif task.status == Status.RUNNING:
            assert task.p_at == STARTED
        else:
            assert task.p_at == OUT
    for name in state.pools:
        assert state.placement.count(name) == tuple(ready[name, p] for p in (1, 2, 3, 4))


def _check_resources(state: State) -> None:
    held: Counter[str] = Counter()
    for task in state.tasks.values():
        if task.status == Status.RUNNING:
            for name, amount in task.spec.resources:
                held[name] += amount
    for account in state.resources.all():
        if not account.is_bucket:
            assert account.available == account.capacity - held[account.name], account.name


def _check_waits(state: State) -> None:
    calls: Counter[int] = Counter()
    for task_id, waiting in state.waiters.items():
        assert task_id in state.tasks
        assert waiting
        calls.update(waiting)
    for call, wait in state.waits.items():
        assert wait.left == calls[call] > 0
    assert calls.keys() <= state.waits.keys()
    for pool in state.pools.values():
        for call in pool.parked:
            assert call not in state.waits


def _check_starts(state: State) -> None:
    booked = Counter(t.spec.pool for t in state.tasks.values() if t.booked is not None)
    for name, pool in state.pools.items():
        assert pool.bookings.total == booked[name]
    kept: dict[str, list[int]] = {}
    for task in state.tasks.values():
        if task.schedule:
            kept.setdefault(task.schedule, []).append(task.id)
        if task.held:
            assert task.status in (Status.SCHEDULED, Status.READY), "what runs needs no hold"
    assert {name: sorted(ids) for name, ids in state.occurrences.items()} == {
        name: sorted(ids) for name, ids in kept.items()
    }
