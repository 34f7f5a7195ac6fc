"""Driver, store and the real engine together: what tasks, workers and callers live through."""

from __future__ import annotations

import asyncio
import functools
import gc
import sys
import weakref
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from cronoq_server.engine.effects import (
    Admitted,
    Bulked,
    CancelAttempt,
    Dispatch,
    Done,
    Joined,
    Lease,
    Page,
    Receipt,
    Result,
    TaskDetail,
    TaskView,
)
from cronoq_server.engine.events import (
    Bulk,
    Cancel,
    Completed,
    Delete,
    Failed,
    Get,
    GetOutput,
    HeartbeatsRead,
    ListTasks,
    Redrive,
    Resume,
    SubmitMode,
    Wait,
)
from cronoq_server.engine.ids import pack
from cronoq_server.engine.model import (
    BulkAction,
    Dependency,
    ErrorReason,
    PoolSettings,
    RetryPolicy,
    Status,
    TaskFilter,
    TaskSpec,
)
from cronoq_server.runtime import Ending, Outbound, Refused, Session, ShutdownNotice
from cronoq_server.runtime.watch_stream import WatchFilter
from cronoq_server.stores.base import FinishedPage, FinishedQuery
from cronoq_server.stores.memory import MemoryDisk, MemoryStore
from cronoq_server.testing.builders import submit
from cronoq_server.testing.faults import Fault, FaultyStore, ManualClock
from tests.runtime.rig import Rig, done, leases, real, seconds, settle, task

TTL = seconds(30)
FIRST = pack(None, 1, 1)
"""Id of the first task of a first leadership."""
QUICK_RETRY = RetryPolicy(3, seconds(1), 1.0, seconds(1), jitter=False)


async def submitted(rig: Rig, *specs: TaskSpec) -> list[int]:
    """Ids of tasks that were admitted."""
    answer = await done(rig.submit(*specs))
    assert isinstance(answer, Admitted), answer
    assert answer.refusals == ()
    return answer.ids


async def view(rig: Rig, target: int | str) -> TaskView:
    """How a task stands."""
    answer = await done(rig.ask(lambda call: Get(call, target)))
    assert isinstance(answer, TaskView), answer
    return answer


async def joined(rig: Rig, **given: Any) -> Session:
    """A worker that has registered."""
    session = rig.join(**given)
    (first, *rest) = await done(session.outbound())
    assert isinstance(first, Joined), first
    assert not rest
    return session


async def run_one(session: Session, number: int, output: bytes = b"out") -> Lease:
    """The worker takes one lease and completes it."""
    (lease,) = await leases(session)
    session.reported(number, [Completed(lease.lease, output, "text/plain")])
    await settle()
    return lease


def beat(session: Session, number: int, *running: int) -> None:
    """A heartbeat that names these leases."""
    last = max(running, default=0)
    session.beat(HeartbeatsRead(session.number, list(running), (), number, last))


async def refusal(work: asyncio.Task[Any]) -> ErrorReason:
    """Why this was refused."""
    await settle()
    error = work.exception()
    assert isinstance(error, Refused), error
    return error.refusal.reason


