"""How tasks are handed in among shards: each to its own, batches whole, many in parts.

What a task needs (parents by id, resources) must be of the shard that runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from cronoq_server.api.auth import Operation, Principal, denial, require
from cronoq_server.api.gate import Gate
from cronoq_server.api.service import Service
from cronoq_server.api.spread import Spread
from cronoq_server.config import LimitsConfig
from cronoq_server.engine import Admitted, ErrorReason, Refusal, SubmitMode, TaskSpec
from cronoq_server.runtime.driver import Driver
from cronoq_server.runtime.refusals import Refused
from cronoq_server.sharding import OnPool


class ShardedSubmitting(Service):
    """The operations that admit tasks, on a server among shards."""

    def __init__(
        self, limits: LimitsConfig, gate: Gate, leader: Callable[[], Driver], spread: Spread
    ) -> None:
        """Serves its own shard's leader, and asks others by `spread`."""
        super().__init__(limits, gate, leader)
        self._spread = spread

    async def submit(
        self,
        who: Principal,
        specs: Sequence[TaskSpec],
        mode: SubmitMode,
        remaining_s: float | None,
    ) -> Admitted:
        """See `Service.submit`; all tasks must belong to one shard."""
        require(who, Operation.SUBMIT, *dict.fromkeys(spec.pool for spec in specs))
        topology = self._spread.topology
        for index, spec in enumerate(specs):
            refusal = self._crossing(spec)
            if refusal is not None:
                raise Refused(_at(len(specs), index, refusal))
        owners = {topology.of_pool(spec.pool) or topology.own for spec in specs}
        if len(owners) > 1:
            names = ", ".join(sorted(shard.name for shard in owners))
            text = f"tasks: a batch is admitted by one shard, these belong to {names}"
            raise Refused(Refusal(ErrorReason.CROSS_SHARD_BATCH, text, (("shards", names),)))
        remote = self._spread.single(OnPool(specs[0].pool), who) if specs else None
        if remote is None:
            return await super().submit(who, specs, mode, remaining_s)
        with self.gate.request(may_park=True):
            return await remote.submit(specs, mode, remaining_s)

    async def submit_many(
        self, who: Principal, specs: Sequence[TaskSpec | Refusal]
    ) -> tuple[Admitted, Mapping[int, Refusal]]:
        """See `Service.submit_many`; each task goes to its own shard."""
        require(who, Operation.SUBMIT)
        parts: dict[str, list[int]] = {}
        checked = list(specs)
        for index, spec in enumerate(specs):
            if isinstance(spec, Refusal):
                continue
            crossing = self._crossing(spec)
            if crossing is not None:
                checked[index] = crossing
                continue
            owner = self._spread.topology.of_pool(spec.pool) or self._spread.topology.own
            parts.setdefault(owner.name, []).append(index)
        own = self._spread.topology.own.name
        if set(parts) <= {own}:
            return await super().submit_many(who, checked)
        found = await asyncio.gather(
            *(self._submit_part(who, name, indexes, checked) for name, indexes in parts.items())
        )
        return _assembled(checked, dict(pair for part in found for pair in part.items()))

    async def _submit_part(
        self, who: Principal, name: str, indexes: list[int], specs: list[TaskSpec | Refusal]
    ) -> dict[int, tuple[int, bool] | Refusal]:
        """What became of one shard's tasks, by index: id and whether it was there, or a refusal."""
        some = [spec for index in indexes if isinstance(spec := specs[index], TaskSpec)]
        try:
            if name == self._spread.topology.own.name:
                admitted, refused = await super().submit_many(who, some)
            else:
                refused = {
                    at: refusal
                    for at, spec in enumerate(some)
                    if (refusal := denial(who, Operation.SUBMIT, spec.pool)) is not None
                }
                some = [spec for at, spec in enumerate(some) if at not in refused]
                admitted = await self._submit_many_to(who, some) if some else Admitted([])
        except Refused as lost:
            return dict.fromkeys(indexes, lost.refusal)
        return _by_index(indexes, admitted, refused)

    async def _submit_many_to(self, who: Principal, specs: Sequence[TaskSpec]) -> Admitted:
        """What became of tasks for pools of one other shard, which the caller may use."""
        remote = self._spread.single(OnPool(specs[0].pool), who)
        assert remote is not None
        with self.gate.request():
            return await remote.submit_many(specs)

    def _crossing(self, spec: TaskSpec) -> Refusal | None:
        """Why a task can't be one shard's own: what it needs is another's."""
        topology = self._spread.topology
        owner = topology.of_pool(spec.pool) or topology.own
        for dependency in spec.dependencies:
            target = dependency.target
            other = topology.of_id(target) if isinstance(target, int) else owner
            if other is not None and other is not owner:
                text = f"deps: task {target} is another shard's, a task waits for its own shard's"
                return Refusal(ErrorReason.CROSS_SHARD_DEPENDENCY, text)
        for resource, _ in spec.resources:
            keeper = topology.of_resource(resource)
            if keeper is not None and keeper is not owner:
                text = f"resources: {resource!r} is counted by another shard"
                return Refusal(ErrorReason.CROSS_SHARD_RESOURCE, text, (("resource", resource),))
        return None


def _at(count: int, index: int, refusal: Refusal) -> Refusal:
    if count == 1:
        return refusal
    details = (*refusal.details, ("index", str(index)))
    return Refusal(refusal.reason, f"tasks[{index}]: {refusal.message}", details)


def _by_index(
    indexes: list[int], admitted: Admitted, refused: Mapping[int, Refusal]
) -> dict[int, tuple[int, bool] | Refusal]:
    """What became of a part, by the indexes of the whole."""
    found: dict[int, tuple[int, bool] | Refusal] = {
        indexes[at]: refusal for at, refusal in refused.items()
    }
    passed = [index for at, index in enumerate(indexes) if at not in refused]
    duplicates, refusals = frozenset(admitted.duplicates), dict(admitted.refusals)
    for at, (index, task_id) in enumerate(zip(passed, admitted.ids, strict=True)):
        found[index] = refusals.get(at) or (task_id, at in duplicates)
    return found


def _assembled(
    specs: Sequence[TaskSpec | Refusal], found: Mapping[int, tuple[int, bool] | Refusal]
) -> tuple[Admitted, dict[int, Refusal]]:
    """The parts put together, as `Service.submit_many` answers."""
    ids: list[int] = []
    duplicates: list[int] = []
    refused: dict[int, Refusal] = {}
    for index, spec in enumerate(specs):
        outcome = spec if isinstance(spec, Refusal) else found[index]
        if isinstance(outcome, Refusal):
            refused[index] = outcome
            continue
        if outcome[1]:
            duplicates.append(len(ids))
        ids.append(outcome[0])
    return Admitted(ids, tuple(duplicates)), refused
