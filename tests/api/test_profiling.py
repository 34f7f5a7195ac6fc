"""Profiles are taken where they were asked for in the configuration, for admins, within bounds."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cronoq_server.api.http.profiling import DEPTH_MAX, STACKS_MAX, Profiler, collapsed, sample
from cronoq_server.runtime.refusals import Refused
from tests.api.conftest import serving
from tests.api.web import browsing, refused

PATH = "/v1/debug/profile"
ON = "profiling = true\n"
ROLES = """
[[auth.tokens]]
token = "admin-0123456789abcdef"
role = "admin"
[[auth.tokens]]
token = "metrics-0123456789abcdef"
role = "metrics"
"""


async def test_without_the_setting_there_is_no_such_path() -> None:
    """What is answered is what any unknown path hears."""
    async with serving() as edge, browsing(edge) as web:
        answer = await web.get(PATH)
        other = await web.get("/v1/debug/anything")
        assert answer.status_code == other.status_code == 404
        assert answer.text.replace(PATH, "X") == other.text.replace("/v1/debug/anything", "X")


async def test_a_profile_names_what_the_process_does() -> None:
    """The main thread is in it, with the function that it was in."""
    async with serving(ON) as edge, browsing(edge) as web:
        answer = await web.get(f"{PATH}?seconds=0.3")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    stacks = [line.rpartition(" ") for line in answer.text.splitlines()]
    assert any(stack.startswith("MainThread;") and int(count) > 0 for stack, _, count in stacks)


@pytest.mark.parametrize("query", ["seconds=0", "seconds=61", "seconds=nan", "seconds=x", "a=1"])
async def test_what_is_out_of_bounds_is_refused(query: str) -> None:
    """The field is named, and the limit."""
    async with serving(ON) as edge, browsing(edge) as web:
        code, reason, _ = refused(await web.get(f"{PATH}?{query}"))
    assert (code, reason) == (400, "invalid_field")


async def test_only_admins_may_take_profiles() -> None:
    """Others hear what they hear of anything that their role is not for."""
    async with serving(ON + ROLES) as edge, browsing(edge) as web:
        told = {}
        for role in ("admin", "metrics"):
            headers = {"authorization": f"Bearer {role}-0123456789abcdef"}
            told[role] = await web.get(f"{PATH}?seconds=0.1", headers=headers)
        assert told["admin"].status_code == 200
        assert refused(told["metrics"])[:2] == (403, "role_not_allowed")
        assert (await web.get(PATH)).status_code == 401


async def test_one_profile_is_taken_at_a_time() -> None:
    """The second one is refused; whoever leaves makes room for the next."""
    profiler = Profiler()
    first = asyncio.create_task(profiler.take(60))
    await asyncio.sleep(0)
    with pytest.raises(Refused, match="one is taken at a time"):
        await profiler.take(0.1)
    first.cancel()
    await asyncio.wait({first})
    assert "MainThread" in await profiler.take(0.3)


def test_a_profile_ends_early_if_nobody_waits_for_it() -> None:
    """Nothing is looked at then."""
    ends = threading.Event()
    ends.set()
    assert sample(60, ends) == ""


def test_stacks_are_cut_to_their_innermost_functions() -> None:
    """However deep they are."""
    frames = []

    def dive(depth: int) -> None:
        import sys

        if depth:
            dive(depth - 1)
        else:
            frames.append(collapsed(sys._getframe()))

    dive(DEPTH_MAX * 2)
    assert frames[0].count(";") == DEPTH_MAX - 1
    assert STACKS_MAX * DEPTH_MAX < 1_000_000