class TestLife:
    """From submit to result."""

    async def test_a_task_runs_and_its_result_is_told(self) -> None:
        """To whoever waits, with its output; the worker gets its receipt."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task(payload=b"in", key="a"))
            stream = rig.driver.inbox.results(lambda call: Wait(call, (task_id,), (), None))
            (lease,) = await leases(session)
            assert (lease.task_id, lease.attempt, lease.spec.payload) == (task_id, 1, b"in")
            session.reported(1, [Completed(lease.lease, b"out", "text/plain")])
            (told,) = [results async for results in stream]
            assert told.results == [Result(task_id, Status.SUCCEEDED, "", b"out", "text/plain")]
            assert await done(session.outbound()) == [Receipt(session.number, 1, 0)]

    async def test_a_receipt_means_that_the_report_is_durable(self) -> None:
        """Until then the worker keeps it."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task())
            (lease,) = await leases(session)
            await settle()
            rig.store.hold()
            session.reported(1, [Completed(lease.lease, b"", "")])
            outbound = asyncio.create_task(session.outbound())
            await settle()
            assert not outbound.done()
            rig.store.let_go()
            assert await done(outbound) == [Receipt(session.number, 1, 0)]
            assert rig.disk.tasks([task_id], 0)[0].position > 0

    async def test_a_heartbeat_is_answered_before_a_commit_that_is_under_way(self) -> None:
        """It names the beat, and of the reports only those that are durable already."""
        async with real() as rig:
            session = await joined(rig, slots=2)
            await submitted(rig, task(), task())
            first, second = await leases(session)
            session.reported(1, [Completed(first.lease, b"", "")])
            assert await done(session.outbound()) == [Receipt(session.number, 1, 0)]
            rig.store.hold()
            session.reported(2, [Completed(second.lease, b"", "")])
            await settle()
            beat(session, 1)
            assert await done(session.outbound()) == [Receipt(session.number, 1, 1)]
            rig.store.let_go()
            assert await done(session.outbound()) == [Receipt(session.number, 2, 1)]

    async def test_no_heartbeat_is_answered_on_an_old_proof_of_leadership(self) -> None:
        """Where the store has been silent another server may lead by now."""
        async with real() as rig:
            session = await joined(rig, slots=0)
            rig.store.hold()
            rig.submit(task())
            await settle()
            await rig.clock.advance(seconds(2))
            beat(session, 1)
            outbound = asyncio.create_task(session.outbound())
            await settle()
            assert not outbound.done()
            rig.store.let_go()
            assert await done(outbound) == [Receipt(session.number, 0, 1)]

    async def test_a_failing_task_is_tried_again(self) -> None:
        """After its backoff, by the monotonic clock; then it is dead-lettered."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task(retry=QUICK_RETRY))
            for attempt in (1, 2, 3):
                (lease,) = await leases(session)
                assert lease.attempt == attempt
                session.reported(attempt, [Failed(lease.lease, "no")])
                await rig.clock.advance(seconds(1))
            assert (await view(rig, task_id)).status == Status.DEAD_LETTERED

    @pytest.mark.parametrize("seed", range(5))
    async def test_whatever_the_store_does_each_task_ends_once(self, seed: int) -> None:
        """Outages and lost answers by chance: 30 tasks, 30 results, one attempt each."""
        disk = MemoryDisk()
        rig = Rig(ManualClock(), disk, FaultyStore(MemoryStore(disk), seed=seed, rate=0.4))
        await rig.lead()
        session = rig.join(slots=4)
        calls = [rig.submit(*[task()] * 10) for _ in range(3)]
        attempts: list[tuple[int, int]] = []
        working = asyncio.create_task(_work(session, attempts))
        for _ in range(400):
            await rig.clock.advance(seconds(0.5))
            if len(attempts) == 30:
                break
        await rig.clock.advance(seconds(10))
        ids = sorted(i for call in calls for i in call.result().ids)
        assert sorted(attempts) == [(i, 1) for i in ids]
        assert disk.live_ids() == []
        working.cancel()
        await rig.stop()


async def _work(session: Session, attempts: list[tuple[int, int]]) -> None:
    """A worker that completes what it gets, at once."""
    number = 0
    while True:
        for lease in leases_in(await session.outbound()):
            number += 1
            attempts.append((lease.task_id, lease.attempt))
            session.reported(number, [Completed(lease.lease, b"", "")])


def leases_in(outbound: list[Outbound]) -> list[Lease]:
    """The leases among what a session is sent."""
    return [lease for e in outbound if isinstance(e, Dispatch) for lease in e.leases]


class TestReads:
    """Answers are the same wherever a task is found."""

    FORGETFUL: ClassVar[dict[str, Any]] = {"engine": {"finished_max": 0, "key_retention": 0}}

    @pytest.mark.parametrize("forgetful", [True, False])
    async def test_a_finished_task_can_be_read(self, forgetful: bool) -> None:
        """By id and by key, with its payload in detail, whether the engine knows it or not."""
        given: Any = self.FORGETFUL if forgetful else {}
        async with real(**given) as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task(key="a", payload=b"in"))
            await run_one(session, 1)
            for target in (task_id, "a"):
                found = await view(rig, target)
                assert (found.task_id, found.status, found.has_output) == (task_id, 6, True)
            detail = await done(rig.ask(lambda call: Get(call, task_id, detail=True)))
            assert isinstance(detail, TaskDetail)
            assert detail.view.spec.payload == b"in"
            assert await done(rig.ask(lambda call: Cancel(call, task_id))) == Done(False)
            stream = rig.driver.inbox.results(lambda call: Wait(call, (), ("a",), None))
            (told,) = [results async for results in stream]
            assert told.results == [Result(task_id, 6, "", b"out", "text/plain")]

    async def test_a_task_in_a_foreign_pool_is_as_unknown_as_none(self) -> None:
        """Word for word, so that nobody can tell."""
        pools = (PoolSettings("default"), PoolSettings("secret"))
        async with real(engine={"pools": pools}) as rig:
            session = await joined(rig, pool="secret")
            ended, live = await submitted(rig, task(pool="secret"), task(pool="secret"))
            await run_one(session, 1)
            scope = frozenset({"default"})
            said = set()
            for target in (ended, live, live + 1):
                call = rig.ask(functools.partial(Get, target=target, scope=scope))
                assert await refusal(call) is ErrorReason.TASK_UNKNOWN
                said.add(str(call.exception()).replace(str(target), "N"))
            assert len(said) == 1

    async def test_a_page_holds_live_and_finished_tasks_in_order(self) -> None:
        """Each once, whatever the page's size and direction."""
        async with real() as rig:
            session = await joined(rig)
            ids = await submitted(rig, *[task()] * 7)
            for number in (1, 2, 3):
                await run_one(session, number)
            for newest_first in (False, True):
                for limit in (1, 2, 3, 7, 8):
                    assert await _listed(rig, limit, newest_first) == sorted(
                        ids, reverse=newest_first
                    )

    async def test_a_worker_reads_its_parents_output(self) -> None:
        """With the lease of the child; another lease is refused."""
        async with real() as rig:
            session = await joined(rig)
            (parent,) = await submitted(rig, task())
            await run_one(session, 1, b"from the parent")
            (child,) = await submitted(rig, task(dependencies=(Dependency(parent),)))
            (lease,) = await leases(session)
            assert (lease.task_id, lease.parents) == (child, (parent,))
            answer = await done(
                rig.ask(lambda call: GetOutput(call, session.number, lease.lease, parent))
            )
            assert answer == Result(parent, 6, "", b"from the parent", "text/plain")
            foreign = rig.ask(lambda call: GetOutput(call, session.number, 12345, parent))
            assert await refusal(foreign) is ErrorReason.TASK_UNKNOWN


