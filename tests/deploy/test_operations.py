"""The commands of the operations guide do what it says, on servers that run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.conftest import serving
from tests.api.web import browsing, watching
from tests.stores.pg import Cluster, find_programs
from tools.check_text import ROOT

GUIDE = ROOT / "docs/guide/operations.md"
SOURCE = ROOT / "server/src"


def blocks(heading: str) -> list[str]:
    """The commands below a heading, in order."""
    text = GUIDE.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1]
    found = re.findall(r"```sh\n(.*?)```", re.split(r"\n##+ ", text)[0], re.DOTALL)
    assert found, heading
    return found


async def shell(commands: str, directory: Path, **environment: str) -> str:
    """Runs commands as a reader would, with the programs of this tree; returns the output."""
    programs = directory / "programs"
    programs.mkdir(exist_ok=True)
    server = programs / "cronoq-server"
    server.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cronoq_server "$@"\n')
    server.chmod(0o755)
    path = f"{programs}:{find_programs()}:{os.environ['PATH']}"
    done = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-eu", "-c", commands],
        cwd=directory,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def age(back_up: Path) -> None:
    """Makes a back-up older than the lease of the leader that is in it."""
    with contextlib.closing(sqlite3.connect(back_up, isolation_level=None)) as db:
        db.execute("UPDATE cronoq_leader SET expires_at = 1")


class Visit(NamedTuple):
    """What one run of a server gave out."""

    task_id: int
    cursor: str


async def visit(configuration: str) -> Visit:
    """Serves, submits a task, and takes the cursor of a watch."""
    async with serving(configuration) as edge, browsing(edge) as web:
        task_id = await edge.submit(kind="visit")
        async with watching(web) as watch:
            return Visit(task_id, (await watch.next()).cursor)


async def is_known(configuration: str, cursor: str, *ids: int) -> tuple[str, list[int]]:
    """What a watch with a cursor hears first, and which of these tasks are there."""
    async with serving(configuration) as edge, browsing(edge) as web:
        there = [number for number in ids if (await web.get(f"/v1/tasks/{number}")).is_success]
        async with watching(web, cursor=cursor) as watch:
            event = await watch.next()
        return event.told["error"]["reason"] if event.kind == "error" else event.kind, there


async def test_sqlite_back_up_and_restore(tmp_path: Path) -> None:
    """Backed up while it serves; restored, it knows the older task and takes no old cursor."""
    back_up, restore = blocks("A SQLite file")
    configuration = f"[store]\nkind = 'sqlite'\npath = '{tmp_path / 'queue.db'}'\n"
    async with serving(configuration) as edge:
        kept = await edge.submit(kind="kept")
        assert (await shell(back_up, tmp_path)).strip() == "ok"
    lost = await visit(configuration)
    assert await is_known(configuration, lost.cursor, kept, lost.task_id) == (
        "bookmark",
        [kept, lost.task_id],
    )
    age(tmp_path / "backup.db")
    assert "epoch 1 -> 4097" in await shell(restore, tmp_path)
    new = await visit(configuration)
    assert new.task_id > lost.task_id
    assert await is_known(configuration, lost.cursor, kept, lost.task_id, new.task_id) == (
        "cursor_unknown",
        [kept, new.task_id],
    )
    assert (await is_known(configuration, new.cursor))[0] == "bookmark"


async def test_postgres_back_up_and_restore(tmp_path: Path, cluster: Cluster) -> None:
    """The same with a dump, restored into another database."""
    back_up, restore = blocks("A PostgreSQL schema")
    original, restored = (
        cluster.url.replace("/postgres?", f"/{name}?") for name in ("original", "restored")
    )
    for name in ("original", "restored"):
        await shell(f'psql --quiet --command="CREATE DATABASE {name}" "{cluster.url}"', tmp_path)
    configuration = f"[store]\nkind = 'postgres'\nurl = '{original}'\n"
    async with serving(configuration) as edge:
        kept = await edge.submit(kind="kept")
        await shell(back_up, tmp_path, DATABASE_URL=original)
    lost = await visit(configuration)
    assert "epoch 1 -> 4097" in await shell(restore, tmp_path, RESTORED_URL=restored)
    anew = configuration.replace(original, restored)
    assert await is_known(anew, lost.cursor, kept, lost.task_id) == ("cursor_unknown", [kept])


async def test_raising_says_what_is_in_the_way(tmp_path: Path) -> None:
    """A server that leads is not robbed of its store, and nothing is changed."""
    configuration = f"[store]\nkind = 'sqlite'\npath = '{tmp_path / 'queue.db'}'\n"
    async with serving(configuration) as edge:
        with pytest.raises(AssertionError, match="nothing was changed: a leader holds this store"):
            await shell("cronoq-server raise-epoch --store sqlite:queue.db", tmp_path)
        await edge.submit(kind="goes_on")


def test_actions_of_the_guide_are_those_of_the_code() -> None:
    """An operator may alert on each of them."""
    table = GUIDE.read_text(encoding="utf-8").split("\n## The log\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    code = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    written = set(re.findall(r'"action": "(\w+)"', code))
    assert told - written == set()
    assert len(told) > 20
