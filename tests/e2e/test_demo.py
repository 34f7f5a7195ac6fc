"""The demo as people run it: on a folder of its own, and everything that can go wrong with it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from demo.counts import Counts, add_up
from demo.errors import DemoError
from demo.folder import count_here, find_files
from demo.plan import NAME_MAX, short_name
from demo.work import compare

ROOT = Path(__file__).resolve().parents[2]
LARGE_BYTES = 1 << 26
ENDLESS_BYTES = 1 << 40
"""A file of holes that nobody reads to its end: the demo is at work until it is stopped."""


def command(folder: Path, *more: str) -> list[str]:
    """The demo on a folder."""
    return [sys.executable, "-m", "demo.main", "--path", str(folder), *more]


def run_demo(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end."""
    return subprocess.run(
        command(folder, *more), cwd=ROOT, capture_output=True, text=True, check=False
    )


@contextmanager
def demo_at_work(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo with all that it starts, while its worker reads a file without end."""
    (folder / "endless").touch()
    os.truncate(folder / "endless", ENDLESS_BYTES)
    with subprocess.Popen(
        command(folder), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            assert "1 files under" in demo.stdout.readline()
            yield demo
        finally:
            if demo.poll() is None:
                demo.terminate()
                demo.communicate()


def children(demo: subprocess.Popen[str]) -> dict[str, int]:
    """The processes that the demo has started, by their module."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "ppid=,pid=,args="],
        capture_output=True,
        text=True,
        check=True,
    )
    pids = {}
    for line in listed.stdout.splitlines():
        parent, pid, *arguments = line.split()
        if int(parent) == demo.pid:
            pids[arguments[arguments.index("-m") + 1]] = int(pid)
    return pids


def test_every_file_of_a_folder_is_counted_through_a_tree_of_sums(tmp_path: Path) -> None:
    """More files than one task may depend on; texts, a binary one, and folders to pass over."""
    for index in range(99):
        (tmp_path / f"{index:02}.txt").write_text("two words\n" * index)
    (tmp_path / "no end of line").write_text("one line\nand half of another")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 16)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "ünïcode.txt").write_text("drei Wörter hier\n")
    for skipped in (".git", "node_modules", "__pycache__"):
        (tmp_path / skipped).mkdir()
        (tmp_path / skipped / "not counted").write_text("nothing")

    demo = run_demo(tmp_path)

    assert demo.returncode == 0, demo.stderr
    lines = demo.stdout.splitlines()
    table = [line.split() for line in lines]
    assert ["count_file", "102", "102", "succeeded"] in table
    assert ["add_counts", "3", "3", "succeeded"] in table
    assert ["succeed_third", "1", "3", "succeeded"] in table
    assert ["run_on", "1", "1", "cancelled"] in table
    line_count = sum(range(99)) + 2 + 1
    word_count = 2 * sum(range(99)) + 6 + 3
    assert f" {line_count:,} lines, {word_count:,} words: the same as counted here" in demo.stdout
    assert "102 files (1 binary)" in demo.stdout
    assert lines[-1] == "demo: ok 107 tasks"
    assert demo.stderr == ""


def test_a_store_that_lasts_can_be_used_again(tmp_path: Path) -> None:
    """Nothing of an earlier run is taken for this one's."""
    folder = tmp_path / "folder"
    folder.mkdir()
    store = f"sqlite:{tmp_path / 'store.sqlite3'}"
    for text in ("one", "and two"):
        (folder / "file").write_text(text)

        demo = run_demo(folder, "--store", store)

        assert demo.returncode == 0, demo.stderr
        assert f" {len(text)} bytes, 1 lines, {len(text.split())} words" in demo.stdout
        assert demo.stdout.endswith("demo: ok 4 tasks\n")


