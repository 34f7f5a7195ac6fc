"""The benchmark of the stores runs, and says what those who compare figures look for."""

from __future__ import annotations

import pytest

from tests.bench.test_benchmarks import bench, result_of


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_store_is_measured_alone(store: str) -> None:
    """Lives by size of batch, recovery, and a series with pruning."""
    options = ("--batches", "100,500", "--lives", "1000", "--pending", "1000", "--churn", "10000")
    result = result_of(bench("store", "--store", store, "--retained", "2000", *options))

    assert [row["batch"] for row in result["lives"]] == [100, 500]
    assert all(row["lives_per_s"] > 0 for row in (*result["lives"], *result["churn"]))
    assert result["recovery"]["live"] >= 1000
