"""The comparison with other job systems: what it does without any of them being installed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from tests.bench.peers import report
from tests.bench.peers.registry import BY_NAME, PEERS
from tests.bench.peers.run import installed
from tests.bench.peers.talking import PeerFailed

ROOT = Path(__file__).resolve().parents[2]
FIGURES = (
    "through_bulk_per_s",
    "through_single_per_s",
    "through_mixed_per_s",
    "submit_bulk_per_s",
    "submit_single_per_s",
    "drain_per_s",
    "start_idle_p50_ms",
    "start_half_load_p99_ms",
    "memory_mb",
    "cpu_s_per_1000",
)


def test_our_own_adapter_goes_through_every_part_of_a_turn() -> None:
    """Two hundred tasks at most in each part, nothing to install."""
    arguments = ("--peers", "cronoq-sqlite", "--rounds", "1", "--seconds", "0.1", "--tasks", "200")
    command = [sys.executable, "-m", "tests.bench", "peers", "--quick", *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    (found,) = json.loads(run.stdout)["peers"]
    assert "error" not in found, found
    assert all(found[name] >= 0 for name in FIGURES)
    assert found["through_bulk_per_s"] > 0


def test_a_peer_that_cannot_be_installed_is_listed_with_its_error() -> None:
    """The others are measured all the same."""

    def install() -> None:
        raise PeerFailed("there is no such thing")

    (entry,) = installed([dataclasses.replace(BY_NAME["rq"], install=install)])

    assert entry.result() == {"name": "rq", "title": "RQ", "error": "there is no such thing"}
    assert report.rows({"peers": [entry.result()]})[1:] == []


def test_every_peer_has_settings_to_choose_from_and_says_how_it_is_run() -> None:
    """What a reader needs to judge a comparison."""
    for peer in PEERS:
        assert 2 <= len({setting.text for setting in peer.settings}) <= 3
        assert peer.bulk
        assert peer.keeps
        assert peer.durable
