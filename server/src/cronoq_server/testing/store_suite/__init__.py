"""What every store must pass: the store contract as short tests, grouped by clause.

Bind it in a test module of your own, with one fixture and asyncio's auto mode:

    from cronoq_server.testing.store_suite import *

    @pytest.fixture
    def place() -> Place: ...

A `Place` is where stores of one test persist to, fresh for each test; every `open` gives one more
replica's handle on it. No test here names a store: what a store can do, it says itself
(`capabilities`).

To have pytest explain the assertions of the suite, too, say this first in a `conftest.py`:

    pytest.register_assert_rewrite("cronoq_server.testing.store_suite")
"""

from __future__ import annotations

from cronoq_server.testing.store_suite.commits import (
    TestAtomicity,
    TestMergedChanges,
    TestPositions,
    TestRefusals,
)
from cronoq_server.testing.store_suite.leadership import TestFencing, TestHolders, TestLeadership
from cronoq_server.testing.store_suite.lookups import TestFindFinished, TestLoadTasks, TestOutputs
from cronoq_server.testing.store_suite.place import Place as Place
from cronoq_server.testing.store_suite.place import acquire as acquire
from cronoq_server.testing.store_suite.place import all_pages as all_pages
from cronoq_server.testing.store_suite.place import finished as finished
from cronoq_server.testing.store_suite.place import ids as ids
from cronoq_server.testing.store_suite.place import lead as lead
from cronoq_server.testing.store_suite.place import opened as opened
from cronoq_server.testing.store_suite.place import recovered as recovered
from cronoq_server.testing.store_suite.place import usurp as usurp
from cronoq_server.testing.store_suite.place import written as written
from cronoq_server.testing.store_suite.pruning import TestPruning
from cronoq_server.testing.store_suite.recovery import TestRecovery, TestRestart, TestSettings
from cronoq_server.testing.store_suite.values import (
    TestBothHalvesOfIds,
    TestIds,
    TestText,
    TestTimeBase,
)

__all__ = [
    "TestAtomicity",
    "TestBothHalvesOfIds",
    "TestFencing",
    "TestFindFinished",
    "TestHolders",
    "TestIds",
    "TestLeadership",
    "TestLoadTasks",
    "TestMergedChanges",
    "TestOutputs",
    "TestPositions",
    "TestPruning",
    "TestRecovery",
    "TestRefusals",
    "TestRestart",
    "TestSettings",
    "TestText",
    "TestTimeBase",
]
