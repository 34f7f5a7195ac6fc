"""Fixed starts: what is booked, which slot is held, and when both are given back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.engine.bookings import Bookings
from cronoq_server.engine.events import SubmitMode
from cronoq_server.engine.model import (
    SECOND,
    ErrorReason,
    MissPolicy,
    PoolSettings,
    Refusal,
    RetryPolicy,
    Status,
)
from tests.engine.harness import World, after, spec

MINUTE = 60 * SECOND


def _bounded(most: int = 4) -> World:
    return World(PoolSettings("default", max=most))


def _conflict(answer: object) -> Refusal:
    assert isinstance(answer, Refusal), answer
    assert answer.reason == ErrorReason.RESERVATION_CONFLICT
    return answer


def booked(world: World) -> int:
    """How many bookings the pool has."""
    return world.engine._state.pools["default"].bookings.total


def test_half_of_a_pools_slots_may_be_booked_at_any_instant() -> None:
    """EN-130: more that overlap are a conflict; ones that do not are fine."""
    world = _bounded()
    world.add(spec(start_in=MINUTE), spec(start_in=MINUTE))
    _conflict(world.submit(spec(start_in=MINUTE)))
    _conflict(world.submit(spec(start_in=MINUTE + 2 * SECOND)))
    world.add(spec(start_in=MINUTE + 3 * SECOND))
    world.add(spec(start_in=MINUTE - 3 * SECOND))
    assert booked(world) == 4


def test_booking_reaches_from_tolerance_to_tolerance_around_the_expected_run() -> None:
    """EN-130: a hint makes it longer."""
    world = _bounded(1)
    world.add(spec(start_in=MINUTE, tolerance=0, duration_hint=10 * SECOND))
    _conflict(world.submit(spec(start_in=MINUTE + 10 * SECOND - 1, tolerance=0)))
    world.add(spec(start_in=MINUTE + 10 * SECOND, tolerance=0))
    _conflict(world.submit(spec(start_in=MINUTE - SECOND + 1, tolerance=0)))


def test_pool_without_a_max_takes_any_number_of_starts() -> None:
    """EN-130: what has no bound has no conflict."""
    world = World()
    world.add(*(spec(start_in=MINUTE) for _ in range(50)))
    assert booked(world) == 0


def test_batch_books_all_or_none() -> None:
    """EN-130: the refusal names the member; nothing stays booked."""
    world = _bounded()
    refusal = _conflict(world.submit(*(spec(start_in=MINUTE) for _ in range(3))))
    assert ("index", "2") in refusal.details
    assert booked(world) == 0
    many = world.submit(*(spec(start_in=MINUTE) for _ in range(3)), mode=SubmitMode.MANY)
    assert [index for index, _ in many.refusals] == [2]
    assert booked(world) == 2


def test_parked_call_books_nothing_until_it_gets_in() -> None:
    """EN-130: a queue that is full gives back what was booked for the attempt."""
    world = World(PoolSettings("default", max=2, max_pending=1))
    blocker = world.add(spec())
    event = world.submission(spec(start_in=MINUTE), patience=MINUTE)
    world.step(event)
    assert booked(world) == 0
    world.cancel(blocker)
    assert event.call in world.replies
    assert booked(world) == 1


def test_booking_is_given_back_with_its_task() -> None:
    """EN-131: cancelled, missed, doomed, or when its first attempt has ended."""
    world = _bounded(2)
    world.cancel(world.add(spec(start_in=MINUTE)))
    assert booked(world) == 0
    parent = world.add(spec(delay=10 * MINUTE))
    world.add(spec(start_in=MINUTE, dependencies=after(parent)))
    assert booked(world) == 1
    world.cancel(parent)
    assert booked(world) == 0
    world.add(spec(start_in=MINUTE, dependencies=after(parent)))
    assert booked(world) == 0
    world.add(spec(start_in=SECOND, on_miss=MissPolicy.SKIP))
    world.advance(3 * SECOND)
    assert booked(world) == 0
    world.add(spec(start_in=SECOND, on_miss=MissPolicy.RUN_LATE))
    world.advance(2 * SECOND - 1)
    assert booked(world) == 1
    world.advance(1)
    assert booked(world) == 0
    session = world.join()
    world.complete(session)
    world.add(spec(start_in=SECOND, retry=RetryPolicy(initial_backoff=MINUTE)))
    world.advance(SECOND)
    assert booked(world) == 1
    world.fail(session)
    assert booked(world) == 0


def test_slot_is_held_before_the_start() -> None:
    """EN-132: from ten seconds before it one suitable slot is kept out of everybody's reach."""
    world = World()
    session = world.join(slots=2)
    start = world.add(spec("mail", start_in=MINUTE))
    world.advance(MINUTE - 10 * SECOND - 1)
    early = world.add(spec(), spec())
    assert [world.status(task) for task in early] == [Status.RUNNING] * 2
    world.complete(session)
    world.advance(1)
    late = world.add(spec(), spec())
    assert [world.status(task) for task in late] == [Status.RUNNING, Status.READY]
    world.advance(10 * SECOND)
    assert world.status(start) == Status.RUNNING
    assert world.status(late[1]) == Status.READY


