"""What a store must do: the contract every store keeps and the exported suite checks.

A store is the engine's write-ahead log. The engine is the system of record while it runs; a
store only has to write whole batches in order, refuse writers whose leadership has passed, and
give back what it was told.

1. `commit` is all or none. Its first statement checks epoch, holder and the position before, and
   locks the leader row, so that a commit in flight and a new leader never both succeed.
2. A batch carries its position, one sequence for the life of the store. A commit whose position
   is already there has happened: it returns without writing again.
3. Errors are three types: `Unavailable` (the same call may be tried again), `Fenced` (this
   leadership is over), `Rejected` (this batch can never be stored).
4. Every instant written has `time_base.unix_nanos_at_zero` added, and every one read has it taken
   off.
5. Texts that a store cannot hold never reach it: admission cleans or refuses them.
6. A `commit` that is cancelled ends only when its attempt can have no effect any more, or its
   connection is closed: the same batch may be committed again right after.

Stores know the engine's values and mutations; they know nothing of how it decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from cronoq_server.engine.model import Instant, TaskFilter
from cronoq_server.engine.mutations import (
    Mutation,
    Output,
    OutputStored,
    RecoveredChunk,
    StatusChanged,
    StoredTask,
    TaskInserted,
)

HISTORY_BITS = 40
"""Positions of one history; more batches than a store writes in decades."""


def history_of(position: int) -> int:
    """Which history a position belongs to: a store that was restored begins another one.

    Two positions of one history can be compared. One of an earlier history tells of batches that
    the restored store may never have seen.
    """
    return position >> HISTORY_BITS


class StoreError(Exception):
    """A store could not do what it was asked."""


class Unavailable(StoreError):
    """The store can't be reached or is busy; the same call may be tried again."""


class Fenced(StoreError):
    """Another leadership has begun: this one must stop at once."""