async def _listed(rig: Rig, limit: int, newest_first: bool) -> list[int]:
    found: list[int] = []
    after = 0
    while True:
        query = functools.partial(
            ListTasks, filter=TaskFilter(), after=after, limit=limit, newest_first=newest_first
        )
        page = await done(rig.ask(query))
        assert isinstance(page, Page)
        found += [view.task_id for view in page.tasks]
        after = page.next_after
        if after == 0:
            return found


class TestMemoryOfTheStore:
    """Keys and parents that the engine has forgotten are looked up before a submit enters."""

    GIVEN: ClassVar[dict[str, Any]] = {
        "remembers": True,
        "engine": {"finished_max": 0, "key_retention": 0, "store_remembers": True},
    }

    async def test_a_key_is_a_duplicate_as_long_as_the_store_knows_it(self) -> None:
        """Though the engine does not."""
        async with real(**self.GIVEN) as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task(key="a"))
            await run_one(session, 1)
            again = await done(rig.submit(task(key="b"), task(key="a")))
            assert isinstance(again, Admitted)
            assert (again.ids[1], again.duplicates) == (task_id, (1,))

    async def test_an_unknown_key_is_new(self) -> None:
        """The look-up finds nothing, and the task is admitted."""
        async with real(**self.GIVEN) as rig:
            assert len(await submitted(rig, task(key="a"), task(key="b"))) == 2

    async def test_others_are_not_kept_waiting_by_a_look_up(self) -> None:
        """A slow query holds back only those it is for."""
        async with real(**self.GIVEN) as rig:
            rig.store.hold_searches()
            keyed = rig.submit(task(key="a"))
            await settle()
            await submitted(rig, task())
            assert not keyed.done()
            rig.store.let_go()
            await done(keyed)

    async def test_a_look_up_that_fails_is_tried_again(self) -> None:
        """The caller does not notice."""
        async with real(**self.GIVEN) as rig:
            rig.store.fail_searches(2)
            keyed = rig.submit(task(key="a"))
            await settle()
            assert not keyed.done()
            await rig.clock.advance(seconds(1))
            assert len((await done(keyed)).ids) == 1

    async def test_a_caller_whose_look_up_takes_too_long_is_refused(self) -> None:
        """Like one whose commit does; its task is not submitted later."""
        async with real(**self.GIVEN, commit_timeout=seconds(10)) as rig:
            rig.store.hold_searches()
            keyed = rig.submit(task(key="a"))
            await rig.clock.advance(seconds(12))
            assert await refusal(keyed) is ErrorReason.STORE_UNAVAILABLE
            rig.store.let_go()
            await rig.clock.advance(seconds(1))
            assert rig.disk.live_ids() == []


class TestPutBack:
    """Ended tasks are put back, or deleted, with what the store knows of them."""

    @pytest.mark.parametrize("by_key", [True, False])
    async def test_a_redriven_task_runs_again_with_its_payload(self, by_key: bool) -> None:
        """The engine had kept none of it."""
        async with real() as rig:
            session = await joined(rig)
            task_id = await failed(rig, session, task(key="a", payload=b"in"))
            target = "a" if by_key else task_id
            assert await done(rig.ask(lambda call: Redrive(call, target))) == Done(True)
            (lease,) = await leases(session)
            assert (lease.task_id, lease.attempt, lease.spec.payload) == (task_id, 2, b"in")

    async def test_an_end_on_its_way_to_the_store_is_waited_for(self) -> None:
        """A redrive that comes right after it finds it."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task())
            (lease,) = await leases(session)
            rig.store.hold()
            session.reported(1, [Failed(lease.lease, "no", permanent=True)])
            await settle()
            call = rig.ask(lambda call: Redrive(call, task_id))
            await settle()
            assert rig.store.searches == []
            rig.store.let_go()
            assert await done(call) == Done(True)

    async def test_a_deleted_task_is_gone(self) -> None:
        """For the store as well."""
        async with real() as rig:
            session = await joined(rig)
            task_id = await failed(rig, session, task())
            assert await done(rig.ask(lambda call: Delete(call, task_id))) == Done(True)
            read = rig.ask(lambda call: Get(call, task_id))
            assert await refusal(read) is ErrorReason.TASK_UNKNOWN

    async def test_many_are_put_back_page_by_page(self) -> None:
        """Those that ended without success, in the caller's pools, and each once."""
        pools = (PoolSettings("default"), PoolSettings("secret"))
        async with real(engine={"pools": pools}) as rig:
            session = await joined(rig)
            await submitted(rig, task())
            await run_one(session, 1)
            ids = [await failed(rig, session, task(payload=b"in")) for _ in range(5)]
            hidden = await joined(rig, pool="secret")
            await failed(rig, hidden, task(pool="secret"))
            after, answers = 0, []
            while True:
                query = functools.partial(
                    Bulk,
                    filter=TaskFilter(),
                    action=BulkAction.RETRY,
                    limit=2,
                    after=after,
                    scope=frozenset({"default"}),
                )
                answer = await done(rig.ask(query))
                assert isinstance(answer, Bulked)
                answers.append((answer.matched, answer.changed))
                after = answer.next_after
                if not after:
                    break
            assert sum(matched for matched, _ in answers) == 5
            assert all(matched == changed for matched, changed in answers)
            assert rig.disk.live_ids() == ids


