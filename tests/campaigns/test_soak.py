"""The campaign of load and faults for long: a short form of it, and how it judges."""

from __future__ import annotations

import math
import os
import re

import pytest

from tests.campaigns import soak
from tests.campaigns._soak_measure import Sample, Took, growth, look, p99, recovered_s


def samples(mib_per_hour: float, *, swing: float = 1.0, files: int = 0) -> list[Sample]:
    """Half an hour of looks at a process of 100 MiB, which swings and grows by so much."""
    return [
        Sample(at, 100 + swing * math.sin(at) + mib_per_hour * at / 3600, 20 + files * at // 1800)
        for at in range(0, 1800, 5)
    ]


@pytest.mark.parametrize("mib_per_hour", [0, 2, -40])
def test_memory_that_swings_or_falls_is_flat(mib_per_hour: float) -> None:
    """What an allocator does for its own reasons is no leak."""
    assert growth(samples(mib_per_hour)).is_flat


def test_memory_that_grows_is_not_flat() -> None:
    """A slope that leads out of the noise is one, and it is told how steep."""
    seen = growth(samples(40))
    assert not seen.is_flat
    assert seen.mib_per_hour == pytest.approx(40, rel=0.05)


def test_files_that_are_not_closed_are_seen() -> None:
    """Open files that rise with time are no noise."""
    assert growth(samples(0, files=5)).keeps_files
    assert not growth(samples(0, files=40)).keeps_files


def test_a_slope_needs_samples() -> None:
    """From a few looks nothing can be said."""
    with pytest.raises(ValueError, match="9 samples"):
        growth(samples(0)[:12])


def test_memory_of_two_processes_is_no_slope() -> None:
    """What the first had taken is gone with it, and would look like a flat line."""
    with pytest.raises(ValueError, match="started anew"):
        growth([*samples(40), Sample(1801, 90, 20, pid=2)])


def test_a_look_at_a_process_sees_it_or_its_absence() -> None:
    """This process has memory and files; one that is gone has none."""
    seen = look(os.getpid(), 1.0)
    assert seen is not None
    assert seen.mib > 1
    assert seen.files > 2
    assert look(2**22 + 1, 1.0) is None


def test_recovery_is_told_from_the_end_of_the_fault() -> None:
    """Slow tasks after a fault count until a window is as fast as before it, or none ever is."""
    quick = [Took(at / 10, 0.3) for at in range(1000)]
    mixed = sorted(
        [*quick, *(Took(40 + at / 10, 3.0) for at in range(60))], key=lambda task: task.at_s
    )
    assert p99(quick, 30, 40) == 0.3
    assert recovered_s(mixed, 40, 42, 60) == 4.0
    assert recovered_s(quick, 40, 42, 60) == 0.0
    assert recovered_s(mixed, 40, 42, 45) is None


def test_what_did_not_stay_as_it_was_is_named() -> None:
    """A verdict says who has grown and after which fault tasks stayed slow."""
    growths = {"server0": growth(samples(40, files=40)), "go": growth(samples(0))}
    struck = {"fault": "leader-killed", "at_s": 20.0, "next_s": 14.0, "load_average": 3.0}
    recoveries = [struck | {"recovered_s": after} for after in (None, 12.5, 1.5)]
    grown, files, never, late = soak.judged(growths, recoveries)
    assert grown.startswith("server0 has grown by")
    assert files.startswith("server0 has")
    assert never.endswith(": not recovered within 14.0 s, load average 3.0")
    assert late.endswith(": recovered after 12.5 s, load average 3.0")


def test_nothing_is_stuck_after_a_short_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Load, faults and one language's worker for a few seconds: every task comes to its end."""
    arguments = ["--short", "--minutes", "0.2", "--every", "5", "--rate", "20"]
    assert soak.main([*arguments, "--lang", "python"]) == 0
    assert re.search(r"^ok: [1-9]\d* tasks, [1-9] faults$", capsys.readouterr().out, re.MULTILINE)