def test_a_run_that_was_cut_short_goes_on_with_nothing_lost_and_nothing_twice(
    tmp_path: Path,
) -> None:
    """The server is killed in the middle; the same command again ends what was begun."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for index in range(300):
        (folder / f"{index:03}.txt").write_text("two words\n" * index)
    for index in range(3):  # they come last, and take a while
        (folder / f"large-{index}").touch()
        os.truncate(folder / f"large-{index}", LARGE_BYTES)
    file = tmp_path / "store.sqlite3"
    store = ("--store", f"sqlite:{file}")
    with subprocess.Popen(
        command(folder, *store), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert "303 files under" in demo.stdout.readline()
        assert "tasks ended" in demo.stdout.readline()
        os.kill(children(demo)["cronoq_server"], signal.SIGKILL)
        _, said = demo.communicate()
    assert demo.returncode == 1
    assert said.endswith("demo: the tasks are safe; run it again to go on\n")
    with closing(sqlite3.connect(file)) as db:
        (unfinished,) = db.execute("SELECT count(*) FROM cronoq_live").fetchone()
    assert unfinished

    again = run_demo(folder, *store)

    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("going on with run ")
    # One per file, four sums and their sum, and the two that are watched; as often as submitted.
    assert again.stdout.endswith("demo: ok 310 tasks\n")
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT count(*) FROM cronoq_tasks").fetchone() == (310,)


def test_names_too_long_for_a_key_are_told_apart() -> None:
    """Two deep paths that end alike are two files."""
    deep = "/".join(["folder"] * 60)
    names = [short_name(f"{first}/{deep}/file") for first in ("a", "b")]

    assert short_name("short") == "short"
    assert names[0] != names[1]
    assert all(len(name.encode()) <= NAME_MAX for name in names)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Nothing is started for it."""
    demo = run_demo(tmp_path / "absent")

    assert demo.returncode == 1
    assert demo.stderr == f"demo: {tmp_path / 'absent'} is not a folder\n"


def test_a_folder_without_files_is_an_error(tmp_path: Path) -> None:
    """Counting nothing would look like success."""
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "file").touch()

    demo = run_demo(tmp_path)

    assert demo.returncode == 1
    assert demo.stderr == f"demo: {tmp_path} has no files to count\n"


def test_a_server_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    """What the server says about it is all there is to go by."""
    (tmp_path / "file").touch()

    demo = run_demo(tmp_path, "--store", "cupboard")

    assert demo.returncode == 1
    assert "demo: the server " in demo.stderr
    assert "cupboard" in demo.stderr
    assert "Traceback" not in demo.stderr


@pytest.mark.parametrize(
    ("module", "name"), [("cronoq_server", "server"), ("demo.handlers", "worker")]
)
def test_a_process_that_dies_ends_the_demo(tmp_path: Path, module: str, name: str) -> None:
    """The demo says which one it was, and stops the other."""
    with demo_at_work(tmp_path) as demo:
        pids = children(demo)
        os.kill(pids[module], signal.SIGKILL)
        _, said = demo.communicate()

    assert demo.returncode == 1
    assert f"demo: the {name} ended with exit code -9" in said
    assert_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    """Also while a handler is busy on a thread that nobody can stop."""
    with demo_at_work(tmp_path) as demo:
        pids = children(demo)
        demo.send_signal(number)
        _, said = demo.communicate()

    assert demo.returncode == 128 + number
    assert said == f"\ndemo: ended by {number.name}, everything is stopped\n"
    assert pids.keys() == {"cronoq_server", "demo.handlers"}
    assert_gone(pids)


def assert_gone(pids: dict[str, int]) -> None:
    """None of these processes is left."""
    for pid in pids.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_file_that_was_told_otherwise_is_named(tmp_path: Path) -> None:
    """A changed word is a difference even if all counts are the same."""
    for name, text in (("one", "same\n"), ("two", "before\n")):
        (tmp_path / name).write_text(text)
    files = find_files(tmp_path)
    told = [count_here(path) for path in files]
    (tmp_path / "two").write_text("beford\n")
    counted = [count_here(path) for path in files]

    with pytest.raises(DemoError, match=r"1 files differ[^\n]*\n  .*/two: counted"):
        compare(files, counted, told, add_up(told))


def test_totals_that_differ_are_an_error(tmp_path: Path) -> None:
    """Every file is right, and yet one did not come into the sum."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    files = find_files(tmp_path)
    counted = [count_here(path) for path in files]

    compare(files, counted, counted, add_up(counted))
    with pytest.raises(DemoError, match="the totals differ"):
        compare(files, counted, counted, add_up(counted[:1]))


def test_sums_do_not_depend_on_the_order() -> None:
    """Trees of any shape come to the same."""
    one, two, three = (Counts(1, 0, n, n, n, f"{2**256 - n:x}") for n in (1, 2, 3))

    assert one + (two + three) == (three + one) + two == add_up([two, one, three])
