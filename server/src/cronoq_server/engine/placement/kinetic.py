"""Decides which of many tasks has the highest score while all scores move.

A tournament tree: every node knows its winner and until when nothing below it can change. Looking
at a later time plays only those matches again whose time has run out. Scores are straight lines
with whole slopes, so the instant at which a loser overtakes is exact.

A change must keep: time goes forward (`reset` after a clock was set back), and a node whose time
has run out has no ancestor whose time has not.
"""

from __future__ import annotations

from typing import TypeAlias, Union

from cronoq_server.engine.placement.urgency import FOREVER, piece
from cronoq_server.engine.placement.waiting import Waiting

_EXPIRED = -FOREVER
_EMPTY = -1

_Player: TypeAlias = Union["Waiting", "Tournament"]


class Tournament:
    """Tasks whose deadlines press; smaller tournaments may play for the best of theirs."""

    __slots__ = (
        "_host",
        "_leaf",
        "_players",
        "_ranks",
        "_size",
        "_slopes",
        "_spare",
        "_until",
        "_values",
        "_winners",
    )

    def __init__(self) -> None:
        self._size = 0
        self._host: Tournament | None = None  # the one this one plays in, at `_leaf`
        self._leaf = -1
        self._players: list[_Player | None] = []
        self._ranks: list[tuple[int, int]] = []
        self._values: list[int] = []
        self._slopes: list[int] = []
        self._winners: list[int] = []
        self._until: list[int] = []
        self._spare: list[int] = []
        self._resize(1)

    def __len__(self) -> int:
        return self._size - len(self._spare)

    def tasks(self) -> list[Waiting]:
        """Returns the tasks that play here themselves, in no meaningful but a fixed order."""
        return [
            player
            for player in self._players
            if player is not None and not isinstance(player, Tournament)
        ]

    def add(self, player: _Player) -> None:
        """Adds a task whose `p_rush` is set, or a tournament that is not empty."""
        if not self._spare:
            self._resize(self._size * 2)
        leaf = self._spare.pop()
        if isinstance(player, Tournament):
            player._host = self
            player._leaf = leaf
        else:
            assert player.p_rush is not None
            player.p_rush.leaf = leaf
            self._ranks[leaf] = (player.since, player.id)
        self._players[leaf] = player
        self._winners[self._size + leaf] = leaf
        self._expire(leaf)

    def remove(self, player: _Player) -> None:
        """Takes a player out."""
        if isinstance(player, Tournament):
            leaf = player._leaf
            player._host = None
            player._leaf = -1
        else:
            assert player.p_rush is not None
            leaf = player.p_rush.leaf
            player.p_rush.leaf = -1
        assert self._players[leaf] is player
        self._players[leaf] = None
        self._winners[self._size + leaf] = _EMPTY
        self._spare.append(leaf)
        self._expire(leaf)

    def best(self, now: int) -> Waiting:
        """Returns the task with the highest score at `now`; there must be one."""
        if self._until[1] <= now:
            self._play(1, now)
        player = self._players[self._winners[1]]
        assert player is not None
        return player.best(now) if isinstance(player, Tournament) else player

    def reset(self) -> None:
        """Forgets all results, because time went back."""
        self._until = [_EXPIRED] * len(self._until)

    def _expire(self, leaf: int) -> None:
        until = self._until
        node = self._size + leaf
        while node and until[node] != _EXPIRED:
            until[node] = _EXPIRED
            node >>= 1
        if self._host is not None:
            self._host._expire(self._leaf)

    def _resize(self, size: int) -> None:
        grown = size - self._size
        self._players += [None] * grown
        self._ranks += [(0, 0)] * grown
        self._values += [0] * grown
        self._slopes += [0] * grown
        self._spare = list(range(size - 1, self._size - 1, -1))
        self._size = size
        leaves = [_EMPTY if player is None else at for at, player in enumerate(self._players)]
        self._winners = [_EMPTY] * size + leaves
        self._until = [_EXPIRED] * (2 * size)

    def _play(self, node: int, now: int) -> None:
        until = self._until
        if node >= self._size:
            self._measure(node, now)
            return
        left = node + node
        right = left + 1
        limit = until[left]
        if limit <= now:
            self._play(left, now)
            limit = until[left]
        later = until[right]
        if later <= now:
            self._play(right, now)
            later = until[right]
        if later < limit:
            limit = later
        winners = self._winners
        one = winners[left]
        other = winners[right]
        if one == _EMPTY or other == _EMPTY:
            winners[node] = other if one == _EMPTY else one
            until[node] = limit
            return
        values, slopes, ranks = self._values, self._slopes, self._ranks
        lead = values[one] - values[other] + (slopes[one] - slopes[other]) * now
        is_earlier = ranks[one] < ranks[other]
        if lead < 0 or (lead == 0 and not is_earlier):
            one, other, lead, is_earlier = other, one, -lead, not is_earlier
        winners[node] = one
        gain = slopes[other] - slopes[one]
        if gain > 0:
            # A loser that ranks before the winner passes it as soon as they are level.
            overtakes = now + (lead // gain + 1 if is_earlier else -(-lead // gain))
            if overtakes < limit:
                limit = overtakes
        until[node] = limit

    def _measure(self, node: int, now: int) -> None:
        leaf = node - self._size
        player = self._players[leaf]
        if player is None:
            self._until[node] = FOREVER
        elif isinstance(player, Tournament):
            task = player.best(now)
            winner = player._winners[1]
            self._ranks[leaf] = (task.since, task.id)
            self._values[leaf] = player._values[winner]
            self._slopes[leaf] = player._slopes[winner]
            self._until[node] = player._until[1]
        else:
            self._values[leaf], self._slopes[leaf], self._until[node] = piece(player, now)


class Finals(Tournament):
    """The tournaments of one line, each behind a gate: who is best behind the open ones?

    Every node has the bits of the gates below it. The search goes down only where the winner's
    gate is shut, into what has an open gate and might beat what was found.
    """

    __slots__ = ("_bits", "_masks")

    def __init__(self) -> None:
        self._bits: list[int] = []
        self._masks: list[int] = []
        super().__init__()

    @property
    def mask(self) -> int:
        """The bits of all gates with a player."""
        return self._masks[1]

    def enter(self, player: Tournament, bit: int) -> None:
        """Adds a tournament that is not empty, behind the gate of that bit."""
        self.add(player)
        self._set_bit(player._leaf, bit)

    def leave(self, player: Tournament) -> None:
        """Takes a tournament out."""
        leaf = player._leaf
        self.remove(player)
        self._set_bit(leaf, 0)

    def best_open(self, now: int, open_bits: int) -> Waiting | None:
        """Returns the task with the highest score at `now` among those behind open gates."""
        if not self._masks[1] & open_bits:
            return None
        if self._until[1] <= now:
            self._play(1, now)
        player = self._players[self._find(1, now, open_bits)]
        assert isinstance(player, Tournament)
        return player.best(now)

    def _find(self, node: int, now: int, open_bits: int) -> int:
        winner = self._winners[node]
        if self._bits[winner] & open_bits:
            return winner
        better = node + node
        worse = better + 1
        masks = self._masks
        if not masks[worse] & open_bits:
            return self._find(better, now, open_bits)
        if not masks[better] & open_bits:
            return self._find(worse, now, open_bits)
        if self._is_ahead(self._winners[worse], self._winners[better], now):
            better, worse = worse, better
        found = self._find(better, now, open_bits)
        if self._is_ahead(self._winners[worse], found, now):
            other = self._find(worse, now, open_bits)
            if self._is_ahead(other, found, now):
                return other
        return found

    def _is_ahead(self, one: int, other: int, now: int) -> bool:
        slope = self._slopes[one] - self._slopes[other]
        lead = self._values[one] - self._values[other] + slope * now
        return lead > 0 or (lead == 0 and self._ranks[one] < self._ranks[other])

    def _set_bit(self, leaf: int, bit: int) -> None:
        self._bits[leaf] = bit
        masks = self._masks
        node = self._size + leaf
        masks[node] = bit
        node >>= 1
        while node:
            masks[node] = masks[node + node] | masks[node + node + 1]
            node >>= 1

    def _resize(self, size: int) -> None:
        super()._resize(size)
        self._bits += [0] * (size - len(self._bits))
        self._masks = [0] * size + self._bits
        for node in range(size - 1, 0, -1):
            self._masks[node] = self._masks[node + node] | self._masks[node + node + 1]
