"""The definition of dispatch order, as plainly as possible: O(n) per choice, no memory.

The fast structures of `cronoq_server.engine.placement` must start the same tasks in the same order
on equally versatile workers. Which of several equally versatile sessions is taken is followed, not
compared: `run` is told what was chosen and checks that it was a right choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field

POINT = 10**15
SECOND = 10**9
BASE = {1: 10_000 * POINT, 2: 1_000 * POINT, 3: 100 * POINT, 4: 10 * POINT}
NANO = 10**9


class Mismatch(AssertionError):
    """The structure under test chose otherwise than the definition."""


@dataclass(eq=False)
class RefTask:
    """A task with everything the definition needs."""

    id: int
    priority: int
    since: int
    pool: str
    labels: frozenset[str]
    kind: str
    needs: dict[str, int]
    tenant: str
    latest: int | None = None
    expected: int = 0
    avoid: tuple[int, ...] = ()

    def score(self, now: int) -> int:
        """Class base, age and urgency, in units of 10**-15 points."""
        total = BASE[self.priority]
        total += min(max(0, now - self.since) * (2 * POINT // SECOND), 800 * POINT)
        if self.latest is None:
            return total
        window = min(max(self.expected, 5 * SECOND), 1000 * SECOND)
        opens = self.latest - window
        slope = 5000 * POINT // window
        if now > opens:
            total += slope * (min(now, self.latest) - opens)
        if now > self.latest:
            total += min((now - self.latest) * (50 * POINT // SECOND), 2000 * POINT)
        return total

    def rank(self, now: int) -> tuple[int, int, int]:
        """The dispatch order: least first."""
        return -self.score(now), self.since, self.id


@dataclass(eq=False)
class RefSession:
    """A session; `told` free slots, of which some may be kept for holds."""

    id: int
    pool: str
    labels: frozenset[str]
    kinds: frozenset[str]
    told: int = 0

    @property
    def versatility(self) -> tuple[int, int]:
        """Fewest labels first, declared kinds before any kind."""
        return len(self.labels), 0 if self.kinds else 1

    def fits(self, task: RefTask) -> bool:
        """Labels are all there, the kind is served."""
        return task.labels <= self.labels and (not self.kinds or task.kind in self.kinds)


@dataclass(eq=False)
class RefResource:
    """A semaphore (permits) or a bucket (rate in nano-tokens per second, burst in tokens)."""

    name: str
    permits: int | None
    rate: int = 0
    burst: int = 0
    held: int = 0
    level: int = 0  # of a bucket, in billionths of a nano-token
    at: int = 0

    @property
    def capacity(self) -> int:
        """The most there can be, in permits or tokens."""
        return self.burst if self.permits is None else self.permits

    def left(self, mono: int) -> int:
        """What is there now, in permits or nano-tokens."""
        if self.permits is not None:
            return self.permits - self.held
        self.level = min(self.burst * NANO * NANO, self.level + (mono - self.at) * self.rate)
        self.at = mono
        return self.level // NANO

    def unit(self) -> int:
        """How much a whole permit or token is, in what `left` returns."""
        return 1 if self.permits is not None else NANO

    def take(self, amount: int) -> None:
        """Takes whole permits or tokens."""
        if self.permits is None:
            self.level -= amount * NANO * NANO
        else:
            self.held += amount


@dataclass(eq=False)
class RefPool:
    """A pool's rules."""

    name: str
    fair: bool
    weights: dict[str, int]
    paused: bool = False


@dataclass(eq=False)
class RefTurns:
    """Start-time fair queueing of one class of a pool."""

    time: int = 0
    numbers: int = 0
    tags: dict[str, tuple[int, int]] = field(default_factory=dict)  # tenant: (tag, number)


