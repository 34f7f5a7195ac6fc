"""The PostgreSQL store keeps the contract of the stores, on a real server."""

from __future__ import annotations

import pytest

from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from tests.stores.durable_suite import *  # noqa: F403
from tests.stores.pg_place import PostgresPlace


@pytest.fixture
def place(postgres: PostgresPlace) -> PostgresPlace:
    """A fresh schema."""
    return postgres
