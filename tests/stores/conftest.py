"""The exported suite's assertions explain themselves like those of any test; and one server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

pytest.register_assert_rewrite("cronoq_server.testing.store_suite", "tests.stores.durable_suite")

from tests.stores.pg import Cluster, running_cluster  # noqa: E402 (after the line above)
from tests.stores.pg_place import PostgresPlace  # noqa: E402


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """One server for all tests; each has a schema of its own."""
    with running_cluster() as made:
        yield made


@pytest.fixture
async def postgres(cluster: Cluster) -> AsyncIterator[PostgresPlace]:
    """A fresh schema for each test."""
    made = PostgresPlace(cluster)
    yield made
    await made.close()
    await made.drop()
