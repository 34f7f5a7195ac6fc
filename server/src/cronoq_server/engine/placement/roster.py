"""Decides which worker session of a pool gets a task that may run.

Sessions with the same labels and kinds form a *profile*, a bit. Among the profiles that fit, the
least versatile goes first (fewest labels, declared kinds before any kind); equals take turns, and
so do the sessions inside a profile. This keeps versatile workers free; it is no perfect matching.

Rules a change must keep:

- `free` has the bit of a profile exactly while one of its sessions has a slot that anybody may use.
- Held slots are no longer free: `Session.free` leaves them out.
- Bit 0 is `HELD`, a profile without sessions that is always free: behind it stand the tasks whose
  slot is held for them.

This module does not know tasks beyond the sessions that hold a slot for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from cronoq_server.engine.placement.unions import UnionTree

HELD = 0
HELD_BIT = 1
FITTING_MAX = 4096  # answers that are remembered


class Session:
    """One worker's connection: how many slots are free, and how many of them are held back.

    `told` counts all free slots, `free` those that anybody may use, `held` those kept for a task.
    """

    __slots__ = ("free", "held", "is_queued", "number", "pool", "profile", "told")

    def __init__(self, number: int, pool: int, profile: Profile) -> None:
        self.number = number
        self.pool = pool
        self.profile = profile
        self.told = 0
        self.free = 0
        self.held = 0
        self.is_queued = False


class Profile:
    """The sessions of one pool with the same labels and kinds."""

    __slots__ = ("bit", "index", "kinds", "labels", "members", "queue", "ready", "tier")

    def __init__(self, labels: frozenset[str], kinds: frozenset[str], tier: Tier) -> None:
        self.labels = labels
        self.kinds = kinds
        self.tier = tier
        self.index = 0
        self.bit = 0
        self.members = 0
        self.ready = 0  # sessions with a free slot
        self.queue: deque[Session] = deque()  # whose turn it is; some may have no slot any more

    def fits(self, labels: frozenset[str], kind: str) -> bool:
        """Returns True if a task that wants these labels and is of this kind may run here."""
        return labels <= self.labels and (not self.kinds or kind in self.kinds)

    def next_session(self, avoid: Sequence[int]) -> Session:
        """Returns the session whose turn it is; the caller knows that one is free."""
        queue = self.queue
        while not queue[0].free:
            queue.popleft().is_queued = False
        return next(each for each in queue if each.free and each.number not in avoid)


class Tier:
    """The profiles of equal versatility, which take turns."""

    __slots__ = ("bits", "last", "rank")

    def __init__(self, rank: tuple[int, int]) -> None:
        self.rank = rank
        self.bits = 0
        self.last = 0  # index of the profile that was served last


class Roster:
    """The sessions of one pool."""

    __slots__ = (
        "_by_traits",
        "_fitting",
        "_sessions",
        "_tiers",
        "connected",
        "free",
        "members",
        "profiles",
        "reach",
        "reaches",
    )

    def __init__(self) -> None:
        self.profiles: list[Profile | None] = [None]  # HELD
        self._by_traits: dict[tuple[frozenset[str], frozenset[str]], Profile] = {}
        self._sessions: dict[int, Session] = {}
        self._tiers: list[Tier] = []
        self._fitting: dict[tuple[frozenset[str], str], int] = {}
        self.members = 0
        self.free = HELD_BIT
        self.connected = HELD_BIT  # profiles with a session, and HELD
        # What the gates tell: the bits of the gates behind each profile; `reach` unites those of
        # the free profiles.
        self.reaches: list[int] = [0]
        self.reach = UnionTree()

    def __iter__(self) -> Iterator[Profile]:
        return (profile for profile in self.profiles if profile is not None)

    def profile(self, labels: Iterable[str], kinds: Iterable[str]) -> tuple[Profile, bool]:
        """Returns the profile with these traits, and True if it was made just now."""
        traits = frozenset(labels), frozenset(kinds)
        profile = self._by_traits.get(traits)
        if profile is not None:
            return profile, False
        profile = Profile(*traits, self._tier((len(traits[0]), 0 if traits[1] else 1)))
        self._by_traits[traits] = profile
        self._place(profile, len(self.profiles))
        return profile, True

    def drop_empty(self) -> None:
        """Forgets profiles without sessions; all bits change, so the gates must be made anew."""
        kept = [profile for profile in self if profile.members]
        self._by_traits = {(profile.labels, profile.kinds): profile for profile in kept}
        self._fitting.clear()
        self.profiles = [None]
        self.reaches = [0]
        self.reach = UnionTree()
        self.free = self.connected = HELD_BIT
        self._tiers = []
        for index, profile in enumerate(kept, 1):
            was_last = profile.tier.last == profile.index
            profile.tier = self._tier(profile.tier.rank)
            self._place(profile, index)
            if was_last:
                profile.tier.last = index
            self.connected |= profile.bit
            if profile.ready:
                self.free |= profile.bit

    def fitting(self, labels: frozenset[str], kind: str) -> int:
        """Returns the bits of the profiles that may run such a task."""
        asked = (labels, kind)
        bits = self._fitting.get(asked)
        if bits is None:
            bits = 0
            for profile in self.profiles:
                if profile is not None and profile.fits(labels, kind):
                    bits |= profile.bit
            if len(self._fitting) >= FITTING_MAX:
                self._fitting.clear()
            self._fitting[asked] = bits
        return bits

    def enlist(self, number: int, pool: int, profile: Profile) -> Session:
        """Adds a session without free slots."""
        profile.members += 1
        self.members += 1
        self.connected |= profile.bit
        session = self._sessions[number] = Session(number, pool, profile)
        return session

    @property
    def is_sparse(self) -> bool:
        """True if most profiles have no session any more."""
        return len(self.profiles) > 32 and self.members * 2 < len(self.profiles)

    def set_reach(self, index: int, bits: int) -> None:
        """Tells which gates stand behind a profile."""
        self.reaches[index] = bits
        if self.free >> index & 1:
            self.reach.set(index, bits)

    def set_free(self, session: Session, free: int) -> bool:
        """Sets how many slots of a session anybody may use.

        Returns:
            True if it had none and has some now, or the other way round.
        """
        before = session.free
        session.free = free
        if bool(before) == bool(free):
            return False
        profile = session.profile
        if free:
            profile.ready += 1
            if not session.is_queued:
                session.is_queued = True
                profile.queue.append(session)
            if profile.ready == 1:
                self.free |= profile.bit
                self.reach.set(profile.index, self.reaches[profile.index])
        else:
            profile.ready -= 1
            if not profile.ready:
                self.free ^= profile.bit
                self.reach.set(profile.index, 0)
        return True

    def take(self, fits: int, avoid: Sequence[int] = ()) -> Session:
        """Takes a slot of the session that gets a task which fits these profiles.

        The caller knows that there is one with a free slot, other than those to `avoid`.
        """
        candidates = fits & self.free
        if avoid:
            candidates = self.without(candidates, avoid)
        if candidates & (candidates - 1):
            candidates = self._turn(candidates)
        profile = self.profiles[candidates.bit_length() - 1]
        assert profile is not None
        profile.tier.last = profile.index
        queue = profile.queue
        session = queue[0]
        if not session.free or session.number in avoid:
            session = profile.next_session(avoid)
        session.told -= 1
        if session.free > 1:
            session.free -= 1
        else:
            self.set_free(session, 0)
        if queue[0] is session:
            queue.rotate(-1)
        else:
            queue.remove(session)
            queue.append(session)
        return session

    def forget(self, session: Session) -> None:
        """Removes a session whose slots were set to 0."""
        profile = session.profile
        profile.members -= 1
        self.members -= 1
        del self._sessions[session.number]
        if not profile.members:
            self.connected ^= profile.bit
        if session.is_queued:
            session.is_queued = False
            profile.queue.remove(session)

    def _turn(self, candidates: int) -> int:
        """Returns the bit of the least versatile profile whose turn it is."""
        for tier in self._tiers:
            equals = candidates & tier.bits
            if equals:
                later = equals >> tier.last + 1 << tier.last + 1
                candidates = later or equals
                break
        return candidates & -candidates

    def without(self, bits: int, avoid: Sequence[int]) -> int:
        """Drops the profiles in which only sessions to `avoid` have a free slot."""
        avoided: dict[int, int] = {}
        for number in avoid:
            session = self._sessions.get(number)
            if session is not None and session.free:
                profile = session.profile
                count = avoided[profile.index] = avoided.get(profile.index, 0) + 1
                if count == profile.ready:
                    bits &= ~profile.bit
        return bits

    def _place(self, profile: Profile, index: int) -> None:
        self._fitting.clear()
        profile.index = index
        profile.bit = 1 << index
        profile.tier.bits |= profile.bit
        self.profiles.append(profile)
        self.reaches.append(0)

    def _tier(self, rank: tuple[int, int]) -> Tier:
        for tier in self._tiers:
            if tier.rank == rank:
                return tier
        tier = Tier(rank)
        self._tiers.append(tier)
        self._tiers.sort(key=lambda each: each.rank)
        return tier
