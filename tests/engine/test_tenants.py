"""Tenants race for keys: whoever comes second has nothing of the first one's task.

Callers look their names up before they submit, and much may happen between that and the submit, so
the engine judges names once more in the step that admits.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cronoq_server.engine import (
    Admitted,
    ErrorReason,
    PoolSettings,
    Refusal,
    SubmitMode,
    TaskSpec,
)
from tests.engine.harness import World, after, spec

KEYS = ("k1", "k2", "k3")
TENANTS = ("acme", "zeta")

members = st.lists(
    st.tuples(st.sampled_from(KEYS), st.lists(st.sampled_from(KEYS), max_size=2, unique=True)),
    min_size=1,
    max_size=3,
    unique_by=lambda member: member[0],
)
submits = st.tuples(st.sampled_from(TENANTS), st.sampled_from(list(SubmitMode)), members)
actions = st.lists(st.one_of(submits, st.just("work"), st.just("cancel")), max_size=14)


def specs_of(tenant: str, told: list[tuple[str, list[str]]]) -> list[TaskSpec]:
    """Tasks with keys and parents by key."""
    return [
        spec(
            key=key,
            tenant=tenant,
            dependencies=after(*(parent for parent in parents if parent != key)),
        )
        for key, parents in told
    ]


def check(world: World, tenant: str, answer: Any, before: set[int]) -> None:
    """A caller was given tasks of its own alone, and a refused batch has left nothing."""
    state = world.engine._state
    new = set(state.tasks) - before
    if isinstance(answer, Refusal):
        assert not new
        assert answer.reason in (
            ErrorReason.KEY_IN_USE,
            ErrorReason.DEPENDENCY_UNKNOWN,
            ErrorReason.CYCLE,
        )
        return
    if answer is None:  # parked
        return
    assert isinstance(answer, Admitted)
    for task_id in answer.ids:
        if task_id:
            assert owner(world, task_id) == tenant
    for task_id in new:
        for dependency in state.tasks[task_id].spec.dependencies:
            assert isinstance(dependency.target, str)
            parent = state.keys.get(dependency.target)
            assert parent is None or owner(world, parent) == tenant


def owner(world: World, task_id: int) -> str:
    """The tenant of a task, live or ended."""
    state = world.engine._state
    live = state.tasks.get(task_id)
    return live.spec.tenant if live is not None else state.finished[task_id].tenant


@given(actions=actions, full=st.booleans())
@settings(max_examples=150, deadline=None)
def test_nobody_gets_a_task_of_another_tenant(actions: list[Any], full: bool) -> None:
    """Whatever the interleaving of submits of two tenants, ends and cancellations."""
    pool = PoolSettings(
        "default",
        max_pending=3 if full else 1000,
        await_unknown_dependencies=10**9,
    )
    world = World(pool)
    session = world.join(slots=2)
    for action in actions:
        if action == "work":
            for lease in list(world.out.get(session, {}))[:1]:
                world.complete(session, lease)
        elif action == "cancel":
            for key in KEYS[:1]:
                world.cancel(key)
        else:
            tenant, mode, told = action
            specs = specs_of(tenant, told)
            if mode is SubmitMode.ONE:
                specs = specs[:1]
            before = set(world.engine._state.tasks)
            check(world, tenant, world.submit(*specs, mode=mode, tenant=tenant), before)


def test_the_second_tenant_s_batch_leaves_nothing() -> None:
    """One member has a key that is taken meanwhile: the others are not admitted either."""
    world = World()
    first = world.add(spec(key="k", tenant="acme"), tenant="acme")
    batch = (spec(key="other", tenant="zeta"), spec(key="k", tenant="zeta"))
    answer = world.submit(*batch, tenant="zeta")
    assert isinstance(answer, Refusal)
    assert answer.reason is ErrorReason.KEY_IN_USE
    assert ("index", "1") in answer.details
    assert set(world.engine._state.tasks) == {first}


def test_the_key_of_an_ended_task_of_another_tenant_is_in_use() -> None:
    """A batch that was parked meanwhile finds it so."""
    world = World()
    world.add(spec(key="k", tenant="acme"), tenant="acme")
    session = world.join()
    world.complete(session, *world.out[session])
    answer = world.submit(spec(key="k", tenant="zeta"), tenant="zeta")
    assert isinstance(answer, Refusal)
    assert answer.reason is ErrorReason.KEY_IN_USE
    again = world.add(spec(key="k", tenant="acme"), tenant="acme")
    assert owner(world, again) == "acme"
