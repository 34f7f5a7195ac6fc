"""Decides how faults between hosts are played at length, and what is told of it.

`./justw campaign hosts [--store S] [--episodes N] [--parts N] [--seed S] [--only FAULT] [--save]`
puts the database, each server, clients and workers on hosts of their own, network namespaces of
this machine. Under load it strikes with one fault after the other. What clients and workers have
seen is then held against a model of a task, the database's own notes against what a leader may
write. It needs root for the namespaces and Go for the judge; without root, relays stand in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.bench.environment import RESULTS, describe, save
from tests.campaigns import _page
from tests.campaigns._hosts_faults import FAULTS
from tests.campaigns._hosts_network import has_netem
from tests.campaigns._hosts_play import STORES, Play, lay_hosts, public_folder

RESULT = "hosts"
JUDGE = Path(__file__).parent / "history"

BROKEN = (AssertionError, TimeoutError, RuntimeError)
"""What a broken promise looks like."""


class NoGo(Exception):
    """The judge of histories cannot be built; says why."""


def build_judge(folder: Path) -> Path:
    """Builds the program that judges histories.

    Raises:
        NoGo: There is no Go, or it does not build.
    """
    if shutil.which("go") is None:
        raise NoGo("the judge of histories is written in Go: install it (1.24 or newer)")
    program = folder / "history"
    done = subprocess.run(
        ("go", "build", "-o", str(program), "."), cwd=JUDGE, capture_output=True, text=True
    )
    if done.returncode:
        raise NoGo(done.stderr)
    return program


async def play_part(
    store: str, seed: str, options: argparse.Namespace, program: Path
) -> dict[str, Any]:
    """One part and its judgement.

    Raises:
        AssertionError: A promise was broken.
    """
    with public_folder() as folder:
        async with lay_hosts(relays=options.relays) as net:
            play = Play(store, folder, seed, net)
            try:
                terms = await play.run(options.episodes, options.only or [])
                verdict = await asyncio.to_thread(explain, program, folder)
            except BROKEN:
                if options.keep:
                    shutil.copytree(
                        folder,
                        options.keep / f"{store}-{seed}",
                        ignore=lambda _, names: {"database", "history"} & set(names),
                        dirs_exist_ok=True,
                    )
                raise
            kind = "namespaces" if net.knows_packets else "relays"
    episodes = msgspec.to_builtins(play.episodes)
    return (
        {"store": store, "seed": seed, "hosts": kind, "terms": terms}
        | verdict
        | {"episodes": episodes}
    )


def explain(program: Path, folder: Path) -> dict[str, Any]:
    """Has the judge look at all that was written down.

    Raises:
        AssertionError: It finds no explanation; has what it found.
    """
    files = sorted(map(str, folder.glob("*.ndjson")))
    done = subprocess.run((str(program), *files), capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    found = json.loads(done.stdout)
    return {name: found[name] for name in ("operations", "tasks", "acknowledged")}


def keep(part: dict[str, Any], head: dict[str, Any]) -> None:
    """Adds a part to those that the page shows."""
    path = RESULTS / f"{RESULT}.json"
    parts = json.loads(path.read_text())["parts"] if path.exists() else []
    of = {name: head[name] for name in ("commit", "load_average", "at")}
    save(head | {"parts": [*parts, of | part]}, RESULT)


def read(arguments: list[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="./justw campaign hosts", description=__doc__)
    parser.add_argument("--store", choices=STORES, default="postgres")
    parser.add_argument("--episodes", type=int, default=20, help="faults of each part")
    parser.add_argument("--parts", type=int, default=1, help="sets of hosts, one after another")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first part; decides the moments"
    )
    parser.add_argument("--only", choices=[fault.name for fault in FAULTS], action="append")
    parser.add_argument("--relays", action="store_true", help="do without namespaces")
    parser.add_argument("--keep", type=Path, help="where to put what a broken promise was seen by")
    parser.add_argument("--save", action="store_true", help="keep the figures for the page")
    parser.add_argument("--table", action="store_true", help="only write the tables of the page")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Plays what was asked for; 1 if a promise was broken, 2 if nothing could be played."""
    options = read(arguments)
    if options.table:
        _page.write()
        return 0
    with tempfile.TemporaryDirectory() as name:
        try:
            program = build_judge(Path(name))
        except NoGo as reason:
            print(reason, file=sys.stderr)
            return 2
        head = describe("faults-across-hosts")
        if not options.relays and not has_netem():
            print("this kernel has no netem; a wire spoils packets in its place", flush=True)
        held = sum(
            show_part(str(options.seed + number), options, program, head)
            for number in range(options.parts)
        )
    is_ok = held == options.parts
    print(f"{'ok' if is_ok else 'BROKEN'}: {held} of {options.parts} parts held")
    return 0 if is_ok else 1


def show_part(seed: str, options: argparse.Namespace, program: Path, head: dict[str, Any]) -> bool:
    """Plays a part and tells what came of it; whether all promises held."""
    began = time.monotonic()
    try:
        part = asyncio.run(play_part(options.store, seed, options, program))
    except BROKEN as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        print(f"BROKEN: seed {seed}: {type(error).__name__} {error}\n{notes}", flush=True)
        return False
    took_s = round(time.monotonic() - began)
    shown = {name: value for name, value in part.items() if name != "episodes"}
    print({**shown, "episodes": len(part["episodes"]), "took_s": took_s}, flush=True)
    if options.save:
        keep(part, head)
    return True
