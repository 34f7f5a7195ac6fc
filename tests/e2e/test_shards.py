"""Three shards under load lose leaders, replicas, sight of each other, and keep every promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from cronoq_conformance.languages import read_languages

from tests.e2e.sharded.cluster import POOLS, store_lines
from tests.e2e.sharded.faults import FAULTS
from tests.e2e.sharded.gateway import TABLES
from tests.e2e.sharded.play import Plot, play

QUICK = "lock_poll_s = 0.1\nlease_ttl_s = 1\nlease_renew_s = 0.3\n"

SHORT = Plot(
    rounds=1,
    quiet_s=1.0,
    between_s=0.5,
    per_s=20.0,
    outage_s=0.0,
    hold_s=1.0,
    delay_s=12.0,
    peer_timeout_s=8.0,
    patience_s=240.0,
    deadline_s=200.0,
    front_deadline_s=200.0,
    on_time=False,
)
"""Each trouble once, until everybody has noticed. Peers are patient: who is cut off is missing, but
not who has to wait for a busy machine."""


@pytest.mark.skipif(not TABLES[0].exists(), reason="ways between shards are told apart by /proc")
async def test_shards_in_trouble_lose_nothing_and_hurt_no_others(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, calls at healthy shards don't fail, answers name what lacks."""
    (python,) = [one.run for one in read_languages() if one.name == "python"]
    commands = dict.fromkeys(POOLS, python)
    report = await play(tmp_path, store_lines(tmp_path, None, QUICK), commands, SHORT, seed=1)
    assert len(report.record.troubles) == len(FAULTS)
    assert report.acknowledged > 0
    assert report.views > 0
