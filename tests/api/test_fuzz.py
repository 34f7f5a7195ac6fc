"""Requests that mean little or nothing, a short form of the campaign of the same name."""

from __future__ import annotations

import logging

import pytest

from tests.api.conftest import ANY_PORT, serving
from tests.campaigns.fuzz import CONFIG, Report, attack_calls, attack_connections

CASES = 2000


@pytest.mark.parametrize("seed", [1])
async def test_nonsense_is_answered_and_spoils_nothing(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """No call ends as a defect, nothing is logged as one, and sense is understood beside it."""
    text = CONFIG[CONFIG.index("[limits]") :]
    assert ANY_PORT.startswith("[server]")
    async with serving(text) as edge:
        address, report = str(edge.server.address), Report()
        await attack_calls(address, CASES, seed, report)
        await attack_connections(address, CASES // 20, seed, report)
        assert await edge.submit(pool="quiet", key="sense")
    assert report.faults == []
    assert sum(report.ends.values()) == CASES + CASES // 20
    assert report.ends["OK"] > CASES // 20, "the requests are all refused before they matter"
    bad = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert bad == []


def test_defects_are_faults() -> None:
    """A call that ends as a defect of the server fails the campaign."""
    import grpc

    from tests.campaigns._fuzz_requests import METHODS

    report = Report()
    report.count(METHODS[0], grpc.StatusCode.UNKNOWN, b"x", "oops")
    report.count(METHODS[0], grpc.StatusCode.INVALID_ARGUMENT, b"x", "no")
    assert len(report.faults) == 1
    assert "oops" in report.faults[0]
