"""What is measured of a long run: memory and open files of processes, how long tasks take.

Nothing here knows servers or faults; series go in and figures come out.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from tests.bench.environment import quantile

WARM_UP = 0.25
"""Share of a run after which a process has what it needs."""
GROWTH_SHARE = 0.05
GROWTH_MIB = 4.0
"""Growth below either is what an allocator does."""
FILES_MORE = 8
"""A server has more connections to its database while it leads."""
WINDOW_S = 2.0
CALM_S = 8.0
SLOWER = 2.0
"""So much slower than before a fault still counts as recovered."""
SOON_S = 0.5
"""So does whatever is faster than this."""
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class Sample(msgspec.Struct, frozen=True):
    """One look at one process: when (seconds since the begin), memory, open files, which one."""

    at_s: float
    mib: float
    files: int
    pid: int = 0


class Took(msgspec.Struct, frozen=True, gc=False):
    """One task, from its submit to its end: when it began and for how long, seconds."""

    at_s: float
    took_s: float


class Growth(msgspec.Struct, frozen=True):
    """What a process's memory and files did after it was warm.

    Attributes:
        mib: Its memory, on average.
        mib_per_hour: The slope of a line through it.
        grown_mib: That slope over the time it was looked at.
        noise_mib: Within which samples lie around that line, nineteen of twenty.
        files_before: Most open files in the first half of that time.
        files_after: Most open files in the second half.
    """

    mib: float
    mib_per_hour: float
    grown_mib: float
    noise_mib: float
    files_before: int
    files_after: int

    @property
    def is_flat(self) -> bool:
        """Whether memory stays as it is, but for noise."""
        return self.grown_mib <= max(self.noise_mib, GROWTH_MIB, GROWTH_SHARE * self.mib)

    @property
    def keeps_files(self) -> bool:
        """Whether files are closed as they are opened."""
        return self.files_after <= self.files_before + FILES_MORE


def look(pid: int, at_s: float) -> Sample | None:
    """Looks at a process; None if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        files = len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Sample(round(at_s, 1), round(pages * PAGE_MIB, 2), files, pid)


def growth(samples: Sequence[Sample]) -> Growth:
    """What the samples of one process say, without those of its warm-up.

    Raises:
        ValueError: There are fewer than ten, or they are of several processes.
    """
    if len({sample.pid for sample in samples}) > 1:
        raise ValueError("a process that was started anew hides what the one before had taken")
    warm = samples[int(len(samples) * WARM_UP) :]
    if len(warm) < 10:
        raise ValueError(f"{len(warm)} samples are too few for a slope")
    times = [sample.at_s for sample in warm]
    middle_s, middle_mib = fmean(times), fmean(sample.mib for sample in warm)
    spread = sum((at - middle_s) ** 2 for at in times)
    slope = sum((s.at_s - middle_s) * (s.mib - middle_mib) for s in warm) / spread
    around = [abs(s.mib - middle_mib - slope * (s.at_s - middle_s)) for s in warm]
    half = len(warm) // 2
    return Growth(
        mib=round(middle_mib, 1),
        mib_per_hour=round(slope * 3600, 2),
        grown_mib=round(slope * (times[-1] - times[0]), 2),
        noise_mib=round(quantile(sorted(around), 0.95), 2),
        files_before=max(sample.files for sample in warm[:half]),
        files_after=max(sample.files for sample in warm[half:]),
    )


def began_within(tasks: Sequence[Took], since_s: float, until_s: float) -> Sequence[Took]:
    """Those that began in this time, of tasks in the order of their begins."""
    first = bisect_left(tasks, since_s, key=lambda task: task.at_s)
    return tasks[first : bisect_left(tasks, until_s, lo=first, key=lambda task: task.at_s)]


def p99(tasks: Sequence[Took], since_s: float, until_s: float) -> float | None:
    """Below which 99 of 100 tasks stayed that began in this time; None if none did.

    Tasks are in the order of their begins.
    """
    took = sorted(task.took_s for task in began_within(tasks, since_s, until_s))
    return quantile(took, 0.99) if took else None


def recovered_s(
    tasks: Sequence[Took], struck_s: float, over_s: float, until_s: float
) -> float | None:
    """How long after the end of a fault tasks took as long as before it; None: they never did.

    Args:
        tasks: All of them, in the order of their begins.
        struck_s: When the fault began.
        over_s: When it was over.
        until_s: When the next one began.
    """
    before = p99(tasks, struck_s - CALM_S, struck_s)
    bound = max(SOON_S, SLOWER * (before or 0.0))
    at = over_s
    while at + WINDOW_S <= until_s:
        now = p99(tasks, at, at + WINDOW_S)
        if now is not None and now <= bound:
            return round(at - over_s, 1)
        at += WINDOW_S / 4
    return None