def test_start_within_the_hold_is_held_at_once() -> None:
    """EN-132: a start that is near, and one whose parent ended late."""
    world = World()
    session = world.join(slots=1)
    world.add(spec(start_in=5 * SECOND))
    assert world.status(world.add(spec())) == Status.READY
    world.advance(5 * SECOND)
    assert world.lease(session).spec.start_in == 5 * SECOND


def test_hold_moves_to_the_next_suitable_slot() -> None:
    """EN-132: when its session goes, whatever is or becomes free is kept instead."""
    world = World()
    first = world.join()
    start = world.add(spec("mail", start_in=5 * SECOND))
    wrong = world.join(kinds=("fax",))
    world.lose(first, clean=True)
    second = world.join(kinds=("mail",))
    other = world.add(spec("mail"))
    assert world.status(other) == Status.READY
    assert not world.out.get(wrong)
    world.advance(5 * SECOND)
    assert world.lease(second).task_id == start


def test_hold_ends_with_its_task() -> None:
    """EN-132: cancelled while it waits for its time, or missed: the slot is everybody's again."""
    world = World()
    session = world.join()
    start = world.add(spec(start_in=5 * SECOND))
    other = world.add(spec())
    assert world.status(other) == Status.READY
    world.cancel(start)
    assert world.lease(session).task_id == other
    world.complete(session)
    labelled = spec(start_in=SECOND, labels=(("no", "body"),))
    world.add(labelled)
    world.advance(3 * SECOND)
    assert world.status(world.add(spec())) == Status.RUNNING


def test_hold_survives_a_set_clock() -> None:
    """EN-132: a deadline that moves is no reason to lose the slot."""
    world = World()
    session = world.join()
    world.add(spec(start_in=5 * SECOND, deadline_in=MINUTE))
    world.add(spec())
    world.jump_wall(3 * SECOND)
    assert not world.out.get(session)
    world.advance(2 * SECOND)
    assert world.lease(session).spec.start_in == 5 * SECOND


def test_starts_are_booked_again_after_a_failover() -> None:
    """EN-133: without being asked again; a start that has had its attempt is none any more."""
    world = _bounded(2)
    world.add(spec(start_in=MINUTE))
    world.crash()
    assert booked(world) == 1
    _conflict(world.submit(spec(start_in=MINUTE)))
    session = world.join()
    world.advance(MINUTE)
    assert world.out[session]
    world.crash()
    assert booked(world) == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 10), st.booleans()), min_size=1, max_size=40
    )
)
def test_bookings_count_like_a_naive_calendar(moves: list[tuple[int, int, bool]]) -> None:
    """EN-130: the highest overlap anywhere in a stretch, and nothing left when all is gone."""
    bookings = Bookings()
    kept: list[tuple[int, int]] = []
    for start, length, leaves in moves:
        if leaves and kept:
            gone = kept.pop(start % len(kept))
            bookings.remove(*gone)
        else:
            kept.append((start, start + length))
            bookings.add(start, start + length)
        assert bookings.total == len(kept)
        for first, last in ((0, 45), (start, start + length), (start + 1, start + 2), (50, 60)):
            most = max(sum(a <= at < b for a, b in kept) for at in range(first, last))
            assert bookings.most(first, last) == most
    for each in kept:
        bookings.remove(*each)
    assert bookings.total == 0
    assert bookings._times == []
