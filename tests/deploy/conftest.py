"""The throw-away PostgreSQL of the stores' tests."""

from tests.stores.conftest import cluster as cluster
