"""For tests: a clock moved by hand, a store that fails on purpose, values with valid defaults.

Shipped, so that authors of other stores can run `store_suite` against theirs. No module of the
server imports it.
"""
