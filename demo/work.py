"""What the demo does as a client: submits the plan, follows it, and checks what came out.

Nothing is taken on trust: every task must have ended as planned, and the sum at the top of the
tree must be the one that counting here gives.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cronoq
from cronoq import TaskStatus
from demo.counts import Counts, add_up
from demo.errors import DemoError
from demo.folder import count_here
from demo.handlers import FAILURES
from demo.plan import Plan, folder_tag
from demo.progress import Progress

SUMS_PER_BATCH = 50
"""A batch may have 5000 dependencies, a sum has up to 100."""
LOOK_INTERVAL_S = 0.02
SHOWN_MAX = 5
UNFINISHED = tuple(status for status in TaskStatus if status < TaskStatus.SUCCEEDED)
LEADER_LOST = "leader_lost"
"""How an attempt ended whose server died."""


@dataclass(frozen=True, slots=True)
class KindSummary:
    """What became of all tasks of one kind."""

    kind: str
    tasks: int
    attempts: int
    outcome: str


@dataclass(frozen=True, slots=True)
class Summary:
    """What a run came to; `seconds` from the first submission to the last end."""

    kinds: tuple[KindSummary, ...]
    total: Counts
    seconds: float

    @property
    def tasks(self) -> int:
        """How many tasks there were."""
        return sum(kind.tasks for kind in self.kinds)


async def plan_for(client: cronoq.Client, folder: Path, files: Sequence[Path]) -> Plan:
    """The plan of the run over these files that was cut short, else a new one."""
    tag = await asyncio.to_thread(folder_tag, folder, files)
    async for task in client.list(cronoq.TaskFilter(tags=tag, statuses=UNFINISHED)):
        return Plan(folder, files, task.tags["run"])
    return Plan(folder, files)


class Run:
    """One plan on its way."""

    def __init__(self, client: cronoq.Client, files: Sequence[Path], plan: Plan) -> None:
        self._client = client
        self._files = files
        self._plan = plan
        self.task_count = self._plan.task_count

    async def go(self, progress: Progress) -> Summary:
        """Does all the work and checks it.

        Raises:
            DemoError: Something is not as planned.
        """
        begun = time.monotonic()
        endless, stubborn = await self._client.submit_batch(
            [self._plan.endless, self._plan.stubborn]
        )
        handles = await self._submit_files()
        for level in self._plan.levels:
            handles += await self._submit_sums(level)
        followed = (*handles, stubborn, endless)
        results, _ = await asyncio.gather(
            asyncio.gather(*(self._follow(handle, progress) for handle in followed)),
            self._cancel_running(endless),
        )
        seconds = time.monotonic() - begun
        self._check_ends(followed, results)
        await self._check_attempts(endless, stubborn)
        total = await self._check_total(results[: len(handles)])
        return Summary(await self._summarize(), total, seconds)

    async def _submit_files(self) -> list[cronoq.TaskHandle]:
        handles = []
        for answer in await self._client.submit_many(self._plan.files):
            if not isinstance(answer, cronoq.TaskHandle):
                raise answer
            handles.append(answer)
        return handles

    async def _submit_sums(self, level: Sequence[cronoq.TaskSpec]) -> list[cronoq.TaskHandle]:
        handles = []
        for start in range(0, len(level), SUMS_PER_BATCH):
            handles += await self._client.submit_batch(level[start : start + SUMS_PER_BATCH])
        return handles

    async def _follow(self, handle: cronoq.TaskHandle, progress: Progress) -> cronoq.TaskResult:
        result = await handle.wait()
        progress.one_more()
        return result

    async def _cancel_running(self, endless: cronoq.TaskHandle) -> None:
        """Cancels once the handler runs: not before, or there would be nothing to stop."""
        task = await self._client.get(endless.id)
        while task.status in UNFINISHED and task.status is not TaskStatus.RUNNING:
            await asyncio.sleep(LOOK_INTERVAL_S)
            task = await self._client.get(endless.id)
        await endless.cancel()

    def _check_ends(
        self, handles: Sequence[cronoq.TaskHandle], results: Sequence[cronoq.TaskResult]
    ) -> None:
        """Every task succeeded, but for the last, which was cancelled."""
        expected = [TaskStatus.SUCCEEDED] * (len(results) - 1) + [TaskStatus.CANCELLED]
        wrong = [
            f"{handle.key} is {result.status.name.lower()}, not {status.name.lower()}: "
            f"{result.message or 'no message'}"
            for handle, result, status in zip(handles, results, expected, strict=True)
            if result.status is not status
        ]
        if wrong:
            raise DemoError(_listed(f"{len(wrong)} tasks did not end as planned", wrong))

    async def _check_attempts(
        self, endless: cronoq.TaskHandle, stubborn: cronoq.TaskHandle
    ) -> None:
        """The one failed twice before it succeeded, the other was cancelled while it ran.

        Attempts whose server died count as well, and failed in place of the handler.
        """
        past = {
            handle.key: [
                attempt.outcome for attempt in (await self._client.detail(handle.id)).attempts
            ]
            for handle in (endless, stubborn)
        }
        made_it = await stubborn.result(int)
        lost = {key: outcomes.count(LEADER_LOST) for key, outcomes in past.items()}
        failed = max(0, FAILURES - sum(o == LEADER_LOST for o in past[stubborn.key][:FAILURES]))
        expected = {
            endless.key: [LEADER_LOST] * lost[endless.key] + ["cancelled_by_client"],
            stubborn.key: sorted([LEADER_LOST] * lost[stubborn.key] + ["failed"] * failed),
        }
        past[stubborn.key].sort()
        for key, outcomes in past.items():
            if outcomes != expected[key]:
                raise DemoError(f"attempts of {key} ended {outcomes}, expected {expected[key]}")
        if made_it != len(past[stubborn.key]) + 1:
            number = len(past[stubborn.key]) + 1
            raise DemoError(f"attempt {made_it} of {stubborn.key} succeeded, not {number}")

    async def _check_total(self, results: Sequence[cronoq.TaskResult]) -> Counts:
        """The sum at the top is what counting here gives."""
        told = [self._client.decode(result, Counts) for result in results]
        counted = await asyncio.to_thread(_count_all, self._files)
        compare(self._files, counted, told[: len(counted)], told[-1])
        return add_up(counted)

    async def _summarize(self) -> tuple[KindSummary, ...]:
        """Asks the server for all tasks of this run and groups them."""
        tasks: dict[tuple[str, str], list[int]] = collections.defaultdict(list)
        async for task in self._client.list(cronoq.TaskFilter(tags=self._plan.tag)):
            tasks[task.kind, task.status.name.lower()].append(task.attempt)
        listed = sum(map(len, tasks.values()))
        if listed != self.task_count:
            raise DemoError(f"the server lists {listed} tasks, {self.task_count} were submitted")
        return tuple(
            KindSummary(kind, len(attempts), sum(attempts), outcome)
            for (kind, outcome), attempts in sorted(tasks.items())
        )


def _count_all(files: Sequence[Path]) -> list[Counts]:
    try:
        return [count_here(path) for path in files]
    except OSError as error:
        raise DemoError(f"{error.filename} can't be read any more: {error.strerror}") from error


def compare(
    files: Sequence[Path], counted: Sequence[Counts], told: Sequence[Counts], top: Counts
) -> None:
    """Holds what the tasks put out against what was counted here.

    Args:
        files: The files.
        counted: What counting here gave for each.
        told: What its task put out.
        top: What the sum over all put out.

    Raises:
        DemoError: They differ; names the first files, or the sums when no file differs.
    """
    wrong = [
        f"{path}: counted {here}, told {there}"
        for path, here, there in zip(files, counted, told, strict=True)
        if here != there
    ]
    if wrong:
        what = f"{len(wrong)} files differ from what the tasks counted (changed while it ran?)"
        raise DemoError(_listed(what, wrong))
    expected = add_up(counted)
    if top != expected:
        raise DemoError(f"the totals differ: counted {expected}, told {top}")


def _listed(what: str, lines: Sequence[str]) -> str:
    """A message with the first few of many lines."""
    more = [f"and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return "\n  ".join([what, *lines[:SHOWN_MAX], *more])
