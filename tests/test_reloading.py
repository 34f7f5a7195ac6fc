"""A configuration that is read again: what holds at once, what waits, and what changes nothing."""

from __future__ import annotations

import pytest

from cronoq_server import config
from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.reloading import FIXED_LIMITS, plan
from tests.api.conftest import ANY_PORT, serving

BASE = "[[pools]]\nname = 'a'\n[[resources]]\nname = 'gpu'\npermits = 1\n"


@pytest.mark.parametrize(
    ("text", "taken", "waiting"),
    [
        (BASE, (), ()),
        (
            f"[limits]\nmax_list = 7\nmax_tags = 3\n{BASE}",
            ("limits.max_tags", "limits.max_list"),
            (),
        ),
        (f"[limits]\nmax_message_bytes = 300000\n{BASE}", (), ("limits.max_message_bytes",)),
        (f"[server]\ngrpc_addr = '127.0.0.1:1'\n{BASE}", (), ("server.grpc_addr",)),
        (f"[store]\nkeep_finished_s = 9000\n{BASE}", (), ("store.keep_finished_s",)),
        (BASE.replace("'a'", "'b'"), (), ("pools",)),
        (BASE.replace("permits = 1", "permits = 2"), ("resources",), ()),
        (
            BASE.replace("permits = 1", "kind = 'token_bucket'\nrate = 1\nburst = 1"),
            (),
            ("resources",),
        ),
        (
            f"{BASE}[[auth.tokens]]\ntoken = '0123456789abcdef'\nrole = 'admin'\n",
            ("auth.tokens",),
            (),
        ),
    ],
)
def test_each_change_is_taken_or_waits(
    text: str, taken: tuple[str, ...], waiting: tuple[str, ...]
) -> None:
    """Live ones are in the configuration that holds now, the others are as they were."""
    before, read = config.parse(BASE), config.parse(text)
    decided = plan(before, read)
    assert (decided.taken, decided.waiting) == (taken, waiting)
    assert decided.config == (before if waiting else read)


def test_fixed_limits_are_limits() -> None:
    """Every name of what ports and drivers are made with is one of a limit."""
    limits = config.LimitsConfig()
    assert all(hasattr(limits, name) for name in FIXED_LIMITS)


async def test_limits_and_resources_hold_at_once() -> None:
    """The next call meets the new bounds, in the api and in the engine, and what runs goes on."""
    text = "[[resources]]\nname = 'gpu'\npermits = 1\n"
    async with serving(text) as edge:
        worker = await edge.worker(slots=3)
        for _ in range(2):
            await edge.submit(resources={"gpu": 1})
        await worker.leases(1)
        limits = "[limits]\nmax_list = 1\nmax_pending_total = 1\nmax_key_len = 3\n"
        waiting = edge.server.reload(
            config.parse(ANY_PORT + limits + text.replace("permits = 1", "permits = 2"))
        )
        assert waiting == ()
        await worker.leases(1)
        page = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest())
        assert (len(page.tasks), bool(page.next_after)) == (1, True)
        with pytest.raises(Exception, match="the limit is 3"):
            await edge.submit(key="long")
        batch = tasks_pb2.SubmitBatchRequest(tasks=[task_pb2.TaskSpec()] * 2)
        with pytest.raises(Exception, match="exceed max_pending_total 1"):
            await edge.tasks.SubmitBatch(batch)
        shown = await edge.admin.ListResources(task_pb2.Empty())
        assert [(one.name, one.permits, one.held) for one in shown.resources] == [("gpu", 2, 2)]
        await worker.stream.done_writing()


async def test_override_by_hand_survives_a_reload_that_does_not_concern_it() -> None:
    """A size that was set by a call stays until the configured one changes."""
    text = "[[resources]]\nname = 'gpu'\npermits = 1\n"
    async with serving(text) as edge:
        await edge.admin.SetResource(admin_pb2.SetResourceRequest(name="gpu", permits=5))
        for permits, shown in ((1, 5), (3, 3)):
            read = text.replace("permits = 1", f"permits = {permits}")
            edge.server.reload(config.parse(ANY_PORT + read))
            (gpu,) = (await edge.admin.ListResources(task_pb2.Empty())).resources
            assert gpu.permits == shown