class Reference:
    """All waiting tasks, sessions and accounts, without any cleverness."""

    def __init__(self) -> None:
        self.pools: dict[str, RefPool] = {}
        self.sessions: dict[int, RefSession] = {}
        self.resources: dict[str, RefResource] = {}
        self.waiting: list[RefTask] = []
        self.turns: dict[tuple[str, int], RefTurns] = {}
        self.holds: list[tuple[RefTask, int | None]] = []  # in the order they were asked for

    # Events

    def push(self, task: RefTask) -> None:
        """A task becomes ready."""
        if self.pools[task.pool].fair and not self._queue(task.pool, task.priority, task.tenant):
            turns = self.turns.setdefault((task.pool, task.priority), RefTurns())
            tag, _ = turns.tags.get(task.tenant, (0, 0))
            if task.tenant not in turns.tags or tag <= turns.time:
                turns.numbers += 1
                turns.tags[task.tenant] = (turns.time, turns.numbers)
        self.waiting.append(task)

    def withdraw(self, task: RefTask) -> None:
        """A task leaves unrun."""
        if task in self.waiting:
            self.waiting.remove(task)
        self.holds = [hold for hold in self.holds if hold[0] is not task]

    def keep(self, session_of: dict[int, int | None]) -> None:
        """Every hold that can have a slot has one; which one is followed."""
        for at, (task, session) in enumerate(self.holds):
            if session is not None:
                continue
            fitting = [each for each in self._free(task.pool) if each.fits(task)]
            if not fitting or not self._is_possible(task):
                if session_of[task.id] is not None:
                    raise Mismatch(f"hold of {task.id} has a slot that is not there")
                continue
            chosen = session_of[task.id]
            self._check_choice(task, chosen, fitting)
            self.holds[at] = (task, chosen)

    def lose(self, session: int, slots: int) -> None:
        """A session keeps at most that many holds; the newest ones lose theirs."""
        mine = [at for at, (_, held) in enumerate(self.holds) if held == session]
        for at in mine[slots:]:
            self.holds[at] = (self.holds[at][0], None)

    # The definition

    def run(self, wall: int, mono: int, chosen: list[tuple[int, int]]) -> list[tuple[RefTask, int]]:
        """Starts what can start, following `chosen` among equally versatile sessions."""
        self._chosen = iter(chosen)
        started: list[tuple[RefTask, int]] = []
        while True:
            count = len(started)
            claims = self._pass(wall, mono, started)
            if not claims or len(started) == count:
                break
        left = next(self._chosen, None)
        if left is not None:
            raise Mismatch(f"{left} was started, the definition starts nothing more")
        return started

    def _pass(self, wall: int, mono: int, started: list[tuple[RefTask, int]]) -> set[str]:
        elders = self._elders(wall)
        for elder in list(elders):
            kept = self._kept(elders[: elders.index(elder)], elder, wall)
            if self._sessions_for(elder) and self._short(elder, kept, mono) == []:
                self._start(elder, started)
                elders.remove(elder)
        claims: set[str] = set()
        while True:
            in_line = [
                task
                for task in self.waiting
                if self._sessions_for(task)
                and self._is_possible(task)
                and not any(name in claims for name in task.needs)
                and all(self._left(name, mono) >= self._unit(name) for name in task.needs)
            ]
            task = self._first(in_line, wall)
            if task is None:
                return claims
            short = self._short(task, self._kept(elders, task, wall), mono)
            if short:
                claims.update(short)
            else:
                self._start(task, started)
                if task in elders:
                    elders.remove(task)

    def _first(self, in_line: list[RefTask], wall: int) -> RefTask | None:
        heads: list[RefTask] = []
        for pool in self.pools.values():
            for priority in (1, 2, 3, 4):
                mine = [t for t in in_line if t.pool == pool.name and t.priority == priority]
                if mine and pool.fair:
                    tags = self.turns[(pool.name, priority)].tags
                    turn = min({task.tenant for task in mine}, key=lambda tenant: tags[tenant])
                    mine = [task for task in mine if task.tenant == turn]
                if mine:
                    heads.append(min(mine, key=lambda task: task.rank(wall)))
        return min(heads, key=lambda task: task.rank(wall), default=None)

    def _elders(self, wall: int) -> list[RefTask]:
        elders = []
        for priority in (1, 2, 3, 4):
            old = [
                task
                for task in self.waiting
                if task.priority == priority
                and task.needs
                and not self.pools[task.pool].paused
                and self._is_possible(task)
                and any(s.fits(task) for s in self.sessions.values() if s.pool == task.pool)
            ]
            eldest = min(old, key=lambda task: (task.since, task.id), default=None)
            if eldest is not None and wall - eldest.since >= 60 * SECOND:
                elders.append(eldest)
        return sorted(elders, key=lambda task: task.rank(wall))

    def _kept(self, elders: list[RefTask], task: RefTask, wall: int) -> dict[str, int]:
        kept: dict[str, int] = {}
        for elder in elders:
            if elder is not task and elder.rank(wall) < task.rank(wall):
                for name, amount in elder.needs.items():
                    kept[name] = kept.get(name, 0) + amount
        return kept

    def _short(self, task: RefTask, kept: dict[str, int], mono: int) -> list[str]:
        return [
            name
            for name, amount in task.needs.items()
            if self._left(name, mono) < (amount + kept.get(name, 0)) * self._unit(name)
        ]

    def _start(self, task: RefTask, started: list[tuple[RefTask, int]]) -> None:
        chosen = next(self._chosen, None)
        if chosen is None or chosen[0] != task.id:
            raise Mismatch(f"{chosen} was started instead of task {task.id}")
        fitting = self._sessions_for(task)
        self._check_choice(task, chosen[1], fitting)
        pool = self.pools[task.pool]
        if pool.fair:
            turns = self.turns[(task.pool, task.priority)]
            tag, number = turns.tags[task.tenant]
            turns.time = max(tag, turns.time)
            cost = (max(task.expected, 1_000_000) << 20) // pool.weights.get(task.tenant, 1)
            turns.tags[task.tenant] = (turns.time + max(cost, 1), number)
        for name, amount in task.needs.items():
            self.resources[name].take(amount)
        self.sessions[chosen[1]].told -= 1
        self.withdraw(task)
        started.append((task, chosen[1]))

    # Facts

    def free_of(self, session: RefSession) -> int:
        """Slots anybody may use."""
        return session.told - sum(1 for _, held in self.holds if held == session.id)

    def _free(self, pool: str) -> list[RefSession]:
        return [s for s in self.sessions.values() if s.pool == pool and self.free_of(s) > 0]

    def _sessions_for(self, task: RefTask) -> list[RefSession]:
        if self.pools[task.pool].paused:
            return []
        for held, session in self.holds:
            if held is task and session is not None:
                return [self.sessions[session]]
        return [s for s in self._free(task.pool) if s.fits(task) and s.id not in task.avoid]

    @staticmethod
    def _check_choice(task: RefTask, chosen: int | None, fitting: list[RefSession]) -> None:
        least = min(session.versatility for session in fitting)
        if chosen not in [s.id for s in fitting if s.versatility == least]:
            raise Mismatch(f"task {task.id} went to session {chosen}")

    def _is_possible(self, task: RefTask) -> bool:
        return all(amount <= self.resources[name].capacity for name, amount in task.needs.items())

    def _left(self, name: str, mono: int) -> int:
        return self.resources[name].left(mono)

    def _unit(self, name: str) -> int:
        return self.resources[name].unit()

    def _queue(self, pool: str, priority: int, tenant: str) -> list[RefTask]:
        return [
            task
            for task in self.waiting
            if (task.pool, task.priority, task.tenant) == (pool, priority, tenant)
        ]
