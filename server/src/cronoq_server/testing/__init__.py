"""For tests: a clock moved by hand, a store that fails on purpose, values with valid defaults.

Shipped, so that users can move the time of a `Scheduler` in tests of their own, and authors of
other stores can run `store_suite` against theirs. No module of the server imports it.
"""

from cronoq_server.testing.faults import Fault, FaultyStore, ManualClock, settle

__all__ = ["Fault", "FaultyStore", "ManualClock", "settle"]
