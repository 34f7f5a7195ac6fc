"""Decides which of many tasks has the highest score while all scores move.

A tournament tree: every node knows its winner and until when nothing below it can change. Looking
at a later time plays only those matches again whose time has run out. Scores are straight lines
with whole slopes, so the instant at which a loser overtakes is exact.

A change must keep: time goes forward (`reset` after a clock was set back), and a node whose time
has run out has no ancestor whose time has not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, Union

from cronoq_server.engine.urgency import FOREVER, piece

if TYPE_CHECKING:
    from cronoq_server.engine.placement import Waiting

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
        if until[left] <= now:
            self._play(left, now)
        if until[right] <= now:
            self._play(right, now)
        one = self._winners[left]
        other = self._winners[right]
        limit = min(until[left], until[right])
        if one == _EMPTY or other == _EMPTY:
            self._winners[node] = other if one == _EMPTY else one
            until[node] = limit
            return
        lead = (self._values[one] + self._slopes[one] * now) - (
            self._values[other] + self._slopes[other] * now
        )
        is_earlier = self._ranks[one] < self._ranks[other]
        if lead < 0 or (lead == 0 and not is_earlier):
            one, other, lead, is_earlier = other, one, -lead, not is_earlier
        self._winners[node] = one
        gain = self._slopes[other] - self._slopes[one]
        if gain > 0:
            # A loser that ranks before the winner passes it as soon as they are level.
            overtakes = now + (lead // gain + 1 if is_earlier else -(-lead // gain))
            limit = min(limit, overtakes)
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