class TestForgottenParents:
    """Tasks put back whose parents only the store knows: how those ended counts all the same."""

    FORGETFUL: ClassVar[dict[str, Any]] = {"finished_max": 0, "key_retention": 0}

    @pytest.mark.parametrize("by_key", [True, False])
    @pytest.mark.parametrize("by", ["redrive", "bulk"])
    async def test_one_that_failed_forbids_it(self, by_key: bool, by: str) -> None:
        """The child was skipped since its parent failed, and that has not changed."""
        async with real(engine=self.FORGETFUL) as rig:
            session = await joined(rig)
            parent, child = await submitted(
                rig,
                task(key="p", retry=RetryPolicy(max_attempts=1)),
                task(key="c", dependencies=(Dependency("p" if by_key else FIRST),)),
            )
            assert parent == FIRST
            (lease,) = await leases(session)
            session.reported(1, [Failed(lease.lease, "no", permanent=True)])
            await settle()
            assert (await view(rig, child)).status == Status.SKIPPED
            if by == "redrive":
                call = rig.ask(lambda call: Redrive(call, child))
                assert await refusal(call) is ErrorReason.DEPENDENCY_IMPOSSIBLE
            else:
                only = TaskFilter(keys=("c",))
                bulk = functools.partial(Bulk, filter=only, action=BulkAction.RETRY, limit=9)
                assert await done(rig.ask(bulk)) == Bulked(1, 0, 0)
            assert rig.disk.live_ids() == []

    async def test_output_of_one_that_succeeded_can_be_read_again(self) -> None:
        """The child is told its parents as it was the first time, also after a failover."""
        async with real(engine=self.FORGETFUL) as rig:
            session = await joined(rig)
            (parent,) = await submitted(rig, task(key="p"))
            child = rig.submit(task(dependencies=(Dependency(parent),)))
            await run_one(session, 1, b"from the parent")
            (task_id,) = (await done(child)).ids
            (lease,) = await leases(session)
            session.reported(2, [Failed(lease.lease, "no", permanent=True)])
            await settle()
            assert await done(rig.ask(lambda call: Redrive(call, task_id))) == Done(True)
            (lease,) = await leases(session)
            assert (lease.task_id, lease.parents) == (task_id, (parent,))
            answer = await done(
                rig.ask(lambda call: GetOutput(call, session.number, lease.lease, parent))
            )
            assert answer == Result(parent, 6, "", b"from the parent", "text/plain")

    async def test_one_that_is_put_back_beside_its_child_has_its_payload(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both calls are answered by one look-up, which finds the parent whole for one of them."""
        find = MemoryStore.find_finished

        async def slim(store: MemoryStore, query: FinishedQuery) -> FinishedPage:
            page = await find(store, query)
            bare = [replace(each, spec=replace(each.spec, payload=b"")) for each in page.tasks]
            return replace(page, tasks=bare)

        monkeypatch.setattr(MemoryStore, "find_finished", slim)
        async with real(engine=self.FORGETFUL) as rig:
            session = await joined(rig)
            await submitted(
                rig, task(key="p", payload=b"in"), task(key="c", dependencies=(Dependency("p"),))
            )
            (lease,) = await leases(session)
            session.reported(1, [Failed(lease.lease, "no", permanent=True)])
            await settle()
            calls = [rig.ask(functools.partial(Redrive, target=key)) for key in ("p", "c")]
            await settle()
            assert [await call for call in calls] == [Done(True), Done(True)]
            assert (await leases(session))[0].spec.payload == b"in"
            assert (await view(rig, "c")).status == Status.BLOCKED

    async def test_one_that_is_put_back_with_its_child_is_waited_for(self) -> None:
        """What lives counts more than how it once ended."""
        async with real(engine=self.FORGETFUL) as rig:
            session = await joined(rig)
            parent, child = await submitted(
                rig, task(key="p"), task(dependencies=(Dependency("p"),))
            )
            (lease,) = await leases(session)
            session.reported(1, [Failed(lease.lease, "no", permanent=True)])
            await settle()
            bulk = functools.partial(Bulk, filter=TaskFilter(), action=BulkAction.RETRY, limit=9)
            assert await done(rig.ask(bulk)) == Bulked(2, 2, 0)
            assert (await view(rig, child)).status == Status.BLOCKED
            assert (await run_one(session, 2)).task_id == parent
            assert (await run_one(session, 3)).task_id == child


class TestOvertaken:
    """Questions that a redrive overtakes: neither the engine nor the store knew the task."""

    FORGETFUL: ClassVar[dict[str, Any]] = {"engine": {"finished_max": 0}}

    async def overtake(self, rig: Rig, session: Session, question: asyncio.Task[Any]) -> Lease:
        """Puts the task back while the store is asked for its end; the lease it then has."""
        await settle()
        assert await done(rig.ask(lambda call: Redrive(call, "a"))) == Done(True)
        (lease,) = await leases(session)
        assert not question.done()
        rig.store.let_go()
        await settle()
        return lease

    async def test_a_read_finds_the_task_alive(self) -> None:
        """It runs again, and so it is shown."""
        async with real(**self.FORGETFUL) as rig:
            session = await joined(rig)
            task_id = await failed(rig, session, task(key="a"))
            rig.store.hold_searches(1)
            question = rig.ask(lambda call: Get(call, task_id))
            await self.overtake(rig, session, question)
            assert (await done(question)).status == Status.RUNNING

    @pytest.mark.parametrize("by_key", [True, False])
    async def test_a_wait_goes_on_to_the_next_end(self, by_key: bool) -> None:
        """It is not told that there is no such task."""
        async with real(**self.FORGETFUL) as rig:
            session = await joined(rig)
            task_id = await failed(rig, session, task(key="a"))
            ids, keys = ((), ("a",)) if by_key else ((task_id,), ())
            rig.store.hold_searches(1)
            stream = rig.driver.inbox.results(lambda call: Wait(call, ids, keys, None))
            question = asyncio.ensure_future(anext(stream))
            lease = await self.overtake(rig, session, question)
            assert not question.done()
            session.reported(lease.lease, [Completed(lease.lease, b"out", "text/plain")])
            told = await done(question)
            assert told.results == [Result(task_id, Status.SUCCEEDED, "", b"out", "text/plain")]
            assert (told.refusals, told.last) == ((), True)

    @pytest.mark.parametrize("by_key", [True, False])
    async def test_a_watch_sees_the_next_end(self, by_key: bool) -> None:
        """It refuses no task that is there, and leaves one watch in the engine."""
        async with real(**self.FORGETFUL) as rig:
            session = await joined(rig)
            task_id = await failed(rig, session, task(key="a"))
            names = WatchFilter(keys=("a",)) if by_key else WatchFilter(ids=(task_id,))
            rig.store.hold_searches(1)
            question = asyncio.ensure_future(rig.driver.watchers.open(names))
            lease = await self.overtake(rig, session, question)
            stream = await done(question)
            assert stream.refusals == []
            session.reported(lease.lease, [Completed(lease.lease, b"out", "text/plain")])
            batch = await done(anext(stream))
            assert [event.status for event, _ in batch.events] == [Status.SUCCEEDED]
            await settle()
            assert rig.engine._state.watches == 1
            await stream.aclose()

    async def test_a_task_that_nobody_knows_is_refused_by_each(self) -> None:
        """After the second look."""
        async with real(**self.FORGETFUL) as rig:
            read = rig.ask(lambda call: Get(call, 77))
            assert await refusal(read) is ErrorReason.TASK_UNKNOWN
            stream = rig.driver.inbox.results(lambda call: Wait(call, (77,), (), None))
            told = await done(anext(stream))
            assert [target for target, _ in told.refusals] == [77]
            assert told.last
            watch = await done(rig.driver.watchers.open(WatchFilter(ids=(77,))))
            assert [target for target, _ in watch.refusals] == [77]
            await watch.aclose()


async def failed(rig: Rig, session: Session, spec: TaskSpec) -> int:
    """A task that has failed for good."""
    (task_id,) = await submitted(rig, spec)
    (lease,) = await leases(session)
    session.reported(lease.lease, [Failed(lease.lease, "no", permanent=True)])
    await settle()
    return task_id


class TestWallClock:
    """Somebody sets the wall clock."""

    async def test_a_jump_of_an_hour_expires_no_lease(self) -> None:
        """Leases, timeouts and backoffs go by the monotonic clock."""
        async with real() as rig:
            session = await joined(rig, slots=2)
            ids = await submitted(rig, task(timeout=seconds(60)), task())
            first, second = await leases(session)
            await settle()
            rig.clock.set_wall(seconds(3600))
            await settle()
            for number in range(1, 5):
                await rig.clock.advance(seconds(10))
                beat(session, number, first.lease, second.lease)
            await settle()
            for task_id in ids:
                assert (await view(rig, task_id)).status == Status.RUNNING
            session.reported(1, [Completed(x.lease, b"", "") for x in (first, second)])
            await settle()
            for task_id in ids:
                found = await view(rig, task_id)
                assert (found.status, found.attempt) == (Status.SUCCEEDED, 1)

    async def test_a_jump_of_an_hour_makes_due_what_waits_for_an_instant(self) -> None:
        """And only that."""
        async with real() as rig:
            session = await joined(rig, slots=5)
            soon, late = await submitted(rig, task(delay=seconds(1800)), task(delay=seconds(7200)))
            rig.clock.set_wall(seconds(3600))
            await settle()
            assert [lease.task_id for lease in await leases(session)] == [soon]
            assert (await view(rig, late)).status == Status.SCHEDULED

    async def test_set_back_by_ten_minutes_nothing_stops(self) -> None:
        """What waits for an instant comes at half speed; leases and retries as ever."""
        async with real() as rig:
            session = await joined(rig, slots=5)
            (delayed,) = await submitted(rig, task(delay=seconds(60)))
            rig.clock.set_wall(-seconds(600))
            (failing,) = await submitted(rig, task(retry=QUICK_RETRY))
            (lease,) = await leases(session)
            session.reported(1, [Failed(lease.lease, "no")])
            await rig.clock.advance(seconds(1))
            (again,) = await leases(session)
            assert (again.task_id, again.attempt) == (failing, 2)
            session.reported(2, [Completed(again.lease, b"", "")])
            await rig.clock.advance(seconds(117))
            assert (await view(rig, delayed)).status == Status.SCHEDULED
            await rig.clock.advance(seconds(3))
            assert (await view(rig, delayed)).status == Status.RUNNING

    async def test_set_back_by_ten_minutes_nothing_happens_twice(self) -> None:
        """Over half an hour every task gets one lease, those due before and those due after."""
        async with real() as rig:
            session = await joined(rig, slots=5)
            ids = await submitted(rig, task(delay=seconds(5)), task(), task(delay=seconds(900)))
            seen: list[int] = []
            for number in range(1, 200):
                await rig.clock.advance(seconds(10))
                seen += [lease.lease for lease in leases_in(await sent(session))]
                beat(session, number, *seen)
                if number == 1:
                    rig.clock.set_wall(-seconds(600))
            assert len(seen) == len(ids)
            for task_id in ids:
                found = await view(rig, task_id)
                assert (found.status, found.attempt) == (Status.RUNNING, 1)

    async def test_a_lease_that_nobody_renews_expires_after_its_ttl(self) -> None:
        """Set back or not: the wall adds nothing."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task())
            await leases(session)
            await settle()
            rig.clock.set_wall(-seconds(600))
            await rig.clock.advance(TTL - seconds(1))
            assert (await view(rig, task_id)).status == Status.RUNNING
            await rig.clock.advance(seconds(2))
            assert (await view(rig, task_id)).status in (Status.RETRYING, Status.READY)

    async def test_set_back_by_hours_the_new_time_is_taken(self) -> None:
        """New tasks carry it, and what waits for an instant of the old time goes on waiting."""
        async with real() as rig:
            await joined(rig)
            (waiting,) = await submitted(rig, task(delay=seconds(60)))
            rig.clock.set_wall(-seconds(7200))
            (later,) = await submitted(rig, task(delay=seconds(5)))
            old, new = await view(rig, waiting), await view(rig, later)
            assert new.created_at == old.created_at - seconds(7200)
            await rig.clock.advance(seconds(10))
            assert (await view(rig, later)).status == Status.RUNNING
            assert (await view(rig, waiting)).status == Status.SCHEDULED


async def sent(session: Session) -> list[Outbound]:
    """What waits for a session now, if anything."""
    reading = asyncio.create_task(session.outbound())
    await settle()
    if reading.done():
        return reading.result()
    reading.cancel()
    return []


class TestSilentLeader:
    """Time in which the leader could not listen is nobody's fault."""

    async def test_a_pause_longer_than_the_ttl_expires_no_lease(self) -> None:
        """The process stood still for a minute; heartbeats that waited are read afterwards."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task())
            (lease,) = await leases(session)
            await settle()
            rig.clock.stand_still(seconds(60))
            await settle()
            assert (await view(rig, task_id)).status == Status.RUNNING
            beat(session, 1, lease.lease)
            await rig.clock.advance(TTL - seconds(2))
            assert (await view(rig, task_id)).status == Status.RUNNING


class TestLostWorkers:
    """Streams that break."""

    async def test_leases_never_handed_over_go_to_another_within_the_same_attempt(self) -> None:
        """They were still queued here when the stream broke."""
        async with real() as rig:
            first = await joined(rig)
            (task_id,) = await submitted(rig, task())
            second = await joined(rig)
            first.lost(clean=False)
            (lease,) = await leases(second)
            assert (lease.task_id, lease.attempt) == (task_id, 1)

    async def test_a_resumed_session_keeps_its_attempts(self) -> None:
        """Named and held: adopted under the new session, and completed there."""
        async with real() as rig:
            first = await joined(rig)
            (task_id,) = await submitted(rig, task())
            (lease,) = await leases(first)
            await settle()
            first.lost(clean=False)
            await rig.clock.advance(seconds(5))
            resume = Resume(first.token, (lease.lease,))
            second = rig.join(resume=resume)
            (answer, *_) = await done(second.outbound())
            assert isinstance(answer, Joined)
            assert answer.adopted == (lease.lease,)
            second.reported(1, [Completed(lease.lease, b"", "")])
            await settle()
            found = await view(rig, task_id)
            assert (found.status, found.attempt) == (Status.SUCCEEDED, 1)

    async def test_a_draining_worker_that_resumes_may_be_told_to_stop_its_handlers(self) -> None:
        """It offers no slot any more, but what it runs can be cancelled."""
        async with real() as rig:
            first = await joined(rig)
            (task_id,) = await submitted(rig, task())
            (lease,) = await leases(first)
            await settle()
            first.lost(clean=False)
            resume = Resume(first.token, (lease.lease,))
            second = rig.join(slots=0, resume=resume)
            await settle()
            await done(rig.ask(lambda call: Cancel(call, task_id)))

            said = await done(second.outbound())
            assert CancelAttempt(second.number, ((lease.lease, "cancelled by a client"),)) in said

    @pytest.mark.parametrize("protocol", [3, 4])
    async def test_cancel_before_a_lease_has_left_frees_its_slot(self, protocol: int) -> None:
        """The worker hears of neither, whether it could say that it has stopped or not."""
        async with real() as rig:
            session = await joined(rig, protocol=protocol)
            rig.store.hold()
            rig.submit(task(delay=seconds(3600)))
            await settle()
            rig.submit(task(key="a"))
            await settle()
            rig.submit(task(key="b"))
            rig.ask(lambda call: Cancel(call, "a"))
            await settle()
            rig.store.let_go()

            said = await done(session.outbound())
            keys = [x.spec.key for e in said if isinstance(e, Dispatch) for x in e.leases]
            assert keys == ["b"]

    async def test_slots_that_come_later_are_used_without_cutting_the_worker_off(self) -> None:
        """A worker that found its pool full is given the slots of the one that leaves."""
        pools = (PoolSettings("default", max=1),)
        async with real(engine={"pools": pools}) as rig:
            first = rig.join()
            await settle()
            second = rig.join()
            (answer,) = await done(second.outbound())
            assert isinstance(answer, Joined)
            assert answer.slots == 0

            first.lost(clean=True)
            admitted = await done(rig.submit(task()))

            (lease,) = await leases(second)
            assert [lease.task_id] == admitted.ids


async def succeed(rig: Rig) -> Rig:
    """Another replica on the same disk, which believes this one gone."""
    rig.disk.lapsed = True
    other = Rig(rig.clock, rig.disk, FaultyStore(MemoryStore(rig.disk)))
    await other.lead()
    return other


class TestFailover:
    """Another driver on the same store."""

    async def test_what_was_acknowledged_is_there_once(self) -> None:
        """Waiting, running and finished tasks go on under the new leader."""
        async with real() as rig:
            session = await joined(rig)
            ids = await submitted(rig, *[task(retry=QUICK_RETRY)] * 3)
            await run_one(session, 1)
            (running,) = await leases(session)
            assert running.task_id == ids[1]
            other = await succeed(rig)
            assert [(await view(other, i)).status for i in ids] == [
                Status.SUCCEEDED,
                Status.RETRYING,
                Status.READY,
            ]
            (new,) = await submitted(other, task())
            assert new > max(ids)
            assert await refusal(rig.submit()) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED
            assert len(await _listed(other, 100, False)) == 4
            await other.stop()

    async def test_a_deposed_leader_answers_no_read(self) -> None:
        """It believed in its leadership until it asked."""
        async with real() as rig:
            (task_id,) = await submitted(rig, task())
            other = await succeed(rig)
            read = rig.ask(lambda call: Get(call, task_id))
            assert await refusal(read) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED
            await other.stop()

    async def test_a_deposed_leader_calls_no_cursor_unknown(self) -> None:
        """Its successor gave it: whoever resumes with it has lost nothing, and asks elsewhere."""
        async with real() as rig:
            await submitted(rig, task())
            other = await succeed(rig)
            cursor = other.driver.watchers.present()
            wanted = WatchFilter(all_transitions=True)
            watch = asyncio.create_task(rig.driver.watchers.open(wanted, after_cursor=cursor))
            assert await refusal(watch) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED
            await other.stop()

    @pytest.mark.regression("R6")
    @pytest.mark.parametrize("turns", range(0, 24, 2))
    async def test_each_attempt_number_is_dispatched_once(self, turns: int) -> None:
        """With a frozen clock: submit and dispatch in the nanosecond of the takeover."""
        async with real() as rig:
            session = await joined(rig)
            seen: list[tuple[int, int]] = []
            working = asyncio.create_task(_collect(session, seen))
            call = rig.submit(task(retry=QUICK_RETRY), task(retry=QUICK_RETRY))
            for _ in range(turns):
                await asyncio.sleep(0)
            other = await succeed(rig)
            there = other.join(slots=5)
            also = asyncio.create_task(_collect(there, seen))
            await rig.clock.advance(seconds(2))
            acknowledged = call.result().ids if call.exception() is None else []
            assert len(set(seen)) == len(seen)
            assert {i for i, _ in seen} >= set(acknowledged)
            working.cancel()
            also.cancel()
            await other.stop()

    async def test_an_old_leader_leaves_nothing_in_memory(self) -> None:
        """Records that the collector does not see are freed when a leadership ends."""
        payload = bytes(12345)
        before = sys.getrefcount(payload)
        async with real() as rig:
            session = await joined(rig, slots=2)
            await submitted(rig, *[task(payload=payload, key=f"k{n}") for n in range(5)])
            await leases(session)
            rig.store.add_faults(Fault.FENCED)
            await settle()
            assert await refusal(rig.submit()) is ErrorReason.STORE_UNAVAILABLE
            assert await done(rig.running) is Ending.FENCED
            engine = weakref.ref(rig.engine)
            del rig.engine, rig.driver, session
            gc.collect()
            assert engine() is None
        del rig
        gc.collect()
        assert sys.getrefcount(payload) == before


async def _collect(session: Session, seen: list[tuple[int, int]]) -> None:
    """A worker that notes what it gets and never answers."""
    while True:
        leases = leases_in(await session.outbound())
        seen += [(lease.task_id, lease.attempt) for lease in leases]


class TestShutdown:
    """A server that stops in order."""

    async def test_running_attempts_may_report(self) -> None:
        """Meanwhile calls are answered; then comes the last commit, and the term is free."""
        async with real() as rig:
            session = await joined(rig)
            _, waiting = await submitted(rig, task(), task())
            (lease,) = await leases(session)
            await settle()
            stopping = asyncio.create_task(rig.driver.stop(seconds(30)))
            assert await done(session.outbound()) == [
                ShutdownNotice("the server is shutting down", False)
            ]
            assert not stopping.done()
            assert rig.driver.ready
            (late,) = await submitted(rig, task())
            session.reported(1, [Completed(lease.lease, b"", "")])
            await done(stopping)
            assert await done(rig.running) is Ending.STOPPED
            assert rig.disk.holder is None
            assert rig.disk.live_ids() == [waiting, late]
            told = await done(session.outbound())
            assert Receipt(session.number, 1, 0) in told
            assert ShutdownNotice("the server has stopped", True) in told

    async def test_with_nothing_running_it_stops_at_once(self) -> None:
        """Nobody is waited for."""
        async with real() as rig:
            await submitted(rig, task())
            await done(rig.driver.stop(seconds(30)))
            assert await done(rig.running) is Ending.STOPPED
            assert await refusal(rig.submit()) is ErrorReason.STOPPING

    async def test_no_attempt_starts_any_more(self) -> None:
        """A task that could run waits for the next leader, also with a worker that joins late."""
        async with real() as rig:
            session = await joined(rig, slots=1)
            await submitted(rig, task())
            await leases(session)
            stopping = asyncio.create_task(rig.driver.stop(seconds(30)))
            await settle()
            other = rig.join(slots=3)
            first, second = await done(other.outbound())
            assert isinstance(first, Joined)
            assert isinstance(second, ShutdownNotice)
            await submitted(rig, task())
            assert await sent(other) == []
            stopping.cancel()

    async def test_the_grace_is_the_end(self) -> None:
        """An attempt that still runs counts as used by the next leader."""
        async with real() as rig:
            session = await joined(rig)
            (task_id,) = await submitted(rig, task(retry=QUICK_RETRY))
            (lease,) = await leases(session)
            stopping = asyncio.create_task(rig.driver.stop(seconds(5)))
            for number in range(1, 5):
                await rig.clock.advance(seconds(1))
                beat(session, number, lease.lease)
            assert not stopping.done()
            await rig.clock.advance(seconds(1.5))
            assert stopping.done()
            assert await done(rig.running) is Ending.STOPPED
            other = await succeed(rig)
            found = await view(other, task_id)
            assert (found.status, found.attempt) == (Status.RETRYING, 1)
            await other.stop()

    async def test_parked_calls_are_refused_as_not_executed(self) -> None:
        """They may be sent to the next leader."""
        pools = (PoolSettings("default", max_pending=1),)
        async with real(engine={"pools": pools}) as rig:
            await submitted(rig, task())
            parked = rig.ask(lambda call: submit(call, mode=SubmitMode.ONE))
            await settle()
            assert not parked.done()
            await done(rig.driver.stop(seconds(30)))
            assert await refusal(parked) is ErrorReason.STOPPING
            assert len(rig.disk.live_ids()) == 1

    async def test_a_store_out_of_reach_does_not_hold_it_up_for_ever(self) -> None:
        """What could not be written is refused as unknown, and the driver ends."""
        async with real() as rig:
            rig.store.hold()
            call = rig.submit()
            await settle()
            stopping = asyncio.create_task(rig.driver.stop(seconds(5)))
            await rig.clock.advance(seconds(8))
            assert stopping.done()
            assert await done(rig.running) is Ending.STOPPED
            assert await refusal(call) is ErrorReason.STORE_UNAVAILABLE
