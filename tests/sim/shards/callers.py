"""Callers of a world of shards: any server, any credential, and where directions lead to."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message
from grpc.aio import AioRpcError
from grpc_status import rpc_status

from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2
from cronoq_server.api.passing import MISSING_KEY
from cronoq_server.engine.model import FIRST_TERMINAL, SECOND, ErrorReason
from cronoq_server.sharding.answers import read_status
from tests.sim.shards.cluster import CERTIFICATE, TOKENS, Cluster, ShardWorld
from tests.sim.shards.promises import Promises, Told
from tests.sim.shards.wire import Call, Line, Pairs

TASKS = "/cronoq.v1.Tasks/"
ADMIN = "/cronoq.v1.Admin/"
EMPTY = task_pb2.Empty()

TRIES = 6
"""How often a call is made that may be repeated."""

WALK_TRIES = 60
"""How often a page is asked for until somebody answers."""


class Callers:
    """All callers of a world.

    Attributes:
        cluster: Whom they call.
        promises: What judges what they hear.
        waiting: Waits that have not had all their ends.
        refusals: How often calls were refused, by reason.
    """

    def __init__(self, cluster: Cluster, promises: Promises) -> None:
        self.cluster = cluster
        self.promises = promises
        self.chance = cluster.chance
        self.waiting: dict[str, None] = {}
        self.refusals: dict[str, int] = {}
        self._payloads = 0
        self._waits = 0
        self._lines = {
            (world.index, certificate): Line(cluster.wires, None, world, certificate)
            for world in cluster.worlds
            for certificate in ("", CERTIFICATE)
        }

    # --- calling ---------------------------------------------------------------------------------

    def anywhere(self) -> ShardWorld:
        """A shard whose server is called."""
        return self.chance.choice(self.cluster.worlds)

    def line(self, entry: ShardWorld, who: str) -> Line:
        """A connection to a shard's servers."""
        return self._lines[entry.index, CERTIFICATE if who == "cert" else ""]

    async def call(
        self,
        method: str,
        request: Message,
        answer: type[Message],
        *,
        who: str = "all",
        entry: ShardWorld | None = None,
        timeout: float | None = 60.0,
    ) -> Told:
        """Makes one call; what came of it, whatever that is."""
        entry = entry or self.anywhere()
        told = Told(entry, who, self.cluster.timeline.now)
        line = self.line(entry, who)
        call = line.begin(method, request.SerializeToString(), timeout, metadata_of(who))
        try:
            told.message = answer.FromString(await call.message())
        except AioRpcError as error:
            self.failed(told, error)
        else:
            told.missing = _missing(call.trailing)
            field = getattr(told.message, "unavailable_shards", None)
            if field is not None and tuple(field) != told.missing:
                self.promises.broken("body and metadata name the same shards", f"{field}")
        finally:
            call.leave()
        return told

    def failed(self, told: Told, error: AioRpcError) -> None:
        """Notes how a call failed."""
        told.code = error.code()
        status = rpc_status.from_call(error)
        refusal = None if status is None else read_status(status)
        if refusal is not None:
            told.reason, told.details = refusal.reason, refusal.details
        name = "lost" if told.reason is None else told.reason.name
        self.refusals[name] = self.refusals.get(name, 0) + 1

    async def pause(self) -> None:
        """What a caller waits between two tries."""
        await self.cluster.worlds[0].sleep(int(SECOND * (0.2 + self.chance.random())))

    # --- submits ---------------------------------------------------------------------------------

    def spec(self, pool: str, key: str = "", **fields: Any) -> task_pb2.TaskSpec:
        """A task that differs from all others by its payload."""
        self._payloads += 1
        payload = b"task %d" % self._payloads
        self.promises.submitted[payload] = None
        return task_pb2.TaskSpec(pool=pool, key=key, payload=payload, **fields)

    async def submit(self, spec: task_pb2.TaskSpec, who: str) -> None:
        """Hands in one task; with a key it is repeated until there is an answer."""
        owner, entry = self.cluster.owners[spec.pool], self.anywhere()
        request = tasks_pb2.SubmitRequest(task=spec)
        for _ in range(TRIES):
            told = await self.call(
                TASKS + "Submit", request, tasks_pb2.SubmitResponse, who=who, entry=entry
            )
            if self.promises.redirected(told, owner, f"submit to {spec.pool}"):
                entry = owner
                continue
            self.promises.serves(told, f"submit to {spec.pool}", (owner,))
            self._unrefused(told, spec.pool)
            if told.message is not None:
                self.promises.admitted(spec.pool, spec.key, spec.payload, told.message)
            if not told.is_lost or not spec.key:
                return
            await self.pause()
            entry = self.anywhere()

    def _unrefused(self, told: Told, pool: str) -> None:
        if told.message is None and not told.is_lost:
            self.promises.broken("no submit is refused for nothing", f"{pool}: {told.reason}")

    async def submit_batch(self, specs: list[task_pb2.TaskSpec]) -> None:
        """Hands in tasks that belong together; of one shard they have to be."""
        owners = {self.cluster.owners[spec.pool].name for spec in specs}
        owner = self.cluster.owners[specs[0].pool]
        request = tasks_pb2.SubmitBatchRequest(tasks=specs)
        told = await self.call(TASKS + "SubmitBatch", request, tasks_pb2.SubmitBatchResponse)
        if len(owners) > 1:
            if told.reason is not ErrorReason.CROSS_SHARD_BATCH and not told.is_lost:
                self.promises.broken("a batch is one shard's", f"{told.reason}: {told.message}")
            return
        self.promises.redirected(told, owner, "batch")
        self.promises.serves(told, "batch", (owner,))
        self._unrefused(told, specs[0].pool)
        if told.message is not None:
            for spec, response in zip(specs, told.message.tasks, strict=True):
                self.promises.admitted(spec.pool, spec.key, spec.payload, response)

    async def submit_many(self, specs: list[task_pb2.TaskSpec]) -> None:
        """Hands in tasks that have nothing to do with each other, for several shards."""
        request = tasks_pb2.SubmitManyRequest(tasks=specs)
        told = await self.call(TASKS + "SubmitMany", request, tasks_pb2.SubmitManyResponse)
        self.promises.serves(told, "many", [self.cluster.owners[spec.pool] for spec in specs])
        if told.message is None:
            return
        for spec, outcome in zip(specs, told.message.outcomes, strict=True):
            if outcome.WhichOneof("outcome") == "response":
                self.promises.admitted(spec.pool, spec.key, spec.payload, outcome.response)
                continue
            part = Told(told.entry, told.who, told.began)
            refusal = read_status(outcome.error)
            part.reason = None if refusal is None else refusal.reason
            self.promises.serves(part, f"many to {spec.pool}", (self.cluster.owners[spec.pool],))
            self._unrefused(part, spec.pool)

    async def submit_across(self, pool: str, parent: int) -> None:
        """Hands in a task that waits for another shard's."""
        spec = self.spec(pool, deps=[task_pb2.Dep(target=task_pb2.TaskRef(id=parent))])
        told = await self.call(
            TASKS + "Submit", tasks_pb2.SubmitRequest(task=spec), tasks_pb2.SubmitResponse
        )
        if told.reason is not ErrorReason.CROSS_SHARD_DEPENDENCY and not told.is_lost:
            self.promises.broken("a task waits for its own shard's", f"{told.reason}")

    # --- single tasks ----------------------------------------------------------------------------

    async def get(self, task_id: int, owner: ShardWorld, who: str) -> None:
        """Looks at a task by its id."""
        request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=task_id))
        told = await self.call(TASKS + "Get", request, task_pb2.TaskInfo, who=who)
        if not self.promises.redirected(told, owner, "get"):
            self.promises.serves(told, "get", (owner,))
            self.promises.found(told, task_id, owner)

    async def get_key(self, key: str, who: str) -> None:
        """Looks at a task by its key, whichever shard has it."""
        before = self.promises.holders(key, who)
        request = tasks_pb2.GetRequest(task=task_pb2.TaskRef(key=key))
        told = await self.call(TASKS + "Get", request, task_pb2.TaskInfo, who=who)
        self.promises.naming(told, "get by key")
        self.promises.serves(told, "get by key", self.promises.asked(told))
        found = 0 if told.message is None else told.message.id
        self.promises.located(told, key, before, found, changes=False)

    async def cancel(self, task_id: int, owner: ShardWorld) -> None:
        """Cancels a task by its id."""
        owner.known.asked_cancel[task_id] = None
        request = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=task_id))
        told = await self.call(TASKS + "Cancel", request, tasks_pb2.CancelResponse)
        self.promises.redirected(told, owner, "cancel")
        self.promises.serves(told, "cancel", (owner,))
        if told.reason is ErrorReason.TASK_UNKNOWN:
            self.promises.broken("a task that is there is known", f"cancel {task_id:x}", owner)
        if told.message is not None and told.message.cancelled:
            owner.oracle.answers.cancelled(task_id)

    async def cancel_key(self, key: str, who: str) -> None:
        """Cancels a task by its key."""
        before = self.promises.holders(key, who)
        for world in self.cluster.worlds:
            world.known.asked_cancel[key] = None
        request = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(key=key))
        told = await self.call(TASKS + "Cancel", request, tasks_pb2.CancelResponse, who=who)
        if who != "cert":
            self.promises.serves(told, "cancel by key", self.promises.asked(told))
        self.promises.located(told, key, before, 0, changes=True)
        if told.message is not None and told.message.cancelled:
            self.promises.cancelled(key, who)

    # --- many ------------------------------------------------------------------------------------

    async def walk(self, who: str, newest_first: bool, limit: int) -> None:
        """Reads a listing page by page, each from any server."""
        before = self.promises.ids(who)
        seen: list[int] = []
        missing: set[str] = set()
        after = tries = 0
        while True:
            request = tasks_pb2.ListTasksRequest(
                after=after, limit=limit, newest_first=newest_first
            )
            told = await self.call(
                TASKS + "ListTasks", request, tasks_pb2.ListTasksResponse, who=who
            )
            self.promises.naming(told, "list", is_part=True)
            self.promises.serves(told, "list", (told.entry,))
            if told.message is None:
                tries += 1
                if not told.is_lost or tries > WALK_TRIES:
                    self.promises.broken("listings are answered", f"{told.code} {told.reason}")
                    return
                await self.pause()
                continue
            missing.update(told.missing)
            self._in_order(after, [info.id for info in told.message.tasks], newest_first)
            for info in told.message.tasks:
                owner = self.cluster.of_id(info.id)
                if owner is None:
                    self.promises.broken("an id carries its shard's number", f"{info.id:x}")
                else:
                    owner.oracle.answers.saw(info.id, info.status, info.attempt)
                seen.append(info.id)
            after = told.message.next_after
            if not after:
                break
        self.promises.walked(who, before, seen, missing)

    def _in_order(self, after: int, ids: list[int], newest_first: bool) -> None:
        last = after
        for task_id in ids:
            if last and (task_id >= last if newest_first else task_id <= last):
                self.promises.broken("pages are in order", f"{task_id:x} after {last:x}")
            last = task_id

    async def snapshot(self) -> None:
        """Looks at the counts of all shards."""
        told = await self.call(ADMIN + "Snapshot", EMPTY, admin_pb2.SnapshotResponse, who="ops")
        self.promises.naming(told, "snapshot")
        self.promises.serves(told, "snapshot", (told.entry,))
        if told.message is not None:
            expected = [
                pool
                for world in self.cluster.worlds
                if world.name not in told.missing
                for pool in world.pools
            ]
            pools = [pool.name for pool in told.message.pools]
            if len(set(pools)) != len(pools) or not set(expected) <= set(pools):
                self.promises.broken(
                    "a snapshot has every shard's pools", f"{pools}, without {told.missing}"
                )

    async def list_workers(self) -> None:
        """Looks at the workers of all shards."""
        told = await self.call(
            ADMIN + "ListWorkers", EMPTY, admin_pb2.ListWorkersResponse, who="ops"
        )
        self.promises.naming(told, "workers")
        self.promises.serves(told, "workers", (told.entry,))

    # --- schedules -------------------------------------------------------------------------------

    async def put_schedule(self, name: str, pool: str) -> None:
        """Puts a schedule, until it is acknowledged or somebody tires of it."""
        owner = self.cluster.owners[pool]
        template = task_pb2.TaskSpec(pool=pool, payload=name.encode())
        request = admin_pb2.RecurringRequest(name=name, cron="*/15 * * * * *", template=template)
        for _ in range(TRIES):
            told = await self.call(ADMIN + "AddRecurring", request, task_pb2.Empty, who="ops")
            self.promises.redirected(told, owner, "schedule")
            self.promises.serves(told, "schedule", (owner,))
            if told.message is not None:
                self.promises.schedules[name] = owner
                return
            await self.pause()

    async def list_schedules(self) -> None:
        """Looks at the schedules of all shards."""
        before = dict(self.promises.schedules)
        told = await self.call(
            ADMIN + "ListRecurring", EMPTY, admin_pb2.ListRecurringResponse, who="ops"
        )
        self.promises.naming(told, "schedules")
        self.promises.serves(told, "schedules", (told.entry,))
        if told.message is not None:
            there = [one.name for one in told.message.schedules]
            for name, world in before.items():
                is_kept = name in self.promises.schedules  # else it was removed meanwhile
                if is_kept and name not in there and world.name not in told.missing:
                    self.promises.broken("a listing leaves nothing out", f"schedule {name}", world)

    async def remove_schedule(self, name: str, pool: str) -> None:
        """Removes a schedule, however long it takes."""
        request = admin_pb2.RemoveRecurringRequest(name=name, pool=pool)
        self.promises.schedules.pop(name, None)
        while True:
            told = await self.call(
                ADMIN + "RemoveRecurring", request, admin_pb2.RemoveRecurringResponse, who="ops"
            )
            if told.message is not None or self.cluster.is_broken:
                return
            await self.pause()

    # --- waiting ---------------------------------------------------------------------------------

    async def wait(self, targets: list[int]) -> None:
        """Waits for the ends of tasks of several shards, until it has them all."""
        self._waits += 1
        name = f"wait {self._waits} for {[f'{target:x}' for target in targets]}"
        self.waiting[name] = None
        left = dict.fromkeys(targets)
        while left:
            await self._wait_once(left)
            await self.pause()
        del self.waiting[name]

    async def _wait_once(self, left: dict[int, None]) -> None:
        request = tasks_pb2.WaitManyRequest(ids=list(left), timeout_s=20)
        line = self.line(self.anywhere(), "all")
        call = line.begin(TASKS + "WaitMany", request.SerializeToString(), None, metadata_of("all"))
        try:
            while (content := await call.next()) is not None:
                told = tasks_pb2.TaskResults.FromString(content)
                for result in told.results:
                    self._ended(result)
                    left.pop(result.id, None)
                for error in told.errors:
                    self._unheard(error)
        except AioRpcError:
            return  # whoever told it is gone: it asks again
        finally:
            call.leave()

    def _ended(self, result: task_pb2.TaskResult) -> None:
        world = self.cluster.of_id(result.id)
        if world is None or result.status < FIRST_TERMINAL:
            self.promises.broken("a wait ends with an end", f"{result}")
            return
        world.oracle.answers.saw(result.id, result.status, 0)
        if result.HasField("output"):
            task_id, _, attempt = result.output.decode().partition("/")
            done = (result.id, int(attempt)) in world.known.succeeded
            if int(task_id) != result.id or not done:
                self.promises.broken("an output is the one that was reported", f"{result}", world)

    def _unheard(self, error: tasks_pb2.WaitError) -> None:
        refusal = read_status(error.status)
        if refusal is None or refusal.reason is ErrorReason.TASK_UNKNOWN:
            self.promises.broken("a task that is there is known", f"wait: {error}")

    def streaming(self, entry: ShardWorld, request: tasks_pb2.WatchRequest) -> Call:
        """Begins to watch at a shard's server."""
        content = request.SerializeToString()
        line = self.line(entry, "all")
        return line.begin(TASKS + "WatchBatches", content, None, metadata_of("all"))


def metadata_of(who: str) -> Pairs:
    """What a caller sends along."""
    if who == "cert":
        return ()
    return (("authorization", f"Bearer {TOKENS[who][1]}"),)


def _missing(metadata: Pairs) -> tuple[str, ...]:
    names = dict(metadata).get(MISSING_KEY, "")
    return tuple(names.split(",")) if names else ()
