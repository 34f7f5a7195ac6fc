"""Decides what holds for every test of the repository: repeatable property tests.

Warnings are errors, tests have no retries and no time limits of their own; see the root pyproject.
"""

from hypothesis import HealthCheck, settings

# The same examples in every run: a failure is found again by running the test again.
settings.register_profile(
    "cronoq",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("cronoq")
