"""The accounting invariants: what an engine's tables must say after its steps.

Everything is counted anew from the tasks themselves. What costs no more than the running tasks is
looked at after every step, what costs as much as all live tasks after some of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cronoq_server.engine.effects import Dispatch, Lease
from cronoq_server.engine.model import PENDING, Now, Status
from cronoq_server.engine.mutations import TaskInserted
from cronoq_server.engine.placement.resources import NANO
from cronoq_server.engine.placement.turns import COST_MIN
from cronoq_server.engine.placement.urgency import score
from cronoq_server.engine.placement.waiting import STARTED
from cronoq_server.engine.records import Task
from cronoq_server.engine.state import WEIGHT_ONE, State

if TYPE_CHECKING:
    from cronoq_server.engine.engine import Engine, Step
    from tests.sim.oracle import Known

EVERY = 20
"""All live tasks are counted after every so many steps."""

UNSTARTED = (Status.BLOCKED, Status.SCHEDULED, Status.READY)

CUT = 10
"""With so few occurrences in one decision, a schedule may need more than one."""

LOOK_EVERY = 2
"""The order of starts is judged in every so many steps that start something."""


class Bucket:
    """A token bucket as the promise has it: over any window at most burst + rate × time."""

    def __init__(self, mono: int, rate: int, burst: int) -> None:
        self.mono = mono
        self.level = burst * NANO * NANO
        self.rate = rate
        self.burst = burst

    def take(self, mono: int, amount: int) -> bool:
        """Takes whole tokens; whether they were there. Levels are in nano-nano-tokens."""
        full = self.burst * NANO * NANO
        self.level = min(full, self.level + (mono - self.mono) * self.rate) - amount * NANO * NANO
        self.mono = mono
        return self.level >= 0

    def resize(self, mono: int, rate: int, burst: int) -> None:
        """From now on other figures count."""
        self.take(mono, 0)
        self.rate, self.burst = rate, burst
        self.level = min(self.level, burst * NANO * NANO)


class Shares:
    """What tenants of one class of one fair pool got while all of them had something waiting."""

    def __init__(self, tenants: list[str]) -> None:
        self.got = dict.fromkeys(tenants, 0)


class Accounts:
    """Watches one engine."""

    def __init__(self, engine: Engine, known: Known) -> None:
        self._engine = engine
        self._known = known
        self._steps = 0
        self._starts = 0
        self._buckets: dict[str, Bucket] = {}
        self._shares: dict[tuple[str, int], Shares] = {}
        self._counts: dict[str, tuple[tuple[int, ...], int]] = {}
        self._weights = {
            (pool.name, tenant): max(1, round(weight * WEIGHT_ONE))
            for pool in known.settings.pools
            for tenant, weight in pool.tenant_weights
        }
        self._biggest: dict[tuple[str, int, str], int] = {}

    @property
    def _state(self) -> State:
        return self._engine._state

    def _broken(self, promise: str, text: str) -> None:
        self._known.broken(promise, f"epoch {self._state.settings.epoch}: {text}")

    # --- moments ---------------------------------------------------------------------------------

    def restored(self, step: Step) -> None:
        """A new leader has rebuilt its tables: they hold exactly what lives in the database."""
        chronicle, state = self._known.chronicle, self._state
        if chronicle.epoch > state.settings.epoch:
            return  # a later leader has written while this one read; it will be fenced
        for task_id in chronicle.live:
            if task_id not in state.tasks and task_id not in state.finished:
                self._broken("an acknowledged call survives", f"{task_id} was not recovered")
        for task_id in state.tasks:
            if task_id not in chronicle.live:
                self._broken("an end stays an end", f"{task_id} lives again after a recovery")
        for name, stored in chronicle.schedules.items():
            if name not in state.schedules or state.schedules[name].stored.spec != stored.spec:
                self._broken("an acknowledged call survives", f"schedule {name} is lost")
        self._count_all()
        del step

    def stepped(self, step: Step, now: Now) -> None:
        """A step was taken."""
        self._steps += 1
        started = [
            (effect.session, lease)
            for effect in step.effects
            if type(effect) is Dispatch
            for lease in effect.leases
        ]
        self._check_ids(step)
        self._check_semaphores(started)
        if started:
            self._check_slots(started)
            self._check_buckets(started, now)
            self._starts += 1
            if self._starts % LOOK_EVERY == 0:
                self._check_order(started, now)
        self._check_shares(started, now)
        if self._steps % EVERY == 0:
            self._count_all()
            self._check_timers(now)

    def _check_ids(self, step: Step) -> None:
        """Before they are written: an id that is there already would never be accepted."""
        for mutation in step.mutations:
            if type(mutation) is TaskInserted and mutation.task_id in self._known.chronicle.rows:
                self._broken("ids rise and are never reused", f"{mutation.task_id} again")

    # --- resources -------------------------------------------------------------------------------

    def _check_semaphores(self, started: list[tuple[int, Lease]]) -> None:
        """Held = what running attempts have; nothing starts beyond the permits."""
        state = self._state
        taken = {name for _, lease in started for name, _ in lease.spec.resources}
        held: dict[str, int] = {}
        for session in state.sessions.values():
            for attempt in session.leases.values():
                for name, amount in attempt.task.spec.resources:
                    held[name] = held.get(name, 0) + amount
        for account in state.resources.all():
            if account.is_bucket:
                continue
            out = held.get(account.name, 0)
            if account.held != out or account.available != account.capacity - out:
                self._broken(
                    "held = running",
                    f"{account.name}: held {account.held}, available {account.available} of "
                    f"{account.capacity}, running attempts have {out}",
                )
            elif account.name in taken and out > account.capacity:
                # One that shrank may have more out than it holds, but then gives nothing more.
                self._broken(
                    "limits are never exceeded",
                    f"{account.name}: {out} of {account.capacity} are out",
                )

    def _check_slots(self, started: list[tuple[int, Lease]]) -> None:
        state = self._state
        for number in dict.fromkeys(number for number, _ in started):
            session = state.sessions[number]
            if session.busy > session.granted:
                self._broken(
                    "slots are never exceeded",
                    f"session {number}: {session.busy} busy of {session.granted}",
                )
        for name, pool in state.pools.items():
            granted = sum(s.granted for s in state.sessions.values() if s.pool == name)
            if granted != pool.granted or granted > (pool.settings.max or granted):
                self._broken("slots granted never exceed a pool's max", f"{name}: {granted}")
            if pool.paused and any(lease.spec.pool == name for _, lease in started):
                self._broken("a paused pool starts nothing", name)

    def _check_buckets(self, started: list[tuple[int, Lease]], now: Now) -> None:
        state = self._state
        for _, lease in started:
            for name, amount in lease.spec.resources:
                rules = state.resources.rules_of(name)
                if rules is None or rules.permits is not None:
                    continue
                bucket = self._buckets.get(name)
                if bucket is None:
                    bucket = self._buckets[name] = Bucket(now.mono, rules.rate, rules.burst)
                elif (bucket.rate, bucket.burst) != (rules.rate, rules.burst):
                    # The resize came at some time since the last start: the better case counts.
                    bucket.rate = max(bucket.rate, rules.rate)
                    bucket.burst = max(bucket.burst, rules.burst)
                    bucket.resize(now.mono, rules.rate, rules.burst)
                    bucket.level = rules.burst * NANO * NANO
                if not bucket.take(now.mono, amount):
                    self._broken("limits are never exceeded", f"{name}: too fast at {now.mono}")
                    bucket.level = 0

    # --- order -----------------------------------------------------------------------------------

    def _check_order(self, started: list[tuple[int, Lease]], now: Now) -> None:
        """Among tasks that ask for the same, the best rank goes first."""
        state = self._state
        mono = now.mono
        worst: dict[tuple[object, ...], tuple[tuple[int, int, int], Task]] = {}
        for _, lease in started:
            task = state.tasks.get(lease.task_id)
            if task is None or task.deadline_at is not None or task.due_at is not None:
                continue
            if task.p_via is not None or task.p_real is not None:
                continue
            rank = (-score(task, mono), task.since, task.id)
            key = self._group(task)
            if key not in worst or rank > worst[key][0]:
                worst[key] = (rank, task)
        if not worst:
            return
        for task in state.tasks.values():
            if task.status != Status.READY or task.p_via is not None or task.p_real is not None:
                continue
            if task.deadline_at is not None and task.spec.resources:
                continue  # an elder of its class goes before it, however it presses
            if task.since >= mono:
                continue  # got in after others had started and so made room for it
            found = worst.get(self._group(task))
            if found is not None and (-score(task, mono), task.since, task.id) < found[0]:
                self._broken(
                    "first in, first out within equal demand",
                    f"{found[1].id} started with {found[0]}, {task.id} waits with "
                    f"{(-score(task, mono), task.since, task.id)}, at {task.p_at}, {task.p_rush}, "
                    f"{task.spec}",
                )

    def _group(self, task: Task) -> tuple[object, ...]:
        spec = task.spec
        fair = self._state.pools[spec.pool].settings.fair_share
        return (
            spec.pool,
            spec.kind,
            spec.labels,
            spec.resources,
            spec.tenant if fair else "",
            # Elders go first within their class; between tenants turns decide.
            spec.priority if spec.resources or fair else 0,
        )

    def _check_shares(self, started: list[tuple[int, Lease]], now: Now) -> None:
        """While several tenants wait all the time, what they get follows their weights."""
        state = self._state
        for name, pool in state.pools.items():
            if not pool.settings.fair_share:
                continue
            mine = sorted((x.lease, x) for _, x in started if x.spec.pool == name)
            count = (state.placement.count(name), len(state.tasks))
            if not mine and self._counts.get(name) == count:
                continue
            self._counts[name] = count
            waiting, old = self._waiting(name, now)
            for _, lease in mine:
                task = state.tasks.get(lease.task_id)
                if task is not None and task.since < now.mono:
                    tenants = old.setdefault((name, lease.spec.priority), {})
                    tenants[lease.spec.tenant] = tenants.get(lease.spec.tenant, 0) + 1
            self._forget_the_sated(name, old, begin=False)
            for _, lease in mine:
                self._charge(name, lease)
                self._use_up(lease, old, now)
            self._forget_the_sated(name, waiting)

    def _use_up(self, lease: Lease, old: dict[tuple[str, int], dict[str, int]], now: Now) -> None:
        """A tenant whose last old task starts has a break, even if more get in by that start."""
        task = self._state.tasks.get(lease.task_id)
        if task is None or task.since >= now.mono:
            return
        name = (lease.spec.pool, lease.spec.priority)
        tenants = old[name]
        tenants[lease.spec.tenant] -= 1
        if not tenants[lease.spec.tenant]:
            del tenants[lease.spec.tenant]
            self._shares.pop(name, None)

    def _cost(self, task: Task) -> int:
        """What a start costs its tenant; remembers the biggest."""
        spec = task.spec
        weight = self._weights.get((spec.pool, spec.tenant), WEIGHT_ONE)
        cost = max(COST_MIN, task.expected) * WEIGHT_ONE // weight
        name = (spec.pool, spec.priority, spec.tenant)
        self._biggest[name] = max(self._biggest.get(name, 0), cost)
        return cost

    def _charge(self, pool: str, lease: Lease) -> None:
        task = self._state.tasks.get(lease.task_id)
        if task is None:
            return
        cost, tenant, priority = self._cost(task), task.spec.tenant, task.priority
        if lease.spec.start_in is not None:
            # A slot may have been held for a fixed start, whoever's turn it was; it costs its
            # tenant as much as any other.
            self._shares.pop((pool, priority), None)
            return
        shares = self._shares.get((pool, priority))
        if shares is None or tenant not in shares.got:
            return
        shares.got[tenant] += cost
        mine = self._biggest[pool, priority, tenant]
        for other, got in shares.got.items():
            bound = 2 * (mine + self._biggest[pool, priority, other])
            if shares.got[tenant] - got > bound:
                self._broken(
                    "fair shares",
                    f"{pool} class {priority}: {tenant!r} is {shares.got[tenant] - got}"
                    f" ns ahead of {other!r}, the bound is {bound}",
                )

    def _waiting(
        self, pool: str, now: Now
    ) -> tuple[dict[tuple[str, int], dict[str, int]], dict[tuple[str, int], dict[str, int]]]:
        """How many tasks of each tenant wait in each class of a pool: all, and from before now."""
        waiting: dict[tuple[str, int], dict[str, int]] = {}
        old: dict[tuple[str, int], dict[str, int]] = {}
        for task in self._state.tasks.values():
            spec = task.spec
            if task.status != Status.READY or spec.pool != pool or task.p_via is not None:
                continue
            self._cost(task)
            for counts in (waiting, old) if task.since < now.mono else (waiting,):
                tenants = counts.setdefault((pool, spec.priority), {})
                tenants[spec.tenant] = tenants.get(spec.tenant, 0) + 1
        return waiting, old

    def _forget_the_sated(
        self, pool: str, waiting: dict[tuple[str, int], dict[str, int]], begin: bool = True
    ) -> None:
        """Only tenants that wait without a break are compared."""
        for name in [name for name in self._shares if name[0] == pool]:
            if self._shares[name].got.keys() != waiting.get(name, {}).keys():
                del self._shares[name]
        for name, tenants in waiting.items() if begin else ():
            if name not in self._shares:
                self._shares[name] = Shares(list(tenants))

    # --- counts ----------------------------------------------------------------------------------

    def _count_all(self) -> None:
        state = self._state
        counts: dict[tuple[str, int], int] = {}
        lined: dict[tuple[str, int], int] = {}
        booked: dict[str, int] = {}
        pins: dict[int, int] = {}
        for task in state.tasks.values():
            kind = (task.spec.pool, int(task.status))
            counts[kind] = counts.get(kind, 0) + 1
            if task.status == Status.READY:
                place = (task.spec.pool, task.priority)
                lined[place] = lined.get(place, 0) + 1
            if (task.p_at == STARTED) != (task.status == Status.RUNNING):
                self._broken("counts are equal", f"{task.id} is {task.status}, at {task.p_at}")
            if (task.lease != 0) != (task.status == Status.RUNNING):
                self._broken("counts are equal", f"{task.id} is {task.status}, {task.lease}")
            if task.booked is not None:
                booked[task.spec.pool] = booked.get(task.spec.pool, 0) + 1
            for parent in state.parents.get(task.id, ()):
                pins[parent] = pins.get(parent, 0) + 1
            if task.status == Status.BLOCKED and not task.unmet:
                self._broken("counts are equal", f"{task.id} is blocked by nothing")
        for name, pool in state.pools.items():
            for status in (*PENDING, Status.RUNNING):
                if pool.counts[status] != counts.get((name, status), 0):
                    self._broken(
                        "counts are equal",
                        f"{name}: {pool.counts[status]} said to be {status.name}, "
                        f"{counts.get((name, status), 0)} are",
                    )
            if pool.pending != sum(counts.get((name, status), 0) for status in PENDING):
                self._broken("counts are equal", f"{name}: pending {pool.pending}")
            if state.placement.count(name) != tuple(lined.get((name, p), 0) for p in (1, 2, 3, 4)):
                self._broken("counts are equal", f"{name}: {state.placement.count(name)} in line")
            if pool.bookings.total != booked.get(name, 0):
                self._broken("nothing booked leaks", f"{name}: {pool.bookings.total} booked")
            if not pool.paused and state.dispatching and not state.resting:
                self._check_idle(name)
        if state.pinned != pins:
            self._broken("nothing pinned leaks", f"{state.pinned} instead of {pins}")
        parked = [call for pool in state.pools.values() for call in pool.parked]
        if not state.parked.keys() <= set(parked):
            self._broken("no parked caller is lost", f"{list(state.parked)} in {parked}")

    def _check_timers(self, now: Now) -> None:
        """After a step nothing is due any more: whatever was, has happened."""
        state = self._state
        for task in state.tasks.values():
            due = 0
            if task.status == Status.SCHEDULED and task.due_at is not None:
                due = task.due_at
            elif task.status == Status.RETRYING:
                due = task.backoff_until - now.mono + now.wall
            if not task.attempt and task.status in UNSTARTED and task.expires_at is not None:
                due = min(due, task.expires_at) if due else task.expires_at
            if due and due <= now.wall:
                self._broken("what is due happens", f"{task.id}, {task.status}, at {due}")
        # A server that shuts down leaves to its successor what comes due.
        for name, schedule in state.schedules.items() if state.dispatching else ():
            at = schedule.due_at
            if at is not None and at <= now.wall and state.settings.catch_up_max > CUT:
                self._broken("what is due happens", f"schedule {name}, at {at}")
        for leases in state.lease_lists.values():
            if leases.next() + state.ttl_shift <= now.mono:
                self._broken("what is due happens", "a lease has expired")
        for timeouts in state.timeout_lists.values():
            if timeouts.next() <= now.mono:
                self._broken("what is due happens", "a timeout is over")

    def _check_idle(self, pool: str) -> None:
        """No slot stays empty while a task waits that fits it and wants nothing else."""
        state = self._state
        if state.placement.held(pool):
            return
        free = [s for s in state.sessions.values() if s.pool == pool and s.free]
        if not free:
            return
        for task in state.tasks.values():
            spec = task.spec
            if task.status != Status.READY or spec.pool != pool or spec.resources:
                continue
            if task.p_via is not None:
                continue
            for session in free:
                fits = set(spec.labels) <= set(session.labels)
                if fits and (not session.kinds or spec.kind in session.kinds):
                    self._broken(
                        "no slot idles beside a task that fits",
                        f"{task.id} waits, session {session.number} has {session.free} free",
                    )
                    return

    def at_rest(self) -> None:
        """Everything has ended and nobody waits: whatever is left anywhere has leaked."""
        state = self._state
        self._count_all()
        self._check_semaphores([])
        left = {
            "tasks": len(state.tasks),
            "pending": state.pending,
            "children": len(state.children),
            "parents": len(state.parents),
            "pinned": len(state.pinned),
            "awaited": len(state.awaited),
            "waits": len(state.waits),
            "waiters": len(state.waiters),
            "parked": len(state.parked),
            "occurrences": len(state.occurrences),
            "leases": sum(len(s.leases) for s in state.sessions.values()),
            "booked": sum(pool.bookings.total for pool in state.pools.values()),
            "stretches": sum(len(pool.bookings._times) for pool in state.pools.values()),
            "holds": sum(state.placement.held(name) for name in state.pools),
            "permits": sum(a.held for a in state.resources.all() if not a.is_bucket),
            "lease clocks": sum(x._head is not None for x in state.lease_lists.values()),
            "timeouts": sum(x._head is not None for x in state.timeout_lists.values()),
        }
        for what, count in left.items():
            if count:
                self._broken("nothing leaks", f"{count} {what} are left")
