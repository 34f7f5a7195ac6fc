"""A thousand schedules; a leader is paused, overtaken, and goes on while the next one recovers.

Nobody works: the occurrences wait, and every one of them can be counted.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

import cronoq
from tests.e2e.audit import SqliteAudit, judge
from tests.e2e.place import SHORT, SqlitePlace
from tests.e2e.replicas import Group, replicas

SCHEDULES = 1000
PERIOD = timedelta(seconds=5)


def spec(number: int) -> cronoq.ScheduleSpec:
    """One that fires every five seconds, whatever was missed."""
    return cronoq.ScheduleSpec(
        name=f"s{number}",
        cron="*/5 * * * * *",
        template=cronoq.TaskSpec("tick"),
        overlap=cronoq.Overlap.ALLOW,
        catch_up=cronoq.CatchUp.ALL,
    )


def occurrence(key: str) -> tuple[str, datetime]:
    """Schedule and instant of an occurrence, by its key."""
    name, _, start = key.partition("@")
    return name, datetime.strptime(start, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)


async def all_fired(client: cronoq.Client, since: datetime) -> None:
    """Returns when every schedule has had an occurrence from this instant on."""
    waiting = {spec(number).name for number in range(SCHEDULES)}
    async for event in client.watch(all_transitions=True):
        name, at = occurrence(event.key)
        if at >= since:
            waiting.discard(name)
        if not waiting:
            return


async def overtake(group: Group, audit: SqliteAudit) -> None:
    """Pauses the leader, and lets it go on as soon as another one has begun to lead."""
    leader = await group.leader()
    while True:
        epoch = (await audit.rows())[-1][0]
        leader.send(signal.SIGSTOP)
        try:
            async with asyncio.timeout(10):
                while (await audit.rows())[-1][0] == epoch:
                    pass
            break
        except TimeoutError:  # paused in the middle of a write it keeps the file locked
            continue
        finally:
            leader.send(signal.SIGCONT)
    await leader.says("leadership_lost")
    await group.another(leader)


@pytest.mark.regression("R5", "R24")
async def test_no_schedule_is_late_or_doubled_by_two_leaders_at_once(tmp_path: Path) -> None:
    """Each fires once for each of its instants, and none is more than a period behind."""
    place = SqlitePlace(tmp_path, SHORT, None)
    async with (
        asyncio.timeout(120),
        replicas(tmp_path, place.store) as (balancer, group),
        cronoq.Client(balancer.address, deadline=60.0) as client,
    ):
        audit = SqliteAudit(tmp_path / "q.db")
        await audit.begin()
        await asyncio.gather(*(client.put_schedule(spec(n)) for n in range(SCHEDULES)))
        await all_fired(client, datetime.now(UTC))
        await overtake(group, audit)
        await all_fired(client, datetime.now(UTC))
        fired: dict[str, list[datetime]] = defaultdict(list)
        async for task in client.list():
            name, at = occurrence(task.key)
            fired[name].append(at)
        assert judge(await audit.rows()) == 2
    assert len(fired) == SCHEDULES
    for instants in fired.values():
        steps = {later - earlier for earlier, later in pairwise(sorted(instants))}
        assert steps == {PERIOD}
    last = [max(instants) for instants in fired.values()]
    assert max(last) - min(last) <= PERIOD
