"""What a client whose credential is bound to a tenant may see: that tenant's tasks alone.

The engine knows of pools only. Here names are turned into ids of tasks that are the caller's own
before anything is done to them, and a task of somebody else is answered word for word like one
that is not there. For callers without a tenant nothing is asked and nothing changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from cronoq_server.api.auth import Operation, Principal, denial
from cronoq_server.engine import ErrorReason, Refusal, TaskFilter, TaskRef, TaskSpec, TaskView
from cronoq_server.runtime.refusals import Refused, task_unknown

Look: TypeAlias = Callable[[TaskRef], Awaitable[TaskView]]
"""Shows a task in the caller's pools; raises `Refused` if there is none."""


LOOKUPS_AT_ONCE: Final = 1000

NAME_TASKS = Refusal(
    ErrorReason.TENANT_NOT_ALLOWED,
    "this credential is bound to a tenant: name the tasks that are to be watched",
)


def permitted(who: Principal, spec: TaskSpec) -> TaskSpec | Refusal:
    """A spec as its caller may submit it, or why they may not."""
    if who.pools is None and who.tenant is None:
        return spec
    return denial(who, Operation.SUBMIT, spec.pool) or own_spec(who, spec)


def own_spec(who: Principal, spec: TaskSpec) -> TaskSpec | Refusal:
    """A spec for the caller's tenant, who need not name it; or why it is refused."""
    if who.tenant is None or spec.tenant == who.tenant:
        return spec
    if spec.tenant:
        return _other(spec.tenant, "tenant")
    return msgspec.structs.replace(spec, tenant=who.tenant)


def own_filter(who: Principal, wanted: TaskFilter) -> TaskFilter:
    """A filter that lets through the caller's own tasks alone.

    Raises:
        Refused: It names another tenant.
    """
    if who.tenant is None:
        return wanted
    for tenant in wanted.tenants:
        if tenant != who.tenant:
            raise Refused(_other(tenant, "tenants"))
    return msgspec.structs.replace(wanted, tenants=(who.tenant,))


def _other(tenant: str, field: str) -> Refusal:
    text = f"{field}: this credential may not use tenant {tenant!r}"
    return Refusal(ErrorReason.TENANT_NOT_ALLOWED, text, (("tenant", tenant),))


async def own_task(who: Principal, target: TaskRef, look: Look) -> TaskRef:
    """The name under which a task may be dealt with: its id, if the caller has a tenant.

    Raises:
        Refused: There is no such task, or it is another tenant's.
    """
    if who.tenant is None:
        return target
    view = await look(target)
    if view.spec.tenant != who.tenant:
        raise Refused(task_unknown(target))
    return view.task_id


async def foreign_names(
    who: Principal, specs: Sequence[TaskSpec], look: Look
) -> dict[int, Refusal]:
    """Which specs name what is not their caller's, as key or as parent, by index.

    A parent that nobody knows is refused as well, even where keys are awaited or ids of long ago
    count as satisfied: it could be told from a foreign one otherwise, or become one.
    """
    keys = {spec.key for spec in specs if spec.key}
    parents = {dependency.target for spec in specs for dependency in spec.dependencies} - keys
    owners = await _owners([*keys, *parents], look)
    refused: dict[int, Refusal] = {}
    for index, spec in enumerate(specs):
        if spec.key and owners[spec.key] not in (None, who.tenant):
            refused[index] = key_in_use(spec.key)
            continue
        for dependency in spec.dependencies:
            target = dependency.target
            if target not in keys and owners[target] != who.tenant:
                named = f"key {target!r}" if isinstance(target, str) else f"id {target}"
                # Word for word what the engine says of a parent that is not there.
                text = f"dependencies: there is no task with {named}"
                refused[index] = Refusal(ErrorReason.DEPENDENCY_UNKNOWN, text)
                break
    return refused


async def _owners(targets: Sequence[TaskRef], look: Look) -> dict[TaskRef, str | None]:
    """The tenants of tasks, asked for together."""
    owners: dict[TaskRef, str | None] = {}
    for start in range(0, len(targets), LOOKUPS_AT_ONCE):
        some = targets[start : start + LOOKUPS_AT_ONCE]
        found = await asyncio.gather(*(_owner(target, look) for target in some))
        owners.update(zip(some, found, strict=True))
    return owners


async def _owner(target: TaskRef, look: Look) -> str | None:
    """The tenant of a task, empty if it has none; None = there is no such task."""
    try:
        view = await look(target)
    except Refused as refused:
        if refused.refusal.reason is ErrorReason.TASK_UNKNOWN:
            return None
        raise
    return view.spec.tenant


def key_in_use(key: str) -> Refusal:
    """A key that another tenant's task has."""
    return Refusal(ErrorReason.KEY_IN_USE, f"key: {key!r} is in use by a task that you may not see")


def at_index(count: int, index: int, refusal: Refusal) -> Refusal:
    """A refusal that names the index of its task, if there are several."""
    if count == 1:
        return refusal
    details = (*refusal.details, ("index", str(index)))
    return Refusal(refusal.reason, f"tasks[{index}]: {refusal.message}", details)
