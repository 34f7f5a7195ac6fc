"""Questions: get, list, wait, watch, workers, outputs; and what a scope hides."""

from __future__ import annotations

from typing import Any

import pytest

from cronoq_server.engine import effects, views
from cronoq_server.engine.events import (
    Cancel,
    Forget,
    Get,
    GetOutput,
    ListTasks,
    ListWorkers,
    SnapshotQuery,
    Unwatch,
    Wait,
    Watch,
)
from cronoq_server.engine.model import (
    SECOND,
    EdgeCondition,
    ErrorReason,
    PoolSettings,
    Progress,
    Refusal,
    ResourceSettings,
    Status,
    TaskFilter,
)
from tests.engine.harness import World, after, spec

A, B = frozenset({"a"}), frozenset({"b"})


def two_pools(**settings: Any) -> World:
    """A world whose callers may be allowed one pool or the other."""
    return World(PoolSettings("a"), PoolSettings("b"), **settings)


def unknown(answer: object) -> None:
    """The answer says that there is no such task."""
    assert isinstance(answer, Refusal)
    assert answer.reason == ErrorReason.TASK_UNKNOWN


# --- get -----------------------------------------------------------------------------------------


def test_get_tells_a_live_task_by_id_and_by_key() -> None:
    """EN-80: the same view both ways."""
    world = World()
    task = world.add(spec("mail", key="k", payload=b"x"))
    assert world.view(task) == world.view("k")
    view = world.view(task)
    assert (view.spec.kind, view.attempt, view.attempts_max) == ("mail", 0, 3)
    assert view.started_at is view.finished_at is None


def test_get_of_what_the_engine_does_not_hold_goes_to_the_store() -> None:
    """EN-80: ended, forgotten or never there: the store decides, after the commit."""
    world = World()
    task = world.add(spec(key="k"))
    world.complete(world.join())
    view, detail = effects.Wanted.VIEW, effects.Wanted.DETAIL
    assert world.ask(Get(world.call(), "k")) == effects.FromStore(task, view, None)
    assert world.ask(Get(world.call(), task, True, A)) is not None
    assert world.ask(Get(world.call(), 99, True)) == effects.FromStore(99, detail, None)
    assert world.ask(Get(world.call(), "no", scope=A)) == effects.FromStore("no", view, A)


@pytest.mark.parametrize("end", [True, False])
def test_scope_hides_tasks_as_if_they_were_not_there(end: bool) -> None:
    """EN-80: get and cancel of a foreign task are refused like those of none."""
    world = two_pools()
    task = world.add(spec(pool="a", key="k"))
    if end:
        world.complete(world.join(pool="a"))
    for target in (task, "k"):
        unknown(world.ask(Get(world.call(), target, scope=B)))
        unknown(world.ask(Get(world.call(), target, True, B)))
        unknown(world.cancel(target, B))
        assert not isinstance(world.ask(Get(world.call(), target, scope=A)), Refusal)
    assert world.status(task) == (Status.SUCCEEDED if end else Status.READY)


def test_detail_shows_attempts_parents_and_children() -> None:
    """EN-80: everything around a live task."""
    world = World()
    gone = world.add(spec(delay=SECOND))
    world.cancel(gone)
    session = world.join()
    task = world.add(spec(key="t", dependencies=after(gone, on=EdgeCondition.ON_COMPLETE)))
    child = world.add(spec(dependencies=(*after("t"), *after("t", on=EdgeCondition.ON_COMPLETE))))
    world.fail(session)
    detail = world.detail(task)
    assert [past.number for past in detail.attempts] == [1]
    assert detail.parents == (
        effects.ParentView(gone, EdgeCondition.ON_COMPLETE, Status.CANCELLED),
    )
    assert detail.children == (child,)
    assert world.detail(child).parents[0] == effects.ParentView(
        "t", EdgeCondition.ON_SUCCESS, Status.RETRYING
    )


def test_detail_lists_the_first_hundred_children() -> None:
    """EN-80: an answer has a bound."""
    world = World()
    parent = world.add(spec())
    children = world.add(*(spec(dependencies=after(parent)) for _ in range(130)))
    assert world.detail(parent).children == tuple(children[:100])


def test_what_a_ready_task_lacks_is_told() -> None:
    """EN-80: in words: worker, kind, resource, pause."""
    world = World(resources=(ResourceSettings("gpu", permits=1),))
    session = world.join(slots=2)
    world.add(spec(resources=(("gpu", 1),)))
    second = world.add(spec(resources=(("gpu", 1),)))
    assert world.view(second).waiting_for == ("resource gpu",)
    world.complete(session)
    assert world.status(second) == Status.RUNNING
    assert world.view(second).waiting_for == ()


