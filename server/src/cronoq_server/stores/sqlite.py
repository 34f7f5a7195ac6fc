"""The store of one host: a SQLite file, written by one thread under a lease in the file itself.

Rules a change must keep:

1. The event loop never waits for the file. One thread writes and another reads, each with its own
   connection; commits are one transaction.
2. The first statement of every writing transaction is one UPDATE of the leader row that matches
   epoch and holder, and for a commit the position before: it takes the write lock, renews the
   lease, and finds out about a successor.
3. A lease that ran out and that nobody took goes on under the same epoch.

What may take a lease, how rows look, how a file is opened: `sqlite_lease`, `sqlite_rows`,
`sqlite_reads`, `sqlite_file`.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from cronoq_server.engine.model import Instant
from cronoq_server.engine.mutations import Output, RecoveredChunk, StoredTask
from cronoq_server.stores import sqlite_reads as reads
from cronoq_server.stores.base import (
    Batch,
    Capabilities,
    Fenced,
    FinishedPage,
    FinishedQuery,
    Leadership,
    Rejected,
    TimeBase,
    Unusable,
)
from cronoq_server.stores.codec import encode_change, id_spans, quarantined, signed, unsigned
from cronoq_server.stores.output_cache import CACHE_BYTES, OutputCache
from cronoq_server.stores.recovery import Parents, ended_within
from cronoq_server.stores.sqlite_file import (
    SqliteSettings,
    connect,
    connect_reader,
    schema_version,
)
from cronoq_server.stores.sqlite_lane import Lane, transaction
from cronoq_server.stores.sqlite_lease import (
    LeaseClock,
    LeaseRow,
    Process,
    SystemLeaseClock,
    Watch,
    this_process,
)
from cronoq_server.stores.sqlite_rows import IDS, id_list, write_batch

log = logging.getLogger(__name__)

QUARANTINED = {"action": "row_quarantined"}

T = TypeVar("T")


class SqliteLeadership:
    """One term on a file."""

    def __init__(self, store: SqliteStore, row: tuple[int, int, int | None], holder: str) -> None:
        self.epoch, self.position, highest = row
        self.high_water = 0 if highest is None else unsigned(highest)
        self.holder = holder
        self.top = self.high_water
        self.renewed_at: Instant = 0
        self._store = store

    async def check(self) -> None:
        """See `Leadership.check`; renews the lease when it has become old."""
        await self._store.check(self)

    def assert_holds(self, db: sqlite3.Connection) -> None:
        """Confirms, within a transaction, that the term still holds.

        Raises:
            Fenced: It does not.
        """
        epoch, holder = db.execute("SELECT epoch, holder FROM cronoq_leader").fetchone()
        if (epoch, holder) != (self.epoch, self.holder):
            raise Fenced(f"epoch {self.epoch} is over, {epoch} is the last one")


class SqliteStore:
    """A handle on a file."""

    def __init__(
        self,
        settings: SqliteSettings,
        *,
        clock: LeaseClock | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Makes a handle; the file is opened when it is first needed.

        Args:
            settings: Where the file lies and how it behaves.
            clock: What leases are measured by; the machine's clocks by default.
            cache_bytes: Outputs kept in memory beside the file, in bytes.
        """
        self._settings = settings
        self._clock = clock or SystemLeaseClock()
        self._writer = Lane("cronoq-sqlite-writer", partial(connect, settings))
        self._reader = Lane("cronoq-sqlite-reader", partial(connect_reader, settings))
        self._watch = Watch(settings.lease_ttl, settings.lock_poll)
        self._cache = OutputCache(cache_bytes)
        self._base = 0

    @property
    def capabilities(self) -> Capabilities:
        """See `Store.capabilities`."""
        return Capabilities(survives_restart=True, spans_hosts=False, remembers=True)

    # --- the lease -------------------------------------------------------------------------------

    async def acquire_leadership(
        self, holder: str, now: Instant, time_base: TimeBase
    ) -> Leadership | None:
        """See `Store.acquire_leadership`."""
        base = time_base.unix_nanos_at_zero
        term = await self._writer.run(lambda db: self._acquire(db, holder, now + base))
        if term is not None:
            self._base = base
            self._cache.clear()
            self._watch.forget()
        return term

    def _acquire(self, db: sqlite3.Connection, holder: str, since: Instant) -> Leadership | None:
        settings, clock = self._settings, self._clock
        seen = read_lease(db)
        if not self._watch.may_take(seen, clock.wall(), clock.mono()):
            return None
        with transaction(db):
            if read_lease(db) != seen:
                return None  # between the look and the lock somebody else was faster
            schema_version(db)
            _identify(db, settings.shard)
            row = db.execute(
                "UPDATE cronoq_leader SET epoch = epoch + 1, holder = ?, expires_at = ?, "
                "renewals = renewals + 1, process = ?, since = ? WHERE one = 1 "
                "RETURNING epoch, position, high_water",
                (holder, clock.wall() + settings.lease_ttl, _process_text(), since),
            ).fetchone()
        term = SqliteLeadership(self, row, holder)
        term.renewed_at = clock.mono()
        return term

    async def check(self, term: SqliteLeadership) -> None:
        """See `Leadership.check`."""
        if self._clock.mono() - term.renewed_at < self._settings.lease_renew:
            await self._reader.run(term.assert_holds)
        else:
            await self._writer.run(lambda db: self._renew(db, term))

    def _renew(self, db: sqlite3.Connection, term: SqliteLeadership) -> None:
        clock = self._clock
        began = clock.mono()
        with transaction(db):
            self._fence(db, term)
        term.renewed_at = began

    def _fence(self, db: sqlite3.Connection, term: SqliteLeadership) -> None:
        """First statement of a transaction that is no commit.

        Raises:
            Fenced: The term is over.
        """
        found = db.execute(
            "UPDATE cronoq_leader SET expires_at = ?, renewals = renewals + 1 "
            "WHERE one = 1 AND epoch = ? AND holder = ?",
            (self._clock.wall() + self._settings.lease_ttl, term.epoch, term.holder),
        )
        if not found.rowcount:
            term.assert_holds(db)

    async def release_leadership(self, leadership: Leadership) -> None:
        """See `Store.release_leadership`."""
        term = _term(leadership)

        def release(db: sqlite3.Connection) -> None:
            with transaction(db):
                db.execute(
                    "UPDATE cronoq_leader SET holder = NULL, expires_at = 0, process = NULL "
                    "WHERE one = 1 AND epoch = ? AND holder = ?",
                    (term.epoch, term.holder),
                )

        await self._writer.run(release)

    # --- commits ---------------------------------------------------------------------------------

    async def commit(self, leadership: Leadership, batch: Batch) -> None:
        """See `Store.commit`."""
        term = _term(leadership)
        gone = await self._writer.run(lambda db: self._commit(db, term, batch))
        if gone is None:  # it was there already, and what it took away is not told again
            self._cache.clear()
            return
        self._cache.put(batch.outputs.values())
        for task_id in gone:
            self._cache.drop(task_id)

    def _commit(
        self, db: sqlite3.Connection, term: SqliteLeadership, batch: Batch
    ) -> list[int] | None:
        began = self._clock.mono()
        top = max(term.top, batch.high_water)
        try:
            with transaction(db):
                if not self._claim(db, term, batch.position, top):
                    return None
                gone = write_batch(db, batch, self._base)
        except sqlite3.IntegrityError as error:
            raise _rejected(db, batch, error) from error
        except (sqlite3.DataError, OverflowError, UnicodeError) as error:
            raise Rejected(f"a value does not fit: {error}", "Batch") from error
        term.top = top
        term.renewed_at = began
        return gone

    def _claim(
        self, db: sqlite3.Connection, term: SqliteLeadership, position: int, top: int
    ) -> bool:
        """First statement of a commit; returns whether the batch still has to be written.

        Raises:
            Fenced: The term is over.
            Rejected: Batches before this one are missing.
        """
        found = db.execute(
            "UPDATE cronoq_leader SET position = ?, high_water = ?, expires_at = ?, "
            "renewals = renewals + 1 WHERE one = 1 AND epoch = ? AND holder = ? AND position = ?",
            (
                position,
                signed(top) if top else None,
                self._clock.wall() + self._settings.lease_ttl,
                term.epoch,
                term.holder,
                position - 1,
            ),
        )
        if found.rowcount:
            return True
        term.assert_holds(db)
        (last,) = db.execute("SELECT position FROM cronoq_leader").fetchone()
        if last < position:
            raise Rejected(f"batch {position} does not follow {last}", "Batch")
        return False

    # --- recovery --------------------------------------------------------------------------------

    async def recover(
        self, leadership: Leadership, horizon: Instant
    ) -> AsyncIterator[RecoveredChunk]:
        """See `Store.recover`."""
        term, base = _term(leadership), self._base
        chunk, broken_names = await self._read(term, lambda db: reads.settings(db, base))
        await self._set_aside_schedules(term, broken_names)
        yield chunk
        parents = Parents()
        async for live in self._live(term):
            parents.note(live)
            yield RecoveredChunk(live=tuple(live))
        for query in parents.queries():
            page = await self._read(term, partial(reads.named, query=query, base=base))
            yield RecoveredChunk(parents=tuple(page.tasks))
        rest: tuple[int, int] | None = ((1 << 63) - 1, (1 << 63) - 1)
        while rest is not None:
            ended, rest = await self._read(term, partial(reads.ends_before, place=rest, base=base))
            finished, goes_on = ended_within(ended, horizon)
            yield RecoveredChunk(finished=finished)
            if not goes_on:
                return

    async def _live(self, term: SqliteLeadership) -> AsyncIterator[list[StoredTask]]:
        base = self._base
        orphans = await self._read(term, reads.orphans)
        await self._set_aside(term, orphans)
        for span in id_spans(0, newest_first=False):
            low: int | None = span[0]
            while low is not None:
                tasks, broken, low = await self._read(
                    term, partial(reads.live, low=low, high=span[1], base=base)
                )
                await self._set_aside(term, broken)
                yield tasks

    async def _read(self, term: SqliteLeadership, work: Callable[[sqlite3.Connection], T]) -> T:
        """Reads under a term that holds."""

        def checked(db: sqlite3.Connection) -> T:
            with transaction(db, "DEFERRED"):
                term.assert_holds(db)
                return work(db)

        return await self._reader.run(checked)

    async def _set_aside(self, term: SqliteLeadership, ids: list[int]) -> None:
        """Quarantines live tasks that cannot be read: they end as failed."""
        if not ids:
            return
        log.error("tasks that cannot be read were set aside: %s", ids, extra=QUARANTINED)

        def end(db: sqlite3.Connection) -> None:
            at = self._clock.wall()
            with transaction(db):
                self._fence(db, term)
                (position,) = db.execute("SELECT position FROM cronoq_leader").fetchone()
                db.execute(
                    f"DELETE FROM cronoq_live WHERE id IN {IDS}", (id_list(map(signed, ids)),)
                )
                for task_id in ids:
                    change = quarantined(task_id, at)
                    db.execute(
                        "INSERT OR REPLACE INTO cronoq_ends (id, position, at, status, change) "
                        "VALUES (?, ?, ?, ?, ?)",
                        # It belongs to the next batch: nobody can have read beyond that yet.
                        (signed(task_id), position + 1, at, change.status, encode_change(change)),
                    )

        await self._writer.run(end)

    async def _set_aside_schedules(self, term: SqliteLeadership, names: list[str]) -> None:
        if not names:
            return
        log.error("schedules that cannot be read were set aside: %s", names, extra=QUARANTINED)

        def mark(db: sqlite3.Connection) -> None:
            with transaction(db):
                self._fence(db, term)
                for name in names:
                    db.execute(
                        "UPDATE cronoq_schedules SET quarantined = ? WHERE name = ?",
                        ("it cannot be read", name),
                    )

        await self._writer.run(mark)

    # --- look-ups --------------------------------------------------------------------------------

    async def load_outputs(self, ids: Sequence[int]) -> dict[int, Output]:
        """See `Store.load_outputs`."""
        found, missing = self._cache.split(ids)
        if missing:
            found |= await self._reader.run(lambda db: reads.outputs(db, missing))
        return found

    async def find_finished(self, query: FinishedQuery) -> FinishedPage:
        """See `Store.find_finished`."""
        look = reads.named if query.ids or query.keys else reads.page

        def find(db: sqlite3.Connection) -> FinishedPage:
            with transaction(db, "DEFERRED"):
                return look(db, query, self._base)

        return await self._reader.run(find)

    async def load_tasks(self, ids: Sequence[int]) -> list[StoredTask]:
        """See `Store.load_tasks`."""

        def load(db: sqlite3.Connection) -> list[StoredTask]:
            with transaction(db, "DEFERRED"):
                return reads.tasks(db, ids, self._base)

        return await self._reader.run(load)

    async def close(self) -> None:
        """See `Store.close`; a lease that was not released runs out, or dies with the process."""
        await self._reader.close()
        await self._writer.close()


