"""Every fault that a play knows, briefly: impatient servers, a strike or two each.

The long form is `./justw campaign failover`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.disk import NoSmallDisk
from tests.e2e.faults import FAULTS, Fault
from tests.e2e.place import SHORT
from tests.e2e.play import Plot, play
from tests.stores.pg import Cluster, running_cluster

ONCE = Plot(1, waits=SHORT, between=100)
IN_TURN = Plot(3, submits=1000, waits=SHORT, between=100)

CASES = [
    pytest.param(store, fault, id=f"{fault.name}-{store}")
    for store in ("sqlite", "postgres")
    for fault in FAULTS
    if store in fault.stores
]


@pytest.fixture(scope="module")
def database() -> Iterator[Cluster]:
    """A database server that all plays of this file take turns with."""
    with running_cluster() as cluster:
        yield cluster


@pytest.mark.regression("R1", "R3", "R14")
@pytest.mark.parametrize(("store", "fault"), CASES)
async def test_nothing_that_was_acknowledged_is_lost_or_done_twice(
    store: str, fault: Fault, tmp_path: Path, database: Cluster
) -> None:
    """Whatever happens under load: every promise is kept, and the load goes on."""
    plot = IN_TURN if fault.submits else ONCE
    try:
        report = await play(fault, store, tmp_path, plot, random.Random(1), cluster=database)
    except NoSmallDisk as reason:
        pytest.skip(str(reason))
    assert len(report.silences) == plot.times
    assert report.tasks >= plot.submits
