"""Tables come to this build's form by numbered steps, once, and never from a newer form."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path

import pytest

from cronoq_server.stores.base import Unusable
from cronoq_server.stores.migrations import pending, steps
from cronoq_server.stores.sqlite import SqliteStore
from cronoq_server.stores.sqlite_file import SqliteSettings, connect, statements
from cronoq_server.testing.builders import batch, inserted
from cronoq_server.testing.store_suite import acquire, lead

DIALECTS = ["sqlite", "postgres"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_steps_are_numbered_without_gaps(dialect: str) -> None:
    """And each has something to do."""
    found = steps(dialect)
    assert [step.version for step in found] == list(range(1, len(found) + 1))
    assert all(step.statements.strip() for step in found)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_only_what_is_missing_is_applied(dialect: str) -> None:
    """All of it to nothing, nothing to this build's own form."""
    known = steps(dialect)
    assert pending(dialect, 0) == known
    assert pending(dialect, len(known)) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_newer_form_is_refused_by_its_number(dialect: str) -> None:
    """A guess could destroy what a newer build wrote."""
    newer = len(steps(dialect)) + 1
    with pytest.raises(Unusable, match=f"version {newer}.*newer build"):
        pending(dialect, newer)


ADDS = re.compile(
    r"CREATE (UNIQUE )?(TABLE|INDEX) |ALTER TABLE \w+ (ADD COLUMN|ALTER COLUMN \w+ SET STORAGE) "
)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_later_steps_only_add(dialect: str) -> None:
    """A leader of the version before works on meanwhile."""
    for step in steps(dialect)[1:]:
        bare = re.sub(r"--.*", "", step.statements)
        for statement in filter(None, map(str.strip, bare.split(";"))):
            assert ADDS.match(statement), statement


def test_a_script_is_cut_at_its_statements_only() -> None:
    """Not at semicolons within texts or comments; an unfinished one is an error."""
    script = "CREATE TABLE a (b TEXT DEFAULT ';'); -- one; two\nINSERT INTO a VALUES ('x;y');\n"
    assert len(statements(script)) == 2
    with pytest.raises(AssertionError):
        statements("CREATE TABLE a (")


def versions(path: Path) -> list[int]:
    """The steps that were applied to a file."""
    db = sqlite3.connect(path)
    rows = db.execute("SELECT version FROM cronoq_schema_version ORDER BY version").fetchall()
    db.close()
    return [version for (version,) in rows]


def set_version(path: Path, version: int) -> None:
    """What a newer build does."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO cronoq_schema_version (version) VALUES (?)", (version,))
    db.close()


async def test_many_openers_of_one_file_apply_each_step_once(tmp_path: Path) -> None:
    """One of them leads, the others find the tables there."""
    path = tmp_path / "cronoq.db"
    stores = [SqliteStore(SqliteSettings(str(path))) for _ in range(4)]
    terms = await asyncio.gather(*(acquire(store) for store in stores))
    assert sum(term is not None for term in terms) == 1
    assert versions(path) == [step.version for step in steps("sqlite")]
    for store in stores:
        await store.close()


async def test_a_newer_file_is_refused_at_the_door_and_before_leading(tmp_path: Path) -> None:
    """By who opens it now, and by who opened it before it became newer; a leader works on."""
    path = tmp_path / "cronoq.db"
    settings = SqliteSettings(str(path))
    leader, standby, late = (SqliteStore(settings) for _ in range(3))
    leadership = await lead(leader)
    assert await acquire(standby) is None
    set_version(path, 1000)
    await leader.commit(leadership, batch(1, inserted(1)))
    await leader.release_leadership(leadership)
    for store in (standby, late):
        with pytest.raises(Unusable, match="version 1000"):
            await acquire(store)
    for store in (leader, standby, late):
        await store.close()


def test_a_step_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither tables nor a version: the next attempt begins anew."""
    from cronoq_server.stores import sqlite_file

    broken = [steps("sqlite")[0]._replace(statements="CREATE TABLE half (x); CREATE nonsense;")]
    settings = SqliteSettings(str(tmp_path / "cronoq.db"))
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_file, "pending", lambda *_: broken)
        with pytest.raises(sqlite3.Error):
            connect(settings)
    db = connect(settings)
    assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone() == (0,)
    db.close()