def _term(leadership: Leadership) -> SqliteLeadership:
    assert isinstance(leadership, SqliteLeadership), leadership
    return leadership


def read_lease(db: sqlite3.Connection) -> LeaseRow:
    """What the leader row says about the lease."""
    epoch, holder, expires_at, renewals, process = db.execute(
        "SELECT epoch, holder, expires_at, renewals, process FROM cronoq_leader"
    ).fetchone()
    return LeaseRow(epoch, holder, expires_at, renewals, _read_process(process))


def _process_text() -> str | None:
    process = this_process()
    return None if process is None else msgspec.json.encode(process).decode()


def _read_process(text: str | None) -> Process | None:
    """The holder's process; None, which means doubt, when that cannot be read."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=Process)
    except msgspec.DecodeError:
        return None


def _identify(db: sqlite3.Connection, shard: int | None) -> None:
    """The first leader writes whose data this is; later ones compare.

    Raises:
        Unusable: It is another shard's.
    """
    db.execute("INSERT OR IGNORE INTO cronoq_identity (one, shard) VALUES (1, ?)", (shard,))
    (owner,) = db.execute("SELECT shard FROM cronoq_identity").fetchone()
    if owner != shard:
        raise Unusable(f"this store belongs to shard {owner or 'none'}, not to {shard or 'none'}")


def _rejected(db: sqlite3.Connection, batch: Batch, error: sqlite3.Error) -> Rejected:
    """What a broken constraint means, found out after nothing was written."""
    ids = [signed(row.task_id) for row in batch.inserted]
    known = db.execute(f"SELECT id FROM cronoq_tasks WHERE id IN {IDS}", (id_list(ids),)).fetchone()
    if known is not None:
        task_id = unsigned(known[0])
        return Rejected(f"task {task_id} is there already", "TaskInserted", task_id, "task_id")
    return Rejected(f"a constraint of the file forbids it: {error}", "Batch")
