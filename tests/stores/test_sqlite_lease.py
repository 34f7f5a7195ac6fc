"""When a lease may be taken: only by who can be sure, or has watched for long enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from cronoq_server.engine.model import MILLISECOND, SECOND
from cronoq_server.stores.sqlite_lease import (
    LeaseRow,
    Process,
    Watch,
    _started,
    is_gone,
    this_process,
)

TTL = 10 * SECOND
POLL = 500 * MILLISECOND
NOW = 1_700_000_000 * SECOND

linux_only = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux says when a process started"
)


def held(*, expires_at: int, renewals: int = 1, process: Process | None = None) -> LeaseRow:
    """A lease of somebody else."""
    return LeaseRow(1, "other", expires_at, renewals, process)


def test_a_released_lease_is_free_at_once() -> None:
    """Nobody has to be waited for."""
    assert Watch(TTL, POLL).may_take(LeaseRow(1, None, 0, 1, None), NOW, 0)


def test_a_lease_that_had_expired_before_the_first_look_is_free_at_once() -> None:
    """A restart after a long time does not wait."""
    assert Watch(TTL, POLL).may_take(held(expires_at=NOW), NOW, 0)


def test_a_lease_that_expires_while_one_watches_takes_a_whole_lease_of_silence() -> None:
    """The wall clock may have jumped: only one's own clock counts."""
    watch = Watch(TTL, POLL)
    row = held(expires_at=NOW + 1)
    assert not watch.may_take(row, NOW, 0)
    assert not watch.may_take(row, NOW + 3600 * SECOND, TTL - 1)
    assert watch.may_take(row, NOW + 3600 * SECOND, TTL)


def test_a_renewal_begins_the_silence_anew() -> None:
    """Even if it is only the count that changed."""
    watch = Watch(TTL, POLL)
    assert not watch.may_take(held(expires_at=NOW + 1), NOW, 0)
    renewed = held(expires_at=NOW + 1, renewals=2)
    assert not watch.may_take(renewed, NOW + TTL, TTL)
    assert not watch.may_take(renewed, NOW + 2 * TTL, 2 * TTL - 1)
    assert watch.may_take(renewed, NOW + 2 * TTL, 2 * TTL)


def test_silence_counts_whatever_the_wall_clock_says() -> None:
    """A lease that seems to last for years, of a holder whose clock was wrong."""
    watch = Watch(TTL, POLL)
    row = held(expires_at=NOW + 10**18)
    assert not watch.may_take(row, NOW, 0)
    assert not watch.may_take(row, NOW, TTL + POLL - 1)
    assert watch.may_take(row, NOW, TTL + POLL)


def test_a_watch_that_was_ended_sees_its_first_look_again() -> None:
    """After a term of one's own, what was seen before means nothing."""
    watch = Watch(TTL, POLL)
    assert not watch.may_take(held(expires_at=NOW + 1), NOW, 0)
    watch.forget()
    assert watch.may_take(held(expires_at=NOW + 1), NOW + 1, 1)


@linux_only
def test_the_lease_of_a_process_that_is_gone_is_free_at_once() -> None:
    """Its number is nobody's, or somebody else's who started later."""
    here = this_process()
    assert here is not None
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert is_gone(msgspec.structs.replace(here, pid=ended.pid))
    assert is_gone(msgspec.structs.replace(here, started=here.started - 1))
    row = held(expires_at=NOW + TTL, process=msgspec.structs.replace(here, pid=ended.pid))
    assert Watch(TTL, POLL).may_take(row, NOW, 0)


BROODING = """
import ctypes, os, threading
threading.Thread(target=lambda: (print("brooding", flush=True), os.read(0, 1))).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Its first thread ends, another one goes on until it is told to end."""


def as_process(pid: int) -> Process:
    """A process of this host as a lease names it."""
    here, started = this_process(), _started(pid)
    assert here is not None
    assert started is not None
    return msgspec.structs.replace(here, pid=pid, started=started)


def wait_until_defunct(pid: int) -> None:
    """Returns when the first thread of a process has ended; its parent has not asked."""
    while (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != "Z":
        os.sched_yield()


@linux_only
def test_a_process_that_has_ended_unheard_is_gone() -> None:
    """Its parent may never ask; it can write no more."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        holder = as_process(killed.pid)
        assert not is_gone(holder)
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(holder)


@linux_only
def test_a_process_whose_first_thread_has_ended_lives() -> None:
    """It looks defunct, and another thread of it may be about to write."""
    with subprocess.Popen(
        [sys.executable, "-c", BROODING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as brooding:
        assert brooding.stdout is not None
        assert brooding.stdin is not None
        brooding.stdout.readline()
        wait_until_defunct(brooding.pid)
        holder = as_process(brooding.pid)
        assert not is_gone(holder)
        brooding.stdin.close()
        os.waitid(os.P_PID, brooding.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(holder)


@linux_only
def test_any_doubt_about_a_process_means_that_it_lives() -> None:
    """It runs, or is another host's, another boot's, another namespace's, or nobody knows."""
    here = this_process()
    assert here is not None
    assert here.pid == os.getpid()
    gone = msgspec.structs.replace(here, started=here.started - 1)
    for process in (
        here,
        msgspec.structs.replace(gone, boot="another"),
        msgspec.structs.replace(gone, namespace="another"),
        None,
    ):
        assert not is_gone(process)
        assert not Watch(TTL, POLL).may_take(held(expires_at=NOW + 1, process=process), NOW, 0)
