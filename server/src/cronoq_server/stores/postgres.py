"""The store of many hosts: a schema in a PostgreSQL database, led by the holder of a lock.

Rules a change must keep:

1. A commit is one transaction over one connection. Its first statement is one UPDATE of the leader
   row that matches epoch, holder and the position before.
2. A term lives as long as the session that holds the lock, and no longer than its row says.
3. The ledger follows the database, never leads it: after an outcome that was unknown it is read
   anew.
4. Nothing here is done row by row, but what happens seldom.

Sessions and errors, the lock, rows, pruning, look-ups: `pg_session`, `pg_leader`, `pg_rows`,
`pg_pruning`, `pg_quarantine`, `pg_reads`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from cronoq_server.engine.model import SECOND, Instant
from cronoq_server.engine.mutations import (
    Output,
    RecoveredChunk,
    StoredTask,
    TaskDeleted,
    TasksPruned,
)
from cronoq_server.stores import pg_reads as reads
from cronoq_server.stores.base import (
    Batch,
    Capabilities,
    Fenced,
    FinishedPage,
    FinishedQuery,
    Leadership,
    Rejected,
    StoreError,
    TimeBase,
    Unavailable,
)
from cronoq_server.stores.codec import signed
from cronoq_server.stores.output_cache import CACHE_BYTES, OutputCache
from cronoq_server.stores.pg_leader import LockSession, begin_term, migrate
from cronoq_server.stores.pg_ledger import Ledger, Segments
from cronoq_server.stores.pg_pruning import Pruned, delete, drop_oldest, prune
from cronoq_server.stores.pg_quarantine import set_aside_schedules, set_aside_tasks
from cronoq_server.stores.pg_rows import Plan, Setting, write_setting
from cronoq_server.stores.pg_session import (
    Connection,
    Line,
    Lines,
    Pooled,
    PostgresSettings,
    connect,
    literal,
    prepared,
    session_name,
    transaction,
)
from cronoq_server.stores.recovery import Parents, ended_within, read_ahead

log = logging.getLogger(__name__)

QUARANTINED = {"action": "row_quarantined"}

T = TypeVar("T")

_NEWEST = ((1 << 63) - 1, (1 << 63) - 1)


class PostgresLeadership:
    """One term in a schema."""

    def __init__(self, store: PostgresStore, epoch: int, holder: str, ledger: Ledger) -> None:
        self.epoch = epoch
        self.holder = holder
        self.position = ledger.position
        self.high_water = ledger.top
        self.ledger = ledger
        self._store = store

    async def check(self) -> None:
        """See `Leadership.check`."""
        await self._store.check(self)

    async def assert_holds(self, db: Connection) -> None:
        """Confirms that the row still names this term.

        Raises:
            Fenced: It does not.
        """
        epoch, holder = await db.fetchrow("SELECT epoch, holder FROM cronoq_leader")
        if (epoch, holder) != (self.epoch, self.holder):
            raise Fenced(f"epoch {self.epoch} is over, {epoch} is the last one")


class PostgresStore:
    """A handle on a schema."""

    def __init__(self, settings: PostgresSettings, *, cache_bytes: int = CACHE_BYTES) -> None:
        """Makes a handle; it connects when that is first needed.

        Args:
            settings: Where the database is and how it is used.
            cache_bytes: Outputs kept in memory beside the database, in bytes.
        """
        self._settings = settings
        self._url = settings.url
        self._session = LockSession(settings)
        self._writer = Line(self._connect)
        self._reader = Lines(self._connect, settings.connections_max - 2)
        self._cache = OutputCache(cache_bytes)
        self._term: PostgresLeadership | None = None
        self._segments: Segments | None = None
        self._epoch: int | None = None
        self._is_migrated = False
        self._base = 0

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return Capabilities(survives_restart=True, spans_hosts=True, remembers=True)

    async def _connect(self) -> Connection:
        settings = self._settings
        name = session_name(settings.schema, self._epoch)
        try:
            connection = await connect(settings, self._url, name)
        except Pooled:
            if settings.lock_url in ("", self._url):
                raise
            log.warning(
                "store.url leads through a pooler: store.lock_url is used for everything",
                extra={"action": "pooler_avoided"},
            )
            self._url = settings.lock_url
            connection = await connect(settings, self._url, name)
        async with prepared(connection):
            await connection.execute(reads.PLANNING, timeout=settings.session_timeout / SECOND)
        return connection

    # --- leadership ------------------------------------------------------------------------------

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """See `Store.acquire_leadership`."""
        settings, session = self._settings, self._session
        if self._term is not None and await self._still_leads(self._term):
            return None  # this very handle leads, and asking for the lock would grant it again
        if not self._is_migrated:
            await session.run(lambda db: migrate(db, settings.schema))
            self._is_migrated = True
        if not await session.take():
            return None
        base = time_base.unix_nanos_at_zero
        try:
            term = await self._begin(holder, now + base)
        except BaseException:
            session.close()
            raise
        self._base = base
        self._term = term
        self._segments = term.ledger.segments
        self._cache.clear()
        return term

    async def _still_leads(self, term: PostgresLeadership) -> bool:
        try:
            await self._session.check()
        except Fenced:
            self._lose(term)
            return False
        return True

    async def _begin(self, holder: str, since: Instant) -> PostgresLeadership:
        """Raises the epoch, then goes on under its name."""
        epochs: list[int] = []

        async def begin(db: Connection) -> None:
            epochs.append(await begin_term(db, self._settings, holder, since))

        await self._session.run(begin)
        self._epoch = epochs[0]
        self._writer.drop()
        self._reader.drop()
        ledger = await self._reader.run(reads.ledger)
        return PostgresLeadership(self, self._epoch, holder, ledger)

    async def check(self, term: PostgresLeadership) -> None:
        """See `Leadership.check`."""
        self._assert_current(term)
        try:
            await self._session.check()
            await self._reader.run(term.assert_holds)
        except Fenced:
            self._lose(term)
            raise

    def _lose(self, term: PostgresLeadership) -> None:
        """A term is over: its lock must not outlive it."""
        if term is self._term:
            self._term = None
            self._session.close()

    def _assert_current(self, term: PostgresLeadership) -> None:
        if term is not self._term or not self._session.is_held:
            raise Fenced(f"epoch {term.epoch} is over: its lock session is gone")

    async def release_leadership(self, leadership: Leadership) -> None:
        """See `Store.release_leadership`."""
        term = _term(leadership)
        if term is not self._term:
            return
        self._term = None

        async def release(db: Connection) -> None:
            await db.execute(
                "UPDATE cronoq_leader SET holder = NULL WHERE epoch = $1 AND holder = $2",
                term.epoch,
                term.holder,
            )

        try:
            await self._writer.run(release)
        except asyncio.CancelledError:
            self._session.close()  # who gave up on a silent server does not wait for it again
            raise
        finally:
            await self._session.end()

    # --- commits ---------------------------------------------------------------------------------

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """See `Store.commit`."""
        term = _term(leadership)
        self._assert_current(term)
        try:
            gone = await self._writer.run(lambda db: self._commit(db, term, batch))
        except Fenced:
            self._lose(term)
            raise
        self._cache.put(batch.outputs.values())
        for task_id in gone:
            self._cache.drop(task_id)

    async def _commit(self, db: Connection, term: PostgresLeadership, batch: Batch) -> list[int]:
        if term.ledger.position < batch.position - 1:
            await self._reload(term)
        ledger = term.ledger
        plan = Plan(batch, self._base, ledger, self._settings.segment_rows)
        if not await self._claim(db, term, batch.position, plan):
            await db.execute("ROLLBACK")
            await self._confirm(db, term, batch.position)
            return []
        try:
            await plan.write(db, self._settings.schema)
            pruned = await self._write_others(db, ledger, batch)
            await db.execute("COMMIT")
        except StoreError:
            await db.execute("ROLLBACK")
            raise
        _advance(ledger, batch.position, plan, pruned)
        return [task_id for part in pruned for task_id in part.gone]

    async def _claim(
        self, db: Connection, term: PostgresLeadership, position: int, plan: Plan
    ) -> bool:
        """Begins the transaction; returns whether the batch still has to be written."""
        top = signed(plan.top) if plan.top else "NULL"
        answer = await db.execute(
            f"BEGIN; UPDATE cronoq_leader SET position = {position}, high_water = {top}, "
            f"segment_rows = {plan.rows} WHERE epoch = {term.epoch} "
            f"AND holder = {literal(term.holder)} AND position = {position - 1}"
        )
        return bool(answer == "UPDATE 1")

    async def _confirm(self, db: Connection, term: PostgresLeadership, position: int) -> None:
        """Finds out why the leader row did not match.

        Returns when the batch is there already.

        Raises:
            Fenced: The term is over.
            Rejected: Batches before this one are missing.
        """
        await term.assert_holds(db)
        last = await db.fetchval("SELECT position FROM cronoq_leader")
        if last < position:
            raise Rejected(f"batch {position} does not follow {last}", "Batch")
        if term.ledger.position < last:
            await self._reload(term)

    async def _reload(self, term: PostgresLeadership) -> None:
        """Reads the ledger anew: something was committed without an answer."""
        term.ledger = await self._reader.run(reads.ledger)
        self._segments = term.ledger.segments
        self._cache.clear()

    async def _write_others(self, db: Connection, ledger: Ledger, batch: Batch) -> list[Pruned]:
        done: list[Pruned] = []
        mark = ledger.pruned
        for mutation in batch.others:
            if isinstance(mutation, TasksPruned):
                wanted = replace(mutation, before=mutation.before + self._base)
                done.append(await prune(db, ledger, mark, wanted))
                mark = done[-1].mark or mark
            elif isinstance(mutation, TaskDeleted):
                done.append(await delete(db, ledger, mutation.task_id))
            elif isinstance(mutation, Setting):
                await write_setting(db, mutation, self._base)
            else:
                raise AssertionError(f"a batch keeps {mutation!r} elsewhere")
        if any(isinstance(mutation, TasksPruned) for mutation in batch.others):
            done.append(await drop_oldest(db, ledger, mark))
        return done

    # --- recovery --------------------------------------------------------------------------------

    async def recover(
        self, leadership: Leadership, horizon: Instant
    ) -> AsyncIterator[RecoveredChunk]:
        """See `Store.recover`."""
        term, base = _term(leadership), self._base
        segments = term.ledger.segments
        chunk, broken = await self._read(term, partial(reads.settings, base=base))
        await self._set_aside_schedules(term, broken)
        yield chunk
        parents = Parents()
        async for live, unreadable in self._live(term):
            await self._set_aside(term, unreadable)
            parents.note(live)
            yield RecoveredChunk(live=tuple(live))
        for query in parents.queries():
            page = await self._read(
                term, partial(reads.named, segments=segments, query=query, base=base)
            )
            yield RecoveredChunk(parents=tuple(page.tasks))

        async def ends(place: tuple[int, int]) -> tuple[tuple[StoredTask, ...], Any]:
            ended, rest = await self._read(term, partial(reads.ends_before, place=place, base=base))
            finished, goes_on = ended_within(ended, horizon)
            return finished, rest if goes_on else None

        async for finished in read_ahead(ends, _NEWEST):
            yield RecoveredChunk(finished=finished)

    def _live(self, term: PostgresLeadership) -> AsyncIterator[tuple[list[StoredTask], list[int]]]:
        """What lives, in order; each time with ids of those that cannot be read."""
        segments, base = term.ledger.segments, self._base
        ids = list(term.ledger.blocks.ids())

        async def some(start: int) -> tuple[tuple[list[StoredTask], list[int]], int | None]:
            part, end = ids[start : start + reads.CHUNK], start + reads.CHUNK
            found = await self._read(
                term, partial(reads.live, segments=segments, ids=part, base=base)
            )
            return found, end if end < len(ids) else None

        return read_ahead(some, 0 if ids else None)

    async def _read(
        self, term: PostgresLeadership, work: Callable[[Connection], Awaitable[T]]
    ) -> T:
        """Reads under a term that holds when all was read."""

        async def checked(db: Connection) -> T:
            found = await work(db)
            await term.assert_holds(db)
            return found

        self._assert_current(term)
        try:
            return await self._reader.run(checked)
        except Unavailable:  # tables go when another leader prunes: is this still ours to read?
            await self._reader.run(term.assert_holds)
            raise

    async def _set_aside(self, term: PostgresLeadership, ids: list[int]) -> None:
        if ids:
            log.error("tasks that cannot be read were set aside: %s", ids, extra=QUARANTINED)
            ledger = term.ledger
            altered = await self._writer.run(
                lambda db: set_aside_tasks(db, term.epoch, term.holder, ledger, ids)
            )
            ledger.blocks.apply(altered)

    async def _set_aside_schedules(self, term: PostgresLeadership, names: list[str]) -> None:
        if names:
            log.error("schedules that cannot be read were set aside: %s", names, extra=QUARANTINED)
            await self._writer.run(
                lambda db: set_aside_schedules(db, term.epoch, term.holder, names)
            )

    # --- look-ups --------------------------------------------------------------------------------

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """See `Store.load_outputs`."""
        found, missing = self._cache.split(ids)
        if missing:
            found |= await self._look_up(partial(reads.outputs, ids=missing))
        return found

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """See `Store.find_finished`."""
        if query.ids or query.keys:
            return await self._look_up(partial(reads.named, query=query, base=self._base))
        return await self._look_up(partial(reads.page, query=query, base=self._base))

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """See `Store.load_tasks`."""
        return await self._look_up(partial(reads.tasks, ids=ids, base=self._base))

    async def _look_up(self, work: Callable[..., Awaitable[T]]) -> T:
        """Reads with the knowledge of where rows are."""

        async def look(db: Connection) -> T:
            if self._segments is None:
                self._segments = (await reads.ledger(db)).segments
            async with transaction(db, reads.ONE_STATE):
                return await work(db, segments=self._segments)

        return await self._reader.run(look)

    async def close(self) -> None:
        """See `Store.close`; a lock that was not released is free once its session is closed."""
        self._reader.close()
        self._writer.close()
        await self._session.end()


def _term(leadership: Leadership) -> PostgresLeadership:
    assert isinstance(leadership, PostgresLeadership), leadership
    return leadership


def _advance(ledger: Ledger, position: int, plan: Plan, pruned: list[Pruned]) -> None:
    """The ledger follows a commit."""
    ledger.position = position
    ledger.top = plan.top
    ledger.rows = plan.rows
    ledger.blocks.apply(plan.altered)
    if plan.begins:
        ledger.segments.begin(*plan.begins)
    for part in pruned:
        part.apply(ledger)
