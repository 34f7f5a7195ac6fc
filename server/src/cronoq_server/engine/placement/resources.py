"""Decides how much of each limited resource is left: semaphores and token buckets.

Rules a change must keep:

- Whole numbers only. A semaphore counts permits, a bucket nano-tokens and the remainder of its
  last refill, so no refill is ever lost to rounding.
- What a task takes it takes at once or not at all, and a semaphore gets back exactly what was
  taken. A bucket gets nothing back: tokens return with time.
- Buckets know only the monotonic clock. They start full.
- Nothing here refers to a task, a line or a pool: tasks are untracked by the garbage collector,
  and a path from here back to them would keep a whole dead engine alive.

This module does not know who waits, nor in which order: that is `placement`.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

NANO = 1_000_000_000


class ResourceRules(msgspec.Struct, frozen=True):
    """One configured resource: a semaphore if `permits` is given, else a token bucket.

    Args:
        name: Name that tasks use; with `per_value` they use `name:value`.
        permits: Size of a semaphore, at least 0; None for a bucket.
        rate: Nano-tokens a bucket gains per second, at least 0.
        burst: Whole tokens a bucket can hold, at least 0.
        per_value: True if each `name:value` is a counter of its own.
    """

    name: str
    permits: int | None = None
    rate: int = 0
    burst: int = 0
    per_value: bool = False


class Resource:
    """One account. Amounts are in permits, or in nano-tokens for a bucket.

    `one` is the size of a whole permit or token in these amounts; `held` counts what running
    attempts have of a semaphore; `waiting` how many waiting tasks want some; `pools` numbers the
    pools whose tasks may want some; `closed` says that placement lets nobody near it for now.
    """

    __slots__ = (
        "available",
        "capacity",
        "claimed",
        "closed",
        "held",
        "is_bucket",
        "name",
        "one",
        "pools",
        "rate",
        "refilled_at",
        "refs",
        "rest",
        "template",
        "waiting",
    )

    def __init__(self, name: str, rules: ResourceRules, mono: int, template: str | None) -> None:
        self.name = name
        self.is_bucket = rules.permits is None
        self.one = NANO if rules.permits is None else 1
        self.capacity = rules.burst * NANO if rules.permits is None else rules.permits
        self.available = self.capacity
        self.rate = rules.rate
        self.rest = 0
        self.refilled_at = mono
        self.held = 0
        self.waiting = 0
        self.refs = 0
        self.template = template
        self.pools: tuple[int, ...] = ()
        self.claimed = False
        self.closed = False

    def refill(self, mono: int) -> None:
        """Adds what a bucket has gained since the last refill, up to its burst."""
        elapsed = mono - self.refilled_at
        if elapsed <= 0:
            return
        self.refilled_at = mono
        if self.available >= self.capacity:
            self.rest = 0
            return
        gained, self.rest = divmod(elapsed * self.rate + self.rest, NANO)
        self.available += gained
        if self.available >= self.capacity:
            self.available = self.capacity
            self.rest = 0

    def instant_of(self, amount: int) -> int | None:
        """Returns the monotonic instant at which a bucket holds `amount`, None for never."""
        lacking = amount - self.available
        if lacking <= 0:
            return self.refilled_at
        if not self.rate or amount > self.capacity:
            return None
        return self.refilled_at - (self.rest - lacking * NANO) // self.rate


Needs: TypeAlias = tuple[tuple[Resource, int], ...]


class Resources:
    """All accounts of one engine, by name."""

    def __init__(self, rules: Iterable[ResourceRules] = (), mono: int = 0) -> None:
        self._rules: dict[str, ResourceRules] = {}
        self._accounts: dict[str, Resource] = {}
        self._mono = mono
        # Accounts whose amounts changed other than by take(): placement looks at them again.
        self.touched: list[Resource] = []
        self._filling: list[tuple[int, str]] = []  # unused buckets, by the instant they are full
        for rule in rules:
            self.add(rule)

    def rules_of(self, name: str) -> ResourceRules | None:
        """Returns the rules that `name` or `name:value` falls under, None if there are none."""
        rules = self._rules.get(name)
        if rules is not None:
            return None if rules.per_value else rules
        colon = name.find(":")
        while colon > 0:
            rules = self._rules.get(name[:colon])
            if rules is not None and rules.per_value:
                return rules
            colon = name.find(":", colon + 1)
        return None

    def add(self, rules: ResourceRules) -> None:
        """Adds a resource."""
        self._rules[rules.name] = rules
        if not rules.per_value:
            self._open_account(rules.name, rules, None)

    @property
    def mono(self) -> int:
        """The latest monotonic instant it was told."""
        return self._mono

    def configured(self, name: str) -> ResourceRules | None:
        """Returns the rules configured under exactly this name, as they are now."""
        return self._rules.get(name)

    def all_rules(self) -> list[ResourceRules]:
        """Returns the rules of every configured resource, as they are now."""
        return list(self._rules.values())

    def find(self, name: str) -> Resource | None:
        """Returns the account of that exact name, None if it is unknown or not in use."""
        return self._accounts.get(name)

    def all(self) -> list[Resource]:
        """Returns every account, configured ones first, then those made by first use."""
        return list(self._accounts.values())

    def needs(self, amounts: Iterable[tuple[str, int]]) -> Needs:
        """Turns names and whole amounts into accounts to take from, sorted by name.

        Each account counts one more user until `unneed` gives it back.

        Raises:
            KeyError: A name is not configured; admission has to check with `rules_of`.
        """
        found = []
        for name, amount in sorted(amounts):
            if not amount:
                continue
            account = self._accounts.get(name)
            if account is None:
                rules = self.rules_of(name)
                if rules is None:
                    raise KeyError(name)
                account = self._open_account(name, rules, rules.name)
            account.refs += 1
            found.append((account, amount * account.one))
        return tuple(found)

    def unneed(self, needs: Needs) -> None:
        """Gives back what `needs` returned; an idle account made by first use is dropped."""
        for account, _ in needs:
            account.refs -= 1
            if not account.refs:
                self._drop_if_idle(account)

    def take(self, needs: Needs) -> None:
        """Takes all amounts; the caller has seen that they are there."""
        for account, amount in needs:
            account.available -= amount
            assert account.available >= 0, account.name
            if not account.is_bucket:
                account.held += amount

    def give(self, needs: Needs) -> None:
        """Gives semaphores back what one `take` took."""
        for account, amount in needs:
            if account.is_bucket:
                continue
            account.held -= amount
            assert account.held >= 0, account.name
            account.available += amount
            self.touched.append(account)

    def advance(self, mono: int) -> None:
        """Notes the monotonic time; new buckets count from here, unused full ones are dropped."""
        if mono > self._mono:
            self._mono = mono
        while self._filling and self._filling[0][0] <= self._mono:
            account = self._accounts.get(heappop(self._filling)[1])
            if account is not None and not account.refs:
                self._drop_if_idle(account)

    def resize(
        self,
        name: str,
        mono: int,
        *,
        permits: int | None = None,
        rate: int | None = None,
        burst: int | None = None,
    ) -> bool:
        """Changes a configured resource, and with `per_value` every account made from it.

        Permits that are out stay out: a semaphore that shrank gives none until enough came back.

        Returns:
            False if there is no such resource.
        """
        rules = self._rules.get(name)
        if rules is None:
            return False
        if rules.permits is not None:
            permits = rules.permits if permits is None else permits
            changed = msgspec.structs.replace(rules, permits=permits)
        else:
            changed = msgspec.structs.replace(
                rules,
                rate=rules.rate if rate is None else rate,
                burst=rules.burst if burst is None else burst,
            )
        self._rules[name] = changed
        for account in self._accounts.values():
            if account.name == name or account.template == name:
                self._resize_account(account, changed, mono)
        return True

    def _resize_account(self, account: Resource, rules: ResourceRules, mono: int) -> None:
        if rules.permits is not None:
            account.capacity = rules.permits
            account.available = rules.permits - account.held
        else:
            account.refill(mono)
            account.rate = rules.rate
            account.capacity = rules.burst * NANO
            account.available = min(account.available, account.capacity)
        self.touched.append(account)

    def _open_account(self, name: str, rules: ResourceRules, template: str | None) -> Resource:
        account = Resource(name, rules, self._mono, template)
        self._accounts[name] = account
        if account.available < account.one:
            self.touched.append(account)
        return account

    def _drop_if_idle(self, account: Resource) -> None:
        """Drops an account made by first use, unless that would forget what was taken."""
        if account.template is None or account.held:
            return
        if account.is_bucket:
            account.refill(self._mono)
            full_at = account.instant_of(account.capacity)
            if account.available < account.capacity:
                if full_at is not None:
                    heappush(self._filling, (full_at, account.name))
                return
        del self._accounts[account.name]
