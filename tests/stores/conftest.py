"""The exported suite's assertions explain themselves like those of any test."""

import pytest

pytest.register_assert_rewrite("cronoq_server.testing.store_suite")