# --- lists ---------------------------------------------------------------------------------------


def pages(world: World, limit: int, newest_first: bool = False, **wanted: Any) -> list[list[int]]:
    """The ids of all pages of a listing."""
    found: list[list[int]] = []
    cursor = 0
    while True:
        page = world.page(cursor, limit, newest_first, **wanted)
        found.append([view.task_id for view in page.tasks])
        cursor = page.next_after
        if not cursor:
            return found


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("limit", [1, 3, 4, 100])
def test_pages_hold_every_task_once(limit: int, newest_first: bool) -> None:
    """EN-81: live and ended tasks in one order, whatever the page's length."""
    world = World()
    ids = world.add(*(spec() for _ in range(8)))
    for task in (ids[1], ids[2], ids[7], ids[4]):
        world.cancel(task)
    expected = list(reversed(ids)) if newest_first else ids
    found = pages(world, limit, newest_first)
    assert [task for page in found for task in page] == expected
    assert all(len(page) <= limit for page in found)


def test_paging_is_stable_while_tasks_come_and_go() -> None:
    """EN-81: a task that is there all the time is on exactly one page."""
    world = World()
    ids = world.add(*(spec() for _ in range(20)))
    stays = [task for task in ids if task % 3]
    seen: list[int] = []
    cursor, turn = 0, 0
    while True:
        page = world.page(cursor, 4)
        seen += [view.task_id for view in page.tasks]
        cursor = page.next_after
        if not cursor:
            break
        world.add(spec())
        if turn < 6:
            world.cancel([task for task in ids if not task % 3][turn])
        turn += 1
    assert [task for task in seen if task in stays] == stays
    assert len(seen) == len(set(seen))


def test_filters_cut_a_listing_down() -> None:
    """EN-81: each part must match; an empty part allows all."""
    world = two_pools()
    mail = world.add(spec("mail", pool="a", key="k", tags=(("x", "1"), ("y", "2"))))
    fax = world.add(spec("fax", pool="b", tenant="t", tags=(("x", "1"), ("cronoq.schedule", "s"))))
    done = world.add(spec("mail", pool="b", delay=SECOND))
    world.cancel(done)
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [mail, fax, done]),
        ({"pools": ("a",)}, [mail]),
        ({"pools": ("a", "b"), "statuses": (Status.READY,)}, [mail, fax]),
        ({"statuses": (Status.CANCELLED,)}, [done]),
        ({"kinds": ("mail",), "statuses": (Status.READY, Status.RUNNING)}, [mail]),
        ({"keys": ("k",), "statuses": (Status.READY,)}, [mail]),
        ({"tenants": ("t",), "statuses": (Status.READY,)}, [fax]),
        ({"tags": (("x", "1"),), "statuses": (Status.READY,)}, [mail, fax]),
        ({"tags": (("x", "1"), ("y", "2")), "statuses": (Status.READY,)}, [mail]),
        ({"schedule": "s", "statuses": (Status.READY,)}, [fax]),
    ]
    for wanted, expected in cases:
        assert pages(world, 10, **wanted) == [expected], wanted


def test_listing_of_what_runs_is_in_id_order() -> None:
    """EN-81: whichever session has it."""
    world = World()
    first, second, third = world.add(*(spec(kind) for kind in ("a", "b", "c")))
    world.join(kinds=("c",))
    world.join(kinds=("a",))
    running = (Status.RUNNING,)
    assert pages(world, 10, statuses=running) == [[first, third]]
    assert pages(world, 1, newest_first=True, statuses=running) == [[third], [first]]
    assert world.status(second) == Status.READY


def test_scope_cuts_pools_out_of_a_listing() -> None:
    """EN-81: what a caller may not see is not counted either; no pool left means nothing."""
    world = two_pools()
    world.add(spec(pool="a"))
    mine = world.add(spec(pool="b"))
    assert [v.task_id for v in world.page(scope=B).tasks] == [mine]
    assert [v.task_id for v in world.page(scope=B, pools=("a", "b")).tasks] == [mine]
    assert world.page(scope=B, pools=("a",)).tasks == ()
    assert world.page(scope=frozenset()).tasks == ()


def test_page_is_no_longer_than_the_servers_bound() -> None:
    """EN-81: whatever the caller asks."""
    world = World(max_list=2)
    world.add(*(spec() for _ in range(3)))
    part = world.ask(ListTasks(world.call(), TaskFilter(), 0, 500))
    assert len(part.live) == part.limit == 2


