"""Decides which waiting tasks of a pool may run now, as one mask of bits.

A *demand* is one combination of what tasks ask for: labels, kind, resources, tenant. Demands that
fit the same profiles and want the same accounts are eligible at the same times: they stand behind
one *gate*, a bit. `open_bits` is the mask of the gates that are open: a fitting profile has a free
slot, and none of the accounts is closed. Private accounts (`name:value`), of which there may be as
many as tasks, have no part in gates: each demand counts how many of its own are shut.

Rules a change must keep:

- `open_bits` has exactly the open gates: whoever changes slots or accounts calls `refresh`.
- A profile that splits a gate (some of its demands fit, others do not) makes all gates anew, and
  `must_remask` says that the masks of all lines are wrong until they are built anew.
- Demands nobody uses are kept for a while, then dropped with their gates, so that kinds and
  values seen once do not pile up.
- Nothing here refers to a task, because tasks refer to demands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from cronoq_server.engine.placement.resources import Needs, Resource, Resources
from cronoq_server.engine.placement.roster import HELD_BIT, Profile, Roster
from cronoq_server.engine.placement.unions import UnionTree

IDLE_DEMANDS_MAX = 256

PICKY_MAX = 64
"""Gates that pass sessions over, beyond which a task passes over only the last that refused it."""

Avoided: TypeAlias = tuple[int, ...]
"""Numbers of sessions that are passed over, sorted."""

NOBODY: Avoided = ()
HOLDER: Avoided = (-1,)
"""Instead of numbers: all sessions but the one that holds a slot for the task."""

_Key: TypeAlias = tuple[tuple[str, ...], str, tuple[tuple[str, int], ...], str, Avoided]


class Demand:
    """What a task asks for. The engine holds it from admission until the task's end.

    `fits` has the bits of the profiles that may run it; none if it asks for more of a resource
    than there can be. `private` are the accounts it wants that were made by first use, of which
    `shut_accounts` are closed. `avoid` are the sessions that are passed over, or `HOLDER` if only
    the session that holds a slot for the task may have it.
    """

    __slots__ = ("avoid", "fits", "gate", "is_possible", "key", "kind", "labels", "needs", "pool",
                 "private", "refs", "shut_accounts", "tenant")  # fmt: skip

    gate: Gate

    def __init__(self, pool: int, key: _Key, needs: Needs) -> None:
        self.pool = pool
        self.key = key
        self.labels = frozenset(key[0])
        self.kind = key[1]
        self.tenant = key[3]
        self.avoid = key[4]
        self.needs = needs
        self.fits = 0
        self.refs = 0
        self.is_possible = True
        self.private = tuple(account for account, _ in needs if account.template is not None)
        self.shut_accounts = sum(account.closed for account in self.private)


class Gate:
    """A bit for all demands that are eligible at the same times."""

    __slots__ = ("accounts", "avoid", "bit", "demands", "fits", "index")

    def __init__(
        self, index: int, fits: int, avoid: Avoided, accounts: tuple[Resource, ...]
    ) -> None:
        self.index = index
        self.bit = 1 << index
        self.fits = fits
        self.avoid = avoid
        self.accounts = accounts
        self.demands = 0


SHADOW = Demand(-1, ((), "", (), "", NOBODY), ())
"""Stands in for the demand of a task that waits behind another one that asks for the same."""
SHADOW.gate = Gate(0, 0, NOBODY, ())
SHADOW.gate.bit = 0


class Gates:
    """The demands and gates of one pool."""

    def __init__(self, pool: int, roster: Roster, resources: Resources) -> None:
        self._pool = pool
        self._roster = roster
        self._resources = resources
        self._demands: dict[_Key, Demand] = {}
        self._idle = 0
        self._gates: dict[tuple[int, Avoided, tuple[Resource, ...]], Gate] = {}
        self._spare: list[int] = []
        self._picky: list[Gate] = []  # gates that pass sessions over
        self._private: dict[Resource, list[Demand]] = {}
        self._places: dict[Resource, int] = {}  # of shared accounts in the next three
        self._account_bits: list[int] = []  # gates behind each account
        self._account_spare: list[int] = []
        self._shut = UnionTree()
        self.open_bits = 0  # the gates that are open
        self._connected = 0
        self._connected_bits = 0
        self.is_masked = False
        self.must_remask = False

    @property
    def is_uniform(self) -> bool:
        """True while all tasks of the pool stand behind one gate."""
        return len(self._gates) <= 1 and not self._private

    def __iter__(self) -> Iterator[Demand]:
        return iter(self._demands.values())

    @property
    def connected_bits(self) -> int:
        """The gates that some connected session fits, free or not."""
        connected = self._roster.connected
        if connected != self._connected:
            self._connected = connected
            self._connected_bits = 0
            for at in _bits_of(connected):
                self._connected_bits |= self._roster.reaches[at]
            for gate in self._picky:
                if gate.fits & connected:
                    self._connected_bits |= gate.bit
        return self._connected_bits

    def refresh(self) -> None:
        """Works out anew which gates are open, after slots or accounts changed."""
        bits = self._roster.reach.root
        for gate in self._picky:
            free = gate.fits & self._roster.free
            if free and self._roster.without(free, gate.avoid):
                bits |= gate.bit
        self.open_bits = bits & ~self._shut.root

    def find(self, key: _Key) -> Demand:
        """Returns the demand of that key with one more user."""
        demand = self._demands.get(key)
        if demand is None:
            demand = self._make(key)
        elif not demand.refs:
            self._idle -= 1
        demand.refs += 1
        return demand

    def variant(self, demand: Demand, avoid: Sequence[int]) -> Demand:
        """Returns the demand for the same things from other sessions, with one more user.

        Args:
            demand: Any demand for those things.
            avoid: `HOLDER`, or the sessions to be passed over, the last one last. Where too many
                sets are kept apart already, the last one counts alone.
        """
        avoided = tuple(sorted(avoid))
        key = (*demand.key[:4], avoided)
        if len(avoided) > 1 and len(self._picky) >= PICKY_MAX and key not in self._demands:
            key = (*demand.key[:4], (avoid[-1],))
        return self.find(key)

    def release(self, demand: Demand) -> None:
        """Gives back one use of a demand."""
        demand.refs -= 1
        assert demand.refs >= 0, demand.key
        if not demand.refs:
            self._idle += 1
            if self._idle > IDLE_DEMANDS_MAX and 2 * self._idle > len(self._demands):
                self.purge()

    def purge(self) -> None:
        """Drops the demands nobody uses, and gates and accounts with them."""
        for demand in [each for each in self._demands.values() if not each.refs]:
            del self._demands[demand.key]
            self._leave(demand)
            self._resources.unneed(demand.needs)
        self._idle = 0

    def admit_profile(self, profile: Profile) -> None:
        """Puts the demands that fit a new profile behind it."""
        fitting: dict[Gate, list[Demand]] = {}
        for demand in self._demands.values():
            if self._suits(demand, profile):
                fitting.setdefault(demand.gate, []).append(demand)
        if any(len(demands) < gate.demands for gate, demands in fitting.items()):
            self.refit()
            return
        for gate, demands in fitting.items():
            del self._gates[(gate.fits, gate.avoid, gate.accounts)]
            for demand in demands:
                demand.fits |= profile.bit
            gate.fits |= profile.bit
            self._gates[(gate.fits, gate.avoid, gate.accounts)] = gate
            if gate.avoid == NOBODY:
                self._roster.set_reach(
                    profile.index, self._roster.reaches[profile.index] | gate.bit
                )
        self._connected = 0
        self.refresh()

    def refit(self) -> None:
        """Makes all gates anew: a profile split one, or a resource changed its size."""
        self.purge()
        self._roster.drop_empty()
        for gate in self._gates.values():
            self._drop_bits(gate)
        self._gates = {}
        self._spare = []
        self._picky = []
        for demand in self._demands.values():
            self._enter(demand)
        self.must_remask = True
        self.refresh()

    def check_sizes(self) -> None:
        """Looks again at which demands ask for more than their accounts can ever hold."""
        if any(_is_possible(demand) != demand.is_possible for demand in self._demands.values()):
            self.refit()

    def set_closed(self, account: Resource, closed: bool) -> list[Demand]:
        """Shuts or opens the gates of all demands that want some of an account.

        Returns:
            If the account is private, the demands that lines must show or hide now.
        """
        if account.template is None:
            place = self._places[account]
            self._shut.set(place, self._account_bits[place] if closed else 0)
            self.refresh()
            return []
        changed = []
        for demand in self._private[account]:
            before = demand.shut_accounts
            demand.shut_accounts = before + 1 if closed else before - 1
            if not before or not demand.shut_accounts:
                changed.append(demand)
        return changed

    def _make(self, key: _Key) -> Demand:
        demand = Demand(self._pool, key, self._resources.needs(key[2]))
        self._demands[key] = demand
        for account in demand.private:
            if account not in self._private:
                self._private[account] = []
                account.pools += (self._pool,)
            self._private[account].append(demand)
        if demand.private and not self.is_masked:
            self.must_remask = True
        self._enter(demand)
        return demand

    def _enter(self, demand: Demand) -> None:
        demand.is_possible = _is_possible(demand)
        if not demand.is_possible:
            fits = 0
        elif demand.avoid == HOLDER:
            fits = HELD_BIT
        else:
            fits = self._roster.fitting(demand.labels, demand.kind)
        demand.fits = fits
        accounts = tuple(account for account, _ in demand.needs if account.template is None)
        avoid = NOBODY if demand.avoid == HOLDER else demand.avoid
        gate = self._gates.get((fits, avoid, accounts))
        if gate is None:
            gate = self._make_gate(fits, avoid, accounts)
        gate.demands += 1
        demand.gate = gate

    def _make_gate(self, fits: int, avoid: Avoided, accounts: tuple[Resource, ...]) -> Gate:
        self._connected = 0
        index = self._spare.pop() if self._spare else len(self._gates)
        gate = Gate(index, fits, avoid, accounts)
        self._gates[(fits, avoid, accounts)] = gate
        if len(self._gates) > 1 and not self.is_masked:
            self.must_remask = True
        if avoid == NOBODY:
            for at in _bits_of(fits):
                self._roster.set_reach(at, self._roster.reaches[at] | gate.bit)
        else:
            self._picky.append(gate)
        for account in accounts:
            place = self._place_of(account)
            self._account_bits[place] |= gate.bit
            if account.closed:
                self._shut.set(place, self._account_bits[place])
        self.refresh()
        return gate

    def _leave(self, demand: Demand) -> None:
        for account in demand.private:
            self._private[account].remove(demand)
            if not self._private[account]:
                del self._private[account]
                self._forget(account)
        gate = demand.gate
        gate.demands -= 1
        if not gate.demands:
            del self._gates[(gate.fits, gate.avoid, gate.accounts)]
            self._drop_bits(gate)
            self._spare.append(gate.index)
            if gate.avoid != NOBODY:
                self._picky.remove(gate)
            self.refresh()

    def _drop_bits(self, gate: Gate) -> None:
        self._connected = 0
        if gate.avoid == NOBODY:
            for at in _bits_of(gate.fits):
                if at < len(self._roster.reaches):
                    self._roster.set_reach(at, self._roster.reaches[at] & ~gate.bit)
        for account in gate.accounts:
            place = self._places[account]
            self._account_bits[place] &= ~gate.bit
            if not self._account_bits[place]:
                self._shut.set(place, 0)
                self._account_spare.append(place)
                del self._places[account]
                self._forget(account)
            elif account.closed:
                self._shut.set(place, self._account_bits[place])

    def _place_of(self, account: Resource) -> int:
        place = self._places.get(account)
        if place is None:
            if self._account_spare:
                place = self._account_spare.pop()
            else:
                place = len(self._account_bits)
                self._account_bits.append(0)
            self._places[account] = place
            account.pools += (self._pool,)
        return place

    def _forget(self, account: Resource) -> None:
        account.pools = tuple(pool for pool in account.pools if pool != self._pool)

    @staticmethod
    def _suits(demand: Demand, profile: Profile) -> bool:
        return (
            demand.is_possible
            and demand.avoid != HOLDER
            and profile.fits(demand.labels, demand.kind)
        )


def _is_possible(demand: Demand) -> bool:
    return all(amount <= account.capacity for account, amount in demand.needs)


def _bits_of(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
