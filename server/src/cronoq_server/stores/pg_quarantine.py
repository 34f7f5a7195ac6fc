"""What becomes of rows that a new leader cannot read: they are set aside, under its own epoch."""

from __future__ import annotations

from collections.abc import Sequence

from cronoq_server.engine.model import Instant
from cronoq_server.stores.base import Fenced
from cronoq_server.stores.codec import encode_change, quarantined, signed
from cronoq_server.stores.pg_ledger import Ledger
from cronoq_server.stores.pg_rows import write_blocks
from cronoq_server.stores.pg_session import Connection, transaction


async def set_aside_tasks(
    db: Connection, epoch: int, holder: str, ledger: Ledger, ids: Sequence[int]
) -> dict[int, int]:
    """Live tasks end as failed; returns the blocks of the living that changed.

    Raises:
        Fenced: The term is over.
    """
    altered = ledger.blocks.altered((), ids)
    async with transaction(db):
        now = await _fence(db, epoch, holder)
        rows = []
        for task_id in ids:
            change = quarantined(task_id, now)
            # It belongs to the next batch: nobody can have read beyond that yet.
            where = (ledger.segments.of(task_id), signed(task_id), ledger.position + 1)
            rows.append((*where, now, int(change.status), encode_change(change)))
        await db.executemany(
            "INSERT INTO cronoq_ends (segment, id, position, at, status, change) "
            "VALUES ($1, $2, $3, $4, $5, $6)",
            rows,
        )
        await write_blocks(db, altered)
    return altered


async def set_aside_schedules(
    db: Connection, epoch: int, holder: str, names: Sequence[str]
) -> None:
    """Schedules are left out from now on, until they are put again.

    Raises:
        Fenced: The term is over.
    """
    async with transaction(db):
        await _fence(db, epoch, holder)
        await db.execute(
            "UPDATE cronoq_schedules SET quarantined = 'it cannot be read' WHERE name = ANY($1)",
            list(names),
        )


async def _fence(db: Connection, epoch: int, holder: str) -> Instant:
    """First statement of a transaction that is no commit; returns the database's wall time."""
    now: Instant | None = await db.fetchval(
        "UPDATE cronoq_leader SET epoch = epoch WHERE epoch = $1 AND holder = $2 "
        "RETURNING (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint",
        epoch,
        holder,
    )
    if now is None:
        raise Fenced(f"epoch {epoch} is over")
    return now
