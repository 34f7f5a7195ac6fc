"""Changes of capacity at run time: pools paused, resources resized and shown, old ends let go.

All are durable, but for what the configuration says. A resize holds until the configured size
itself changes: recovery compares what the configuration said when the resize was made with what it
says now, and a configuration that is read again does the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from cronoq_server.engine.draft import Draft
from cronoq_server.engine.effects import Done, ResourceView, Scaled
from cronoq_server.engine.events import (
    ListResources,
    Prune,
    Reconfigured,
    ResizeResource,
    SetPoolPaused,
)
from cronoq_server.engine.model import ErrorReason, Status
from cronoq_server.engine.mutations import (
    PoolPaused,
    RecoveredChunk,
    ResourceResized,
    TasksPruned,
)
from cronoq_server.engine.placement import Resource, ResourceRules
from cronoq_server.engine.state import State, resource_rules
from cronoq_server.engine.timers import NEVER

ENDED: Final = (-1, -1, -1)
"""Stored in place of the configured size where a resize has ended: no configuration has it."""


def set_pool_paused(draft: Draft, event: SetPoolPaused) -> None:
    """Pauses or resumes a pool; running attempts go on."""
    pool = draft.state.pools.get(event.pool)
    if pool is None or not pool.configured:
        message = f"pool: there is no pool {event.pool!r}"
        draft.refuse(event.call, ErrorReason.POOL_UNKNOWN, message)
        return
    if pool.paused != event.paused:
        pool.paused = event.paused
        draft.state.placement.set_paused(event.pool, event.paused)
        draft.others.append(PoolPaused(event.pool, event.paused))
    draft.reply(event.call, Done(True))


def resize_resource(draft: Draft, event: ResizeResource) -> None:
    """Gives a resource another size; permits that are out stay out."""
    state = draft.state
    rules = state.resources.configured(event.name)
    if rules is None or event.name in state.orphans:
        message = f"name: there is no resource {event.name!r}"
        draft.refuse(event.call, ErrorReason.RESOURCE_NOT_FOUND, message)
        return
    wrong = _wrong_figure(rules, event)
    if wrong is not None:
        draft.refuse(event.call, ErrorReason.INVALID_FIELD, wrong)
        return
    state.placement.resize(
        event.name,
        draft.now.mono,
        permits=event.permits,
        rate=event.rate,
        burst=event.burst,
    )
    changed = state.resources.configured(event.name)
    assert changed is not None
    size = _size(changed)
    resized = ResourceResized(event.name, *size, _configured(state, event.name))
    state.overrides[event.name] = resized
    draft.others.append(resized)
    draft.reply(event.call, _rules_view(state, changed))


def reconfigure(draft: Draft, event: Reconfigured) -> None:
    """Takes over limits and resources that were configured anew.

    A resource that is gone serves the tasks that have it, and no new ones. One that is there under
    another kind than before stays as it was until the next leadership.
    """
    state, settings = draft.state, draft.state.settings
    state.settings = msgspec.structs.replace(
        event.settings,
        pools=settings.pools,
        shard=settings.shard,
        epoch=settings.epoch,
        high_water=settings.high_water,
        store_remembers=settings.store_remembers,
    )
    before = {rules.name: rules for rules in state.resource_rules}
    wanted = {rules.name: rules for rules in map(resource_rules, event.settings.resources)}
    for name in before.keys() - wanted.keys():
        state.orphans[name] = None
    for name, rules in wanted.items():
        known = state.resources.configured(name)
        if known is None:
            state.resources.add(rules)
        elif (known.permits is None, known.per_value) != (rules.permits is None, rules.per_value):
            continue
        elif before.get(name) != rules or name in state.orphans:
            ended = state.overrides.pop(name, None)
            if ended is not None:
                _end_resize(draft, ended)
            _resize(draft, name, _size(rules), is_bucket=rules.permits is None)
        state.orphans.pop(name, None)
    state.resource_rules = tuple(wanted.values())


def _end_resize(draft: Draft, resized: ResourceResized) -> None:
    """The configured size has changed: the resize does not come back with the old one."""
    draft.others.append(msgspec.structs.replace(resized, configured=ENDED))


def _resize(draft: Draft, name: str, size: tuple[int, int, int], *, is_bucket: bool) -> None:
    permits, rate, burst = size
    draft.state.placement.resize(
        name,
        draft.now.mono,
        permits=None if is_bucket else permits,
        rate=rate if is_bucket else None,
        burst=burst if is_bucket else None,
    )


def prune(draft: Draft, event: Prune) -> None:
    """Has the store let go of old ends; the engine has forgotten them long before.

    All but those that it could not forget since a live task depends on them: a later leader has
    to find them as well.
    """
    draft.others.append(TasksPruned(event.before, event.limit, tuple(draft.state.spared)))
    draft.reply(event.call, Done(True))


def _wrong_figure(rules: ResourceRules, event: ResizeResource) -> str | None:
    """What of a resize does not go with the kind of resource."""
    if rules.permits is None and event.permits is not None:
        return f"permits: {event.name!r} is a token bucket, it has rate and burst"
    if rules.permits is not None and (event.rate is not None or event.burst is not None):
        return f"rate, burst: {event.name!r} is a semaphore, it has permits"
    return None


def _size(rules: ResourceRules) -> tuple[int, int, int]:
    return rules.permits or 0, rules.rate, rules.burst if rules.permits is None else 0


def _configured(state: State, name: str) -> tuple[int, int, int]:
    """What the configuration says of a resource."""
    return next(_size(rules) for rules in state.resource_rules if rules.name == name)


def sample_pools(draft: Draft) -> None:
    """Looks at the load of every pool whose sample is due; tells what it wants, if that changed."""
    now = draft.now
    for name, pool in draft.state.pools.items():
        autoscaler = pool.autoscaler
        if now.mono < autoscaler.due_at():
            continue
        settings = pool.settings
        horizon = now.wall + settings.autoscale.drain_time
        changed = autoscaler.sample(
            pool.arrived,
            pool.counts[Status.READY],
            settings.default_duration if pool.mean is None else pool.mean,
            pool.bookings.most(now.wall, horizon),
            now.mono,
        )
        if changed:
            draft.effects.append(Scaled(name, autoscaler.desired))


def next_sample(state: State) -> int:
    """When a sample may change something (mono), or never."""
    return min(
        (
            pool.autoscaler.due_at()
            for pool in state.pools.values()
            if not pool.autoscaler.is_quiet or pool.counts[Status.READY] or pool.bookings.total
        ),
        default=NEVER,
    )


def list_resources(draft: Draft, event: ListResources) -> None:
    """All resources: configured ones, then counters made by first use."""
    state = draft.state
    state.resources.advance(draft.now.mono)
    views = [_rules_view(state, rules) for rules in state.resources.all_rules()]
    made = [_account_view(state, account) for account in state.resources.all() if account.template]
    draft.reply(event.call, tuple(views + made))


def _rules_view(state: State, rules: ResourceRules) -> ResourceView:
    """A configured resource; one with counters per value shows no account of its own."""
    account = state.resources.find(rules.name)
    permits, rate, burst = _size(rules)
    return ResourceView(
        rules.name,
        "token_bucket" if rules.permits is None else "semaphore",
        permits,
        rate,
        burst,
        account.held if account is not None else 0,
        _tokens(state, account) if account is not None else 0,
        account.waiting if account is not None else 0,
        rules.name in state.overrides,
        rules.per_value,
    )


def _account_view(state: State, account: Resource) -> ResourceView:
    rules = state.resources.configured(account.template or account.name)
    assert rules is not None
    permits, rate, burst = _size(rules)
    return ResourceView(
        account.name,
        "token_bucket" if account.is_bucket else "semaphore",
        permits,
        rate,
        burst,
        account.held,
        _tokens(state, account),
        account.waiting,
        rules.name in state.overrides,
        per_value=True,
    )


def _tokens(state: State, account: Resource) -> int:
    if not account.is_bucket:
        return 0
    account.refill(state.resources.mono)
    return account.available


def restore_capacity(draft: Draft, chunks: Iterable[RecoveredChunk]) -> None:
    """Takes over what was paused and resized, as far as the configuration still fits."""
    state = draft.state
    for chunk in chunks:
        for name in chunk.paused_pools:
            pool = state.pools.get(name)
            if pool is not None and pool.configured:
                pool.paused = True
                state.placement.set_paused(name, paused=True)
        for resized in chunk.resized:
            rules = state.resources.configured(resized.name)
            if rules is None or resized.name in state.orphans or resized.configured == ENDED:
                continue
            if _size(rules) != resized.configured:
                _end_resize(draft, resized)
                continue
            state.overrides[resized.name] = resized
            size = (resized.permits, resized.rate, resized.burst)
            _resize(draft, resized.name, size, is_bucket=rules.permits is None)
