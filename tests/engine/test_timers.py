"""Timer heap, expiry list and id index, each against a model that is too simple to be wrong."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from cronoq_server.engine import timers
from cronoq_server.engine.index import IdIndex
from cronoq_server.engine.timers import NEVER, ExpiryList, Node, TimerHeap

INSTANTS = st.integers(min_value=0, max_value=50)


class HeapAgainstList(RuleBasedStateMachine):
    """A heap with dead entries against a list that is searched."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, tuple[int, int]] = {}
        self.heap: TimerHeap[int] = TimerHeap(
            lambda at, kind, owner: self.alive.get(owner) == (at, kind)
        )
        self.now = 0
        self.owners = 0
        self.dead = 0

    @rule(at=INSTANTS, kind=st.integers(1, 3))
    def arm(self, at: int, kind: int) -> None:
        """A new owner asks to be woken, maybe in the past."""
        self.owners += 1
        self.alive[self.owners] = (at, kind)
        self.heap.arm(at, kind, self.owners)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), told=st.booleans())
    def die(self, data: st.DataObject, told: bool) -> None:
        """An owner loses its interest; usually the heap is told."""
        owner = data.draw(st.sampled_from(sorted(self.alive)))
        del self.alive[owner]
        self.dead += 1
        if told:
            self.heap.disarmed()

    @rule(hop=st.integers(0, 10))
    def pass_time(self, hop: int) -> None:
        """What is due comes out, in order of instants, then of arming."""
        self.now += hop
        expected = sorted(
            (at, owner, kind) for owner, (at, kind) in self.alive.items() if at <= self.now
        )
        found = []
        for at, kind, owner in self.heap.due(self.now):
            found.append((at, owner, kind))
            del self.alive[owner]
        assert found == expected

    @invariant()
    def next_is_the_earliest(self) -> None:
        """Nothing dead is ever announced."""
        expected = min((at for at, _ in self.alive.values()), default=NEVER)
        assert self.heap.next() == expected


class ExpiryAgainstDict(RuleBasedStateMachine):
    """A linked list of deadlines against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 7
        self.expiries = ExpiryList(self.length)
        self.nodes = [Node() for _ in range(6)]
        self.due: dict[int, int] = {}
        self.now = 0

    @rule(which=st.integers(0, 5), hop=st.integers(0, 3))
    def renew(self, which: int, hop: int) -> None:
        """A node goes to the end, new or not."""
        self.now += hop
        self.due.pop(which, None)
        self.due[which] = self.now + self.length
        self.expiries.renew(self.nodes[which], self.now)

    @rule(which=st.integers(0, 5))
    def remove(self, which: int) -> None:
        """A node goes, whether it was there or not."""
        self.due.pop(which, None)
        self.expiries.remove(self.nodes[which])

    @rule(hop=st.integers(0, 10))
    def expire(self, hop: int) -> None:
        """What is due comes out in order of renewal."""
        self.now += hop
        expected = [which for which, at in self.due.items() if at <= self.now]
        found = []
        while (node := self.expiries.first_due(self.now)) is not None:
            found.append(next(i for i, each in enumerate(self.nodes) if each is node))
            self.expiries.remove(node)
            del self.due[found[-1]]
        assert found == expected

    @rule()
    def clear(self) -> None:
        """Nothing stays linked."""
        self.expiries.clear()
        self.due.clear()
        assert all(node.before is None and node.after is None for node in self.nodes)

    @invariant()
    def looks_like_the_model(self) -> None:
        """Order, ends and links agree."""
        assert self.expiries.next() == next(iter(self.due.values()), NEVER)
        assert self.expiries.is_empty == (not self.due)
        chain = []
        node = self.expiries._head
        before = None
        while node is not None:
            assert node.before is before
            chain.append(next(i for i, each in enumerate(self.nodes) if each is node))
            before, node = node, node.after
        assert self.expiries._tail is before
        assert chain == list(self.due)


class IndexAgainstSet(RuleBasedStateMachine):
    """Ids in order, dead ones among them, against a set that is sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, None] = {}
        self.index = IdIndex(self.living, block_max=3)
        self.gone: list[int] = []
        self.last = 0

    @rule(gap=st.integers(1, 3))
    def admit(self, gap: int) -> None:
        """Ids rise."""
        self.last += gap
        self.living[self.last] = None
        self.index.add(self.last)

    @precondition(lambda self: self.living)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """A task ends."""
        task = data.draw(st.sampled_from(sorted(self.living)))
        del self.living[task]
        self.index.left(task)
        self.gone.append(task)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        """A redrive brings an old id back."""
        task = data.draw(st.sampled_from(self.gone))
        self.gone.remove(task)
        self.living[task] = None
        self.index.add(task)

    @rule(after=st.integers(0, 40), newest_first=st.booleans())
    def walk(self, after: int, newest_first: bool) -> None:
        """From a cursor on, in both directions, every living one once."""
        found = [i for i in self.index.walk(after, newest_first) if i in self.living]
        if newest_first:
            expected = sorted((i for i in self.living if not after or i < after), reverse=True)
        else:
            expected = sorted(i for i in self.living if i > after)
        assert found == expected

    @invariant()
    def dead_are_few(self) -> None:
        """At most so many entries, or as many as live."""
        entries = len(list(self.index.walk(0, newest_first=False)))
        assert entries <= max(4, 2 * len(self.living) + 2)
        assert entries - sum(self.index._dead) == len(self.index) == len(self.living)

    def teardown(self) -> None:
        """Cleared, it holds nothing."""
        self.index.clear()
        assert list(self.index.walk(0, newest_first=False)) == []


_MANY = settings(max_examples=60, stateful_step_count=40)


def test_heap_wakes_as_the_model_says() -> None:
    """EN-05: whatever is armed, dies and comes due."""
    run_state_machine_as_test(HeapAgainstList, settings=_MANY)


def test_expiry_list_expires_as_the_model_says() -> None:
    """EN-41: whatever is renewed, removed and comes due."""
    run_state_machine_as_test(ExpiryAgainstDict, settings=_MANY)


def test_index_walks_as_the_model_says() -> None:
    """EN-81: with blocks so small that they are rebuilt, split and dropped often."""
    run_state_machine_as_test(IndexAgainstSet, settings=_MANY)


def test_heap_is_rebuilt_when_most_of_it_is_dead() -> None:
    """EN-05: what is told dead does not stay until its instant."""
    alive = {5_000: None}
    heap: TimerHeap[int] = TimerHeap(lambda _at, _kind, owner: owner in alive)
    heap.arm(9, 1, 5_000)
    for number in range(1_000):
        heap.arm(10, 1, number)
        heap.disarmed()
    assert len(heap) <= 2 * timers._REBUILD_MIN
    assert list(heap.due(100)) == [(9, 1, 5_000)]
    assert len(heap) == 0
    heap.arm(1, 1, 5_000)
    heap.clear()
    assert heap.next() == NEVER


def test_heap_may_be_rebuilt_while_it_is_emptied() -> None:
    """EN-05: who is woken may take others with him."""
    alive = dict.fromkeys(range(300))
    heap: TimerHeap[int] = TimerHeap(lambda _at, _kind, owner: owner in alive)
    for number in range(300):
        heap.arm(number, 1, number)
    woken = []
    for _, _, owner in heap.due(299):
        woken.append(owner)
        for other in range(owner + 1, owner + 4):
            if alive.pop(other, 1) is None:
                heap.disarmed()
    assert woken == list(range(0, 300, 4))
