"""The benchmarks run, and say what those who compare figures look for.

The figures are not judged: a machine that runs tests is no place to measure on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench.__main__ import BENCHES
from tests.bench.page import PAGE, render

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"bench", "at", "commit", "python", "cpu_count", "load_average"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark with its output in a pipe."""
    command = [sys.executable, "-m", "tests.bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def result_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON that a successful run printed."""
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    assert result.keys() >= HEAD
    return result


def test_the_engine_is_measured_with_a_short_and_a_long_backlog() -> None:
    """One row for each backlog and step size."""
    result = result_of(bench("engine", "--pending", "1000,5000", "--steps", "100", "--rounds", "1"))

    assert [(row["pending"], row["step"]) for row in result["rows"]] == [(1000, 100), (5000, 100)]
    for row in result["rows"]:
        assert row["lives_per_s"] > 0
        assert 0 < row["p99_step_ms"] <= row["worst_step_ms"]
    assert result["long_to_short"].keys() == {"100"}
    assert "bytes_per_pending_task_beyond_payload" in result


def test_the_gateway_is_measured_one_by_one_and_in_batches() -> None:
    """Every figure that a floor is set for is there."""
    sizes = ("--tasks", "100", "--rounds", "1", "--connections", "4", "--batch", "10")
    result = result_of(bench("http", *sizes))

    figures = ("single_requests_per_s", "single_p99_ms", "batch_tasks_per_s", "batch_p99_ms")
    assert all(result[name] > 0 for name in figures)


def test_the_whole_system_is_measured_as_json_when_nobody_looks() -> None:
    """Every figure that a floor is set for is there."""
    result = result_of(bench("e2e", "--tasks", "500", "--rounds", "1", "--idle-tasks", "3"))

    figures = (
        "tasks_per_s",
        "submit_p50_ms",
        "submit_p99_ms",
        "start_latency_p50_ms",
        "start_latency_p99_ms",
        "rss_mb",
        "submits_per_s",
    )
    assert all(result[name] > 0 for name in figures)
    assert result["store"] == "memory"


def test_limits_are_measured_beside_the_same_without_them() -> None:
    """Both rates, and what each task costs the server."""
    result = result_of(bench("e2e", "--limited", "--tasks", "500", "--rounds", "1"))

    names = ("tasks_per_s", "limited_tasks_per_s", "limited_to_plain")
    assert all(result[name] > 0 for name in names)
    assert result["limited_server_us_per_task"] >= 0


def test_what_a_task_costs_is_measured_as_each_thing_grows() -> None:
    """What waits, who works, what recurs."""
    result = result_of(bench("flat", "--rounds", "1", "--waiting-max", "1000"))

    assert {row["grows"] for row in result["rows"]} == {"waiting", "workers", "schedules"}
    assert all(row["us_per_life"] > 0 for row in result["rows"])


def test_idle_workers_are_connected_and_counted() -> None:
    """More of them than connect at once."""
    result = result_of(bench("idle", "--workers", "60", "--seconds", "0.2"))

    assert result["workers"] == 60
    assert result["connected_in_s"] > 0
    assert result["server_core_percent"] >= 0


def test_shards_are_measured_alone_and_together() -> None:
    """Throughput of one and two servers, reads of all shards, and what follows for more."""
    sizes = ("--tasks", "400", "--rounds", "1", "--calls", "2", "--shards-max", "2")
    result = result_of(bench("shards", *sizes))

    for ways in result["throughput"].values():
        assert [way["tasks_per_s"] > 0 for way in ways.values()] == [True] * 3
    assert {(row["read"], row["shards"]) for row in result["reads"]} == {
        (read, shards)
        for read in ("get by key", "snapshot", "list, newest first")
        for shards in (1, 2)
    }
    assert [row["shards"] for row in result["model"]] == [1, 2]


def test_an_unknown_benchmark_is_refused_with_the_names_of_those_there_are() -> None:
    """A slip of the pen costs one look."""
    run = bench("engines")

    assert run.returncode == 2
    assert ", ".join(BENCHES) in run.stdout


def test_the_page_shows_the_results_that_lie_beside_it() -> None:
    """Whoever saves a result also writes the page."""
    page = PAGE.read_text()

    assert page == render(page)