@pytest.mark.parametrize("newest_first", [True, False])
def test_page_that_looked_at_enough_is_short(
    newest_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EN-81: a rare filter gives short pages, and cursors that go on."""
    monkeypatch.setattr(views, "LOOKED_AT_MAX", 5)
    world = World()
    ids = world.add(*(spec("rare" if n in (0, 12) else "usual") for n in range(13)))
    found = pages(world, 10, newest_first, kinds=("rare", "rarer"), statuses=(Status.READY,))
    assert len(found) == 3
    rare = [ids[0], ids[12]]
    assert [task for page in found for task in page] == (rare[::-1] if newest_first else rare)


def test_task_seen_in_both_halves_counts_once_as_the_engine_has_it() -> None:
    """EN-81: one that was put back between the two looks is live."""
    world = World()
    task = world.add(spec())
    part = world.ask(ListTasks(world.call(), TaskFilter(), 0, 10))
    world.cancel(task)
    page = views.merge_page(part, [world.ledger.stored(task)], 0)
    assert [(view.task_id, view.status) for view in page.tasks] == [(task, Status.READY)]


def test_merged_page_gives_nothing_out_beyond_the_nearer_cursor() -> None:
    """EN-81: else the next page would miss what the shorter half had not looked at yet."""
    world = World()
    ids = world.add(*(spec() for _ in range(6)))
    for task in ids[3:]:
        world.cancel(task)
    part = world.ask(ListTasks(world.call(), TaskFilter(), 0, 2))
    assert part.live_next == ids[1]
    page = views.merge_page(part, [world.ledger.stored(task) for task in ids[3:5]], ids[4])
    assert [view.task_id for view in page.tasks] == ids[:2]
    assert page.next_after == ids[1]


# --- wait ----------------------------------------------------------------------------------------


def test_wait_tells_each_end_once_and_then_is_over() -> None:
    """EN-82: with the output, in the step that has it."""
    world = World()
    first, second = world.add(spec(), spec())
    call = world.wait(first, second)
    assert call not in world.results
    session = world.join()
    world.complete(session, output=b"1")
    (told,) = world.results[call]
    assert told.results == [
        effects.Result(first, Status.SUCCEEDED, output=b"1", content_type="text/plain")
    ]
    assert not world.is_over(call)
    world.cancel(second)
    assert world.told(call) == [(first, Status.SUCCEEDED), (second, Status.CANCELLED)]
    assert world.is_over(call)
    assert world.results[call][-1].results[0].message


def test_wait_for_what_ended_is_answered_at_once() -> None:
    """EN-82: remembered ends are told, outputs are fetched from the store, others asked of it."""
    world = World()
    done, failed = world.add(spec(key="d"), spec())
    session = world.join(slots=2)
    one, two = world.out[session]
    world.complete(session, one)
    world.fail(session, two, permanent=True, message="no")
    call = world.wait(done, failed, 99, keys=("d", "nobody"))
    (told,) = world.results[call]
    assert told.results == [
        effects.Result(done, Status.SUCCEEDED, fetch=True),
        effects.Result(failed, Status.FAILED, "no"),
    ]
    assert told.unknown == (99, "nobody")
    assert told.last


def test_wait_for_one_task_under_several_names_tells_it_once() -> None:
    """EN-82: by id twice and by key, live or ended."""
    world = World()
    task = world.add(spec(key="k"))
    live = world.wait(task, task, keys=("k", "k"))
    world.cancel(task)
    ended = world.wait(task, task, keys=("k",))
    for call in (live, ended):
        assert world.told(call) == [(task, Status.CANCELLED)]
        assert world.is_over(call)


def test_wait_for_nothing_is_over_at_once() -> None:
    """EN-82: no names, no waiting."""
    world = World()
    call = world.wait()
    assert world.is_over(call)
    assert world.told(call) == []


def test_wait_times_out_with_what_is_left_open() -> None:
    """EN-82: at its instant, once; ends told before stay told."""
    world = World()
    first, second = world.add(spec(), spec())
    call = world.wait(first, second, patience=10 * SECOND)
    world.cancel(first)
    world.advance(10 * SECOND - 1)
    assert not world.is_over(call)
    world.advance(1)
    last = world.results[call][-1]
    assert (last.last, last.timed_out, last.results) == (True, True, [])
    world.cancel(second)
    assert world.told(call) == [(first, Status.CANCELLED)]


def test_end_in_the_step_of_the_timeout_is_told() -> None:
    """EN-82: what expires with the wait is part of its last word, if it came before it."""
    world = World()
    task = world.add(spec(expires_in=10 * SECOND))
    call = world.wait(task, patience=10 * SECOND)
    world.leap(10 * SECOND)
    assert world.told(call) == [(task, Status.MISSED)]
    assert world.is_over(call)


def test_wait_without_patience_tells_what_is_there() -> None:
    """EN-82: a limit in the past asks without waiting."""
    world = World()
    done, open_ = world.add(spec(), spec())
    world.cancel(done)
    call = world.wait(done, open_, patience=0)
    assert world.told(call) == [(done, Status.CANCELLED)]
    assert world.results[call][-1].timed_out


def test_scope_hides_tasks_from_a_wait() -> None:
    """EN-82: a foreign task is handed to the store with the scope, which finds none."""
    world = two_pools()
    task = world.add(spec(pool="a", key="k"))
    call = world.wait(task, keys=("k",), scope=B)
    (told,) = world.results[call]
    assert told.unknown == (task, "k")
    assert told.scope == B
    assert told.last


def test_forgotten_wait_is_told_nothing() -> None:
    """EN-85: even when the end comes in the same step."""
    world = World()
    first, second = world.add(spec(), spec())
    event = Wait(world.call(), (first, second), (), None)
    world.step(event)
    world.step(Cancel(world.call(), first), Forget(event.call))
    world.cancel(second)
    assert event.call not in world.results
    assert not world.engine._state.waits
    assert not world.engine._state.waiters


def test_two_calls_wait_for_one_task() -> None:
    """EN-82: each is told; one that gives up takes nothing from the other."""
    world = World()
    task = world.add(spec())
    hasty = world.wait(task, patience=SECOND)
    patient = world.wait(task, patience=60 * SECOND)
    world.advance(SECOND)
    world.cancel(task)
    assert world.told(patient) == [(task, Status.CANCELLED)]
    assert world.told(hasty) == []


# --- watch ---------------------------------------------------------------------------------------


def test_watch_publishes_transitions_in_order() -> None:
    """EN-83: every change with its number, once somebody watches; nothing before and after."""
    world = World()
    early = world.add(spec(delay=SECOND))
    world.step(Watch(world.call()))
    world.step(Watch(world.call()))
    world.step(Unwatch())
    task = world.add(spec(key="k"))
    session = world.join(slots=2)
    world.fail(session)
    world.advance(SECOND)
    world.complete(session)
    mine = [(e.status, e.attempt) for e in world.published if e.task_id == task]
    assert mine == [
        (Status.READY, 0),
        (Status.RUNNING, 1),
        (Status.RETRYING, 1),
        (Status.READY, 1),
        (Status.RUNNING, 2),
        (Status.SUCCEEDED, 2),
    ]
    assert any(e.task_id == early and e.status == Status.READY for e in world.published)
    assert world.published[0].key == "k"
    world.step(Unwatch())
    count = len(world.published)
    world.add(spec())
    assert len(world.published) == count


def test_watch_of_tasks_that_ended_tells_them_at_once() -> None:
    """EN-83: by id or key; what the engine does not hold is left to the store."""
    world = two_pools()
    task = world.add(spec(pool="a", key="k"))
    live = world.add(spec(pool="a"))
    world.cancel(task)
    event = Watch(world.call(), (task, live, 77), ("k", "none"))
    world.step(event)
    answer = world.watching[event.call]
    assert [(e.task_id, e.status, e.key) for e in answer.ended] == [
        (task, Status.CANCELLED, "k"),
        (task, Status.CANCELLED, "k"),
    ]
    assert answer.unknown == (77, "none")
    event = Watch(world.call(), (task,), (), B)
    world.step(event)
    assert world.watching[event.call].unknown == (task,)


def test_progress_is_published_to_watchers() -> None:
    """EN-83: a beat that carries progress is news, and writes nothing."""
    world = World()
    world.step(Watch(world.call()))
    session = world.join()
    task = world.add(spec())
    lease = world.lease(session).lease
    world.beat(session, lease, progress=((lease, Progress(b"half", 0.5)),))
    last = world.published[-1]
    assert (last.task_id, last.status, last.progress) == (
        task,
        Status.RUNNING,
        Progress(b"half", 0.5),
    )
    assert not world.taken[-1].step.mutations


# --- cancel --------------------------------------------------------------------------------------


def test_cancel_says_whether_the_task_is_cancelled() -> None:
    """EN-84: by whichever call; a task that ended otherwise stays as it is."""
    world = World()
    session = world.join()
    done = world.add(spec(key="done"))
    world.complete(session)
    gone = world.add(spec(delay=SECOND))
    assert world.cancel(gone) == effects.Done(True)
    assert world.cancel(gone) == effects.Done(True)
    assert world.cancel("done") == effects.Done(False)
    assert world.status(done) == Status.SUCCEEDED
    want = effects.Wanted.CANCELLED
    assert world.cancel("nobody") == effects.FromStore("nobody", want, None)


# --- workers, counts, outputs --------------------------------------------------------------------


def test_workers_are_listed_by_scope() -> None:
    """EN-80: connected ones, in order of joining, with what they have to do."""
    world = two_pools()
    first = world.join(2, "a", kinds=("mail",), labels=(("zone", "x"),))
    world.join(1, "b")
    lost = world.join(1, "a")
    world.add(spec("mail", pool="a", labels=(("zone", "x"),)), spec("fax", pool="a"))
    world.lose(lost)
    every = world.ask(ListWorkers(world.call()))
    mine = world.ask(ListWorkers(world.call(), A))
    assert [view.pool for view in every] == ["a", "b"]
    (view,) = mine
    assert (view.session, view.slots, view.busy) == (first, 2, 1)
    assert view.labels == (("zone", "x"),)
    assert view.kinds == ("mail",)


def test_snapshot_counts_what_the_caller_may_see() -> None:
    """EN-80: per pool, per class, per group of labels, and in all."""
    world = two_pools()
    world.add(spec(pool="a", priority=1), spec(pool="a", priority=4), spec(pool="b"))
    world.join(3, "a", labels=(("zone", "x"),))
    world.join(1, "a")
    world.complete(1, next(iter(world.out[1])))
    whole = world.snapshot()
    assert (whole.live_tasks, whole.running, whole.pending) == (2, 1, 1)
    assert whole.workers_connected == 2
    assert whole.totals.submitted == 3
    assert whole.totals.dispatched == 2
    pool = world.ask(SnapshotQuery(world.call(), A)).pools[0]
    assert (pool.capacity, pool.busy, pool.succeeded, pool.dispatched) == (4, 1, 1, 2)
    assert [group.capacity for group in pool.groups] == [3, 1]
    part = world.ask(SnapshotQuery(world.call(), B))
    assert [each.name for each in part.pools] == ["b"]
    assert part.pools[0].pending_by_class == (0, 0, 1, 0)
    assert part.workers_connected == 0


def test_output_of_a_parent_is_for_the_worker_of_its_child() -> None:
    """EN-80: under the lease of the child, and for parents only."""
    world = World()
    parent = world.add(spec())
    other = world.add(spec())
    session = world.join(slots=2)
    world.complete(session)
    world.add(spec(dependencies=after(parent)))
    lease = world.lease(session).lease
    found = effects.FromStore(parent, effects.Wanted.OUTPUT, None)
    assert world.ask(GetOutput(world.call(), session, lease, parent)) == found
    assert world.ask(GetOutput(world.call(), None, lease, parent)) == found
    unknown(world.ask(GetOutput(world.call(), session, lease, other)))
    unknown(world.ask(GetOutput(world.call(), session, lease + 9, parent)))
    world.complete(session)
    unknown(world.ask(GetOutput(world.call(), session, lease, parent)))


# --- what a store gave back ----------------------------------------------------------------------


def test_stored_task_looks_like_one_that_was_live() -> None:
    """EN-80: no caller can tell where a task was found."""
    world = World()
    session = world.join()
    task = world.add(spec(key="k", dependencies=()))
    world.fail(session)
    world.advance(SECOND)
    before = world.view(task)
    world.complete(session)
    stored = world.ledger.stored(task)
    view = views.stored_view(stored)
    assert view.spec == before.spec
    assert (view.attempt, view.attempts_max, view.started_at) == (2, 3, before.started_at)
    assert view.finished_at == world.wall
    assert view.has_output
    assert views.stored_result(stored) == effects.Result(task, Status.SUCCEEDED, fetch=True)
    detail = views.stored_detail(stored)
    assert [past.number for past in detail.attempts] == [1]
    event = views.stored_event(stored)
    assert (event.task_id, event.key, event.status) == (task, "k", Status.SUCCEEDED)


def test_stored_detail_does_not_know_its_parents_any_more() -> None:
    """EN-80: edges are shown, ends of parents are not made up."""
    world = World()
    parent = world.add(spec())
    child = world.add(spec(dependencies=after(parent)))
    world.cancel(parent)
    detail = views.stored_detail(world.ledger.stored(child))
    assert detail.parents == (effects.ParentView(parent, EdgeCondition.ON_SUCCESS, 0),)
