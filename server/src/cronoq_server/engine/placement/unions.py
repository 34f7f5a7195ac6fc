"""Decides which bits any of many masks has, while one mask at a time changes."""

from __future__ import annotations


class UnionTree:
    """The OR of many masks of which one at a time changes, in O(log n) per change."""

    __slots__ = ("_nodes", "_size")

    def __init__(self) -> None:
        self._size = 1
        self._nodes = [0, 0]

    @property
    def root(self) -> int:
        """The OR of all masks."""
        return self._nodes[1]

    def set(self, index: int, mask: int) -> None:
        """Replaces the mask at `index`; the tree grows as needed."""
        while index >= self._size:
            self._grow()
        nodes = self._nodes
        at = index + self._size
        if nodes[at] == mask:
            return
        nodes[at] = mask
        at >>= 1
        while at:
            union = nodes[at + at] | nodes[at + at + 1]
            if nodes[at] == union:
                return
            nodes[at] = union
            at >>= 1

    def _grow(self) -> None:
        leaves = self._nodes[self._size :]
        self._size *= 2
        self._nodes = [0] * self._size + leaves + [0] * len(leaves)
        for at in range(self._size - 1, 0, -1):
            self._nodes[at] = self._nodes[at + at] | self._nodes[at + at + 1]
