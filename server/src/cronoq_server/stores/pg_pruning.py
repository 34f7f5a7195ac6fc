"""How old ends go from PostgreSQL: at once in what is seen, later in what is stored.

A mark in the leader row says up to where ends are gone; moving it is one look at an index, however
many rows there are. A segment whose ends all lie behind the mark is dropped as a whole, so nothing
is left for the vacuum; what still lives in it, and what live tasks depend on, is first written anew
among the stragglers. Of those the mark says nothing: they go one by one.
"""

from __future__ import annotations

from itertools import islice, takewhile

import asyncpg

from cronoq_server.engine.mutations import TasksPruned
from cronoq_server.stores.codec import signed, unsigned
from cronoq_server.stores.pg_ledger import ASIDE, Ledger
from cronoq_server.stores.pg_session import Connection

MOVED_MAX = 1000
"""Stragglers that one batch moves."""

_LOOKED_AT = 3
"""Oldest segments that one batch looks at."""

_WORTH = 10
"""Segments are emptied when no more than one in so many of their tasks lives."""


OLDEST = (
    "SELECT id, position, at FROM cronoq_ends WHERE (position, id) > ($1, $2) "
    "ORDER BY position, id LIMIT $3"
)

LATER = (
    "SELECT id FROM cronoq_ends_{segment} WHERE (position, id) > ($1, $2) "
    "ORDER BY position, id LIMIT 1"
)
"""Says whether a segment has ends behind the mark. Without an order the planner, which expects
many, would look through the rows until it meets one."""


class Pruned:
    """What one pruning changed; the ledger takes it over when it is committed.

    Attributes:
        gone: Ids that are no longer seen.
        mark: The new mark, or None.
        moved: Ids that were set aside.
        left: Ids that were among the stragglers and have gone.
        dropped: Segments that are no more.
    """

    def __init__(self) -> None:
        self.gone: list[int] = []
        self.mark: tuple[int, int] | None = None
        self.moved: list[int] = []
        self.left: list[int] = []
        self.dropped: list[int] = []

    def apply(self, ledger: Ledger) -> None:
        """Takes over what was committed."""
        if self.mark is not None:
            ledger.pruned = self.mark
        ledger.segments.aside.difference_update(self.left)
        ledger.segments.aside.update(self.moved)
        for segment in self.dropped:
            ledger.segments.drop(segment)


async def prune(
    connection: Connection, ledger: Ledger, mark: tuple[int, int], wanted: TasksPruned
) -> Pruned:
    """Moves the mark over at most `limit` old ends; what must stay is set aside."""
    done = Pruned()
    keep = {signed(i) for i in wanted.keep}
    oldest = await connection.fetch(OLDEST, *mark, wanted.limit)
    victims = list(takewhile(lambda end: end["at"] < wanted.before, oldest))
    if victims:
        last = victims[-1]
        mark = done.mark = (last["position"], last["id"])
        await connection.execute(
            "UPDATE cronoq_leader SET pruned_position = $1, pruned_id = $2", *mark
        )
        done.gone = [unsigned(end["id"]) for end in victims if end["id"] not in keep]
        spared = [unsigned(end["id"]) for end in victims if end["id"] in keep]
        for segment, ids in ledger.segments.by_segment(spared).items():
            if segment != ASIDE:
                await _set_aside(connection, segment, ids)
                done.moved += ids
    done.left = await _leave(connection, mark, keep, wanted.limit)
    done.gone += done.left
    return done


async def _leave(
    connection: Connection, mark: tuple[int, int], keep: set[int], limit: int
) -> list[int]:
    """Removes the stragglers behind the mark that nobody needs any more; returns their ids."""
    rows = await connection.fetch(
        f"SELECT id FROM cronoq_ends_{ASIDE} WHERE (position, id) <= ($1, $2) "
        "AND NOT id = ANY($3) ORDER BY position, id LIMIT $4",
        *mark,
        list(keep),
        limit,
    )
    left = [unsigned(number) for (number,) in rows]
    await _delete(connection, left, ASIDE)
    return left


async def delete(connection: Connection, ledger: Ledger, task_id: int) -> Pruned:
    """Removes one finished task for good."""
    done = Pruned()
    segment = ledger.segments.of(task_id)
    there = await connection.fetchval(
        "SELECT 1 FROM cronoq_ends WHERE segment = $1 AND id = $2", segment, signed(task_id)
    )
    if there is not None:
        await _delete(connection, [task_id], segment)
        done.gone = [task_id]
        done.left = [task_id] if segment == ASIDE else []
    return done


async def _delete(connection: Connection, ids: list[int], segment: int) -> None:
    if ids:
        numbers = [signed(i) for i in ids]
        for table in ("ends", "changes", "tasks"):
            await connection.execute(
                f"DELETE FROM cronoq_{table}_{segment} WHERE id = ANY($1)", numbers
            )


async def drop_oldest(connection: Connection, ledger: Ledger, mark: tuple[int, int]) -> Pruned:
    """Drops, of the oldest segments, the first one that can go; empties it before, step by step."""
    done = Pruned()
    for segment, first, end in ledger.segments.full_ones()[:_LOOKED_AT]:
        if await connection.fetchval(LATER.format(segment=segment), *mark) is not None:
            continue
        aside = ledger.segments.aside
        living = [i for i in ledger.blocks.ids(first, end) if i not in aside]
        if len(living) > MOVED_MAX and len(living) * _WORTH > end - first:
            continue
        done.moved = list(islice(living, MOVED_MAX))
        await _set_aside(connection, segment, done.moved)
        if len(done.moved) == len(living) and await _drop(connection, segment):
            done.dropped.append(segment)
        break
    return done


async def _set_aside(connection: Connection, segment: int, ids: list[int]) -> None:
    """Copies tasks, with their ends if they have ended, among the stragglers."""
    if not ids:
        return
    numbers = [signed(i) for i in ids]
    await connection.execute(
        "INSERT INTO cronoq_tasks_0 SELECT 0, id, created_at, key, pool, kind, tenant, schedule, "
        f"spec, payload, change FROM cronoq_tasks_{segment} WHERE id = ANY($1)",
        numbers,
    )
    await connection.execute(
        "INSERT INTO cronoq_changes_0 SELECT DISTINCT ON (id) 0, id, position, change "
        f"FROM cronoq_changes_{segment} WHERE id = ANY($1) ORDER BY id, position DESC",
        numbers,
    )
    await connection.execute(
        "INSERT INTO cronoq_ends_0 SELECT 0, id, position, at, status, change, content_type, "
        f"output FROM cronoq_ends_{segment} WHERE id = ANY($1)",
        numbers,
    )


async def _drop(connection: Connection, segment: int) -> bool:
    """Drops a segment; False when somebody reads from it just now: another time, then."""
    await connection.execute("SAVEPOINT dropping; SET LOCAL lock_timeout = '100ms'")
    try:
        await connection.execute(
            f"DROP TABLE cronoq_tasks_{segment}, cronoq_changes_{segment}, cronoq_ends_{segment}; "
            f"DELETE FROM cronoq_segments WHERE segment = {segment}; "
            "SET LOCAL lock_timeout = DEFAULT; RELEASE SAVEPOINT dropping"
        )
    except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
        await connection.execute("ROLLBACK TO SAVEPOINT dropping")
        return False
    return True
