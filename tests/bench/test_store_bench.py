"""The benchmark of the stores runs, and says what those who compare figures look for."""

from __future__ import annotations

import pytest

from tests.bench.test_benchmarks import bench, result_of


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_is_measured_alone(store: str) -> None:
    """Lives by size of batch, and a series with pruning."""
    options = ("--batches", "100,500", "--lives", "1000", "--churn", "20000", "--minutes", "0.05")
    result = result_of(bench("store", "--store", store, *options))

    assert [row["batch"] for row in result["lives"]] == [100, 500]
    assert all(row["lives_per_s"] > 0 for row in (*result["lives"], *result["churn"]))
    assert result["churned"] == 20_000


def test_a_recovery_is_measured() -> None:
    """In a process of its own: time, processor time, memory."""
    result = result_of(bench("recovery", "--pending", "1500", "--ended", "500", "--rounds", "1"))

    (row,) = result["rounds"]
    assert row["live"] == 1500
    assert row["recovered_s"] > 0
    assert row["peak_mb"] >= row["rss_mb"] > 0