class Rejected(StoreError):
    """The store will never accept this batch.

    Attributes:
        kind: The mutation's kind, for the log.
        task_id: The task concerned, or 0.
        column: The column that refused, or an empty string.
    """

    def __init__(self, message: str, kind: str = "", task_id: int = 0, column: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.task_id = task_id
        self.column = column


class Forgotten(StoreError):
    """Ends after the position asked for have been pruned: a reader would miss them."""


class Unusable(StoreError):
    """This store must not be used as it is set up; the text says what to change.

    A newer schema, another shard's data, a network file system, a connection pooler in between:
    trying again does not help.
    """


class TimeBase(msgspec.Struct, frozen=True):
    """What engine time 0 is, in Unix nanoseconds; the runtime always passes 0."""

    unix_nanos_at_zero: int = 0


class Capabilities(msgspec.Struct, frozen=True):
    """What the suite and the runtime may expect of a store.

    Attributes:
        survives_restart: Whether a new process finds what an old one wrote.
        spans_hosts: Whether replicas on several hosts can share it.
        remembers: Whether it knows finished tasks that the engine has forgotten.
    """

    survives_restart: bool
    spans_hosts: bool
    remembers: bool


class Leadership(Protocol):
    """One term as leader, and the proof that it still holds."""

    @property
    def epoch(self) -> int:
        """The term's number; rises with every acquisition, never comes back."""

    @property
    def position(self) -> int:
        """Position of the last batch committed before this term began."""

    @property
    def high_water(self) -> int:
        """The highest task id in any committed batch, or 0."""

    async def check(self) -> None:
        """Confirms with the store that this term still holds.

        Raises:
            Fenced: It does not.
            Unavailable: The store could not be asked.
        """


class Batch:
    """The mutations of one or more steps, merged into what has to be written.

    Attributes:
        position: The batch's number.
        inserted: New tasks in submission order.
        changed: The last change of each task, by id.
        outputs: Outputs by task id.
        others: All other mutations, in order.
        high_water: The highest id inserted, or 0.
        size: Rough number of bytes of payloads and outputs.
    """

    __slots__ = ("changed", "high_water", "inserted", "others", "outputs", "position", "size")

    def __init__(self, position: int) -> None:
        self.position = position
        self.inserted: list[TaskInserted] = []
        self.changed: dict[int, StatusChanged] = {}
        self.outputs: dict[int, OutputStored] = {}
        self.others: list[Mutation] = []
        self.high_water = 0
        self.size = 0

    def add(self, mutations: Sequence[Mutation]) -> None:
        """Merges a step's mutations; of several changes of one task the last one stays."""
        inserted, changed = self.inserted, self.changed
        for mutation in mutations:
            kind = type(mutation)
            if kind is StatusChanged:
                changed[mutation.task_id] = mutation  # type: ignore[union-attr,assignment]
            elif kind is TaskInserted:
                inserted.append(mutation)  # type: ignore[arg-type]
                self.size += len(mutation.spec.payload) + 200  # type: ignore[union-attr]
            elif kind is OutputStored:
                self.outputs[mutation.task_id] = mutation  # type: ignore[union-attr,assignment]
                self.size += len(mutation.output) + 50  # type: ignore[union-attr]
            else:
                self.others.append(mutation)
        if inserted:
            self.high_water = inserted[-1].task_id

    def __len__(self) -> int:
        """How many rows the batch writes."""
        return len(self.inserted) + len(self.changed) + len(self.outputs) + len(self.others)


class FinishedQuery(msgspec.Struct, frozen=True):
    """Which finished tasks are looked for: by ids and keys, or a page by filter.

    A page is in id order, or, with `ended_after`, in order of (position, id): first the rest of
    that position, then what ended later.

    Attributes:
        ids: Task ids.
        keys: Keys; of several finished tasks with one key the newest counts.
        filter: A page's filter, used when neither ids nor keys are given.
        after: Page cursor: ids above it (below it when `newest_first`); 0 = from the start.
        limit: Most tasks returned by a page.
        newest_first: Direction of a page in id order.
        ended_after: Position from which on a page in order of ends begins, after the id `after`.
    """

    ids: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    filter: TaskFilter | None = None
    after: int = 0
    limit: int = 1000
    newest_first: bool = False
    ended_after: int | None = None


class FinishedPage(msgspec.Struct, frozen=True):
    """What a look-up found, without payloads.

    Attributes:
        tasks: In the order asked for; for ids and keys, in any order and each task once.
        next_after: Cursor of the next page, behind the last task looked at; 0 = nothing is left.
        next_position: Together with it, the position, when the order is that of ends.
    """

    tasks: list[StoredTask]
    next_after: int = 0
    next_position: int = 0


LOOKED_AT_MAX = 10_000
"""A page looks at no more than this many finished tasks; it may then be short."""


class Store(Protocol):
    """A place to persist to."""

    @property
    def capabilities(self) -> Capabilities:
        """What may be expected of this store."""

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """Tries to begin a new term; waits for nothing.

        Args:
            holder: New for every acquisition.
            now: Wall instant, in engine time.
            time_base: What engine time 0 is.

        Returns:
            The term, or None while another one holds.

        Raises:
            Unavailable: The store can't be reached.
            Unusable: The store must not be used as it is set up.
        """

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """Writes a batch, all or none, if `leadership` still holds.

        Raises:
            Unavailable: Outcome unknown; the same batch may be committed again.
            Fenced: Another term has begun; nothing was written.
            Rejected: The batch can never be written; nothing was.
        """

    def recover(self, leadership: Leadership, horizon: Instant) -> AsyncIterator[RecoveredChunk]:
        """Streams what a new leader needs.

        Args:
            leadership: The term that recovers.
            horizon: Finished tasks that ended at or after this wall instant come too.

        Raises:
            Unavailable: The store can't be reached.
        """

    async def release_leadership(self, leadership: Leadership) -> None:
        """Ends the term in order, so that another one may begin at once; one that is over stays so.

        Raises:
            Unavailable: The store can't be reached; the term ends by itself later.
        """

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """Outputs of finished tasks; ids without one are left out.

        Raises:
            Unavailable: The store can't be reached.
        """

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """Finished tasks by ids and keys, or a page of them.

        Raises:
            Forgotten: Some ends after `ended_after` are no longer there.
            Unavailable: The store can't be reached.
        """

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """Tasks with spec and payload, finished or not; unknown ids are left out.

        Raises:
            Unavailable: The store can't be reached.
        """

    async def close(self) -> None:
        """Lets go of files and connections; the store is not used again."""
