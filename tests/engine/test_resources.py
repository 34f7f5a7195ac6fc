"""Accounts give what is there, take back what was taken, and never leak."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronoq_server.engine.placement import Placement, PoolRules, Waiting
from cronoq_server.engine.placement.resources import NANO, Resource, ResourceRules, Resources


def bucket(rate: int, burst: int, mono: int = 0) -> tuple[Resources, Resource]:
    """A bucket and its books."""
    resources = Resources([ResourceRules("b", None, rate, burst)], mono)
    account = resources.find("b")
    assert account is not None
    return resources, account


class TestBuckets:
    """Token buckets."""

    def test_starts_full_and_stops_at_its_burst(self) -> None:
        """All tokens are there at first, and never more of them."""
        _, account = bucket(NANO, 3)
        assert account.available == 3 * NANO
        account.refill(10**15)
        assert account.available == 3 * NANO

    @given(
        rate=st.integers(0, 5 * NANO),
        pauses=st.lists(st.integers(0, 3 * NANO), min_size=1, max_size=30),
    )
    def test_refill_does_not_depend_on_how_often_one_looks(
        self, rate: int, pauses: list[int]
    ) -> None:
        """Looking often loses nothing to rounding: the sum is that of one exact look."""
        _, account = bucket(rate, 10)
        account.available = 0
        mono = 0
        for pause in pauses:
            mono += pause
            account.refill(mono)
            assert account.available == min(10 * NANO, mono * rate // NANO)

    @given(rate=st.integers(1, 5 * NANO), elapsed=st.integers(0, NANO), amount=st.integers(1, 10))
    def test_the_instant_of_relief_is_exact(self, rate: int, elapsed: int, amount: int) -> None:
        """At that nanosecond the amount is there, one before it is not."""
        _, account = bucket(rate, 10)
        account.available = 0
        account.refill(elapsed)
        at = account.instant_of(amount * NANO)
        assert at is not None
        if account.available < amount * NANO:
            account.refill(at - 1)
            assert account.available < amount * NANO
        account.refill(at)
        assert account.available >= amount * NANO

    def test_what_can_never_be_there_has_no_instant(self) -> None:
        """More than the burst, or a bucket that does not fill."""
        _, account = bucket(NANO, 2)
        account.available = 0
        assert account.instant_of(3 * NANO) is None
        _, account = bucket(0, 2)
        account.available = 0
        assert account.instant_of(NANO) is None

    def test_no_more_is_taken_than_rate_and_burst_allow(self) -> None:
        """Over any stretch of time: burst + rate × time."""
        resources, account = bucket(NANO // 3, 2)
        chance = random.Random(7)
        mono = taken = 0
        for _ in range(2000):
            mono += chance.randrange(NANO)
            account.refill(mono)
            if account.available >= NANO:
                resources.take(((account, NANO),))
                taken += 1
            assert taken <= 2 + Fraction(NANO // 3, NANO) * Fraction(mono, NANO)
        assert taken >= mono // NANO // 3 - 2

    def test_a_smaller_burst_spills_and_a_faster_rate_counts_from_now(self) -> None:
        """What was gained before a resize is kept as far as it fits."""
        resources, account = bucket(NANO, 10)
        assert resources.resize("b", 0, burst=4)
        assert account.available == 4 * NANO
        resources.take(((account, 4 * NANO),))
        resources.resize("b", NANO, rate=2 * NANO)
        account.refill(2 * NANO)
        assert account.available == 3 * NANO


class TestSemaphores:
    """Semaphores."""

    def test_takes_and_gives_whole_amounts(self) -> None:
        """Held and available always add up to the permits."""
        resources = Resources([ResourceRules("s", 5)])
        needs = resources.needs([("s", 3)])
        account = needs[0][0]
        resources.take(needs)
        assert (account.held, account.available) == (3, 2)
        resources.give(needs)
        assert (account.held, account.available) == (0, 5)

    def test_permits_that_are_out_stay_out_when_it_shrinks(self) -> None:
        """Nothing is available until enough came back."""
        resources = Resources([ResourceRules("s", 3)])
        needs = resources.needs([("s", 3)])
        resources.take(needs)
        assert resources.resize("s", 0, permits=1)
        assert needs[0][0].available == -2
        resources.give(needs)
        assert needs[0][0].available == 1

    def test_an_unknown_resource_is_not_resized(self) -> None:
        """The caller is told."""
        assert not Resources().resize("nothing", 0, permits=1)


class TestPrivateAccounts:
    """Accounts made by first use."""

    def test_are_made_by_first_use_and_dropped_when_idle(self) -> None:
        """Only what somebody wants or holds is kept."""
        resources = Resources([ResourceRules("c", 1, per_value=True)])
        assert resources.find("c:x") is None
        needs = resources.needs([("c:x", 1)])
        again = resources.needs([("c:x", 1)])
        assert again[0][0] is needs[0][0]
        resources.unneed(needs)
        assert resources.find("c:x") is again[0][0]
        resources.unneed(again)
        assert resources.find("c:x") is None

    def test_a_bucket_is_kept_until_it_is_full(self) -> None:
        """Going away for a moment does not fill it."""
        resources = Resources([ResourceRules("c", None, NANO, 2, per_value=True)])
        needs = resources.needs([("c:x", 2)])
        resources.take(needs)
        resources.unneed(needs)
        resources.advance(NANO)
        account = resources.find("c:x")
        assert account is not None
        assert account.instant_of(2 * NANO) == 2 * NANO
        resources.advance(2 * NANO)
        assert resources.find("c:x") is None

    @pytest.mark.parametrize(
        ("name", "known"),
        [("c:x", True), ("c:x:y", True), ("a:b:x", True), ("c", False), ("a:b", False),
         ("s", True), ("s:x", False), ("nothing", False), (":x", False)],
    )  # fmt: skip
    def test_names_are_looked_up_by_prefix(self, name: str, known: bool) -> None:
        """`name:value` falls under `name` if that is per value, and only then."""
        rules = [
            ResourceRules("c", 1, per_value=True),
            ResourceRules("a:b", 1, per_value=True),
            ResourceRules("s", 1),
        ]
        assert (Resources(rules).rules_of(name) is not None) is known

    def test_unknown_names_are_refused(self) -> None:
        """Nothing is made by mistake."""
        with pytest.raises(KeyError):
            Resources().needs([("nothing", 1)])


@pytest.mark.regression("R20")
@pytest.mark.parametrize("seed", range(4))
def test_accounts_never_leak(seed: int) -> None:
    """Held is what runs at every step, and nothing at the end, whatever ends the attempts.

    2500 tasks of four classes want permits of a semaphore of 2 and tokens of a bucket of 5 a
    second; they end, are cancelled while waiting, come back, lose their worker.
    """
    chance = random.Random(seed)
    resources = Resources([ResourceRules("s", 2), ResourceRules("b", None, 5 * NANO, 5)])
    placement = Placement([PoolRules("p")], resources)
    semaphore = resources.find("s")
    assert semaphore is not None
    now, ids, sessions = 10**18, 0, 0
    waiting: dict[int, Waiting] = {}
    running: dict[int, tuple[Waiting, int]] = {}
    slots: dict[int, int] = {}

    def tell(session: int) -> None:
        if session in slots:
            busy = sum(1 for _, each in running.values() if each == session)
            placement.slots(session, max(0, slots[session] - busy))

    def end(number: int) -> None:
        task, session = running.pop(number)
        placement.finished(task)
        if chance.random() < 0.3:
            task.since = chance.choice((task.since, now))
            placement.push_back(task, now, avoid=chance.choice(((), (session,))))
            waiting[task.id] = task
        else:
            placement.release(task.demand)
        tell(session)

    def drop_session(session: int) -> None:
        del slots[session]
        placement.session_left(session)
        for number in [n for n, (_, each) in running.items() if each == session]:
            end(number)

    while ids < 2500 or waiting or running:
        now += chance.randrange(NANO // 2)
        for _ in range(chance.randrange(30) if ids < 2500 else 0):
            ids += 1
            needs = (("s", chance.randint(1, 2)), ("b", chance.randint(1, 3)))
            demand = placement.demand("p", (), "k", needs)
            waiting[ids] = Waiting(ids, chance.randint(1, 4), now, demand)
            placement.push(waiting[ids], now)
        if not slots or chance.random() < 0.1:
            sessions += 1
            slots[sessions] = chance.randint(1, 3)
            placement.session_joined(sessions, "p", (), (), slots[sessions])
        if len(slots) > 1 and chance.random() < 0.1:
            drop_session(chance.choice(list(slots)))
        for number in [n for n in running if chance.random() < 0.7]:
            end(number)
        for number in [n for n in waiting if chance.random() < 0.2]:
            task = waiting.pop(number)
            placement.withdraw(task)
            placement.release(task.demand)
        for number in [n for n in waiting if chance.random() < 0.2]:
            placement.forgive(waiting[number])
        for task, session in placement.run(now, now):
            del waiting[task.id]
            running[task.id] = (task, session)
        held = sum(dict(task.demand.key[2])["s"] for task, _ in running.values())
        assert semaphore.held == held
        assert semaphore.available == 2 - held
        assert semaphore.waiting == len(waiting)
    assert semaphore.held == 0
    assert semaphore.available == 2
