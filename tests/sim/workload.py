"""What a seed draws: settings, tasks, workers, callers, operators, faults, and when.

A plan is drawn whole before the world begins, so that it does not depend on what happens in it;
only the details of single faults and handlers are drawn on the way.
"""

from __future__ import annotations

import random
from typing import Any

from cronoq_server.engine.cron import CatchUp, Fold, Gap
from cronoq_server.engine.events import SubmitMode
from cronoq_server.engine.model import (
    MILLISECOND,
    SECOND,
    Dependency,
    Duration,
    EdgeCondition,
    EngineSettings,
    MissPolicy,
    Overflow,
    Overlap,
    PoolSettings,
    ResourceSettings,
    RetryPolicy,
    ScheduleSpec,
    TaskRef,
    TaskSpec,
)
from tests.sim.worker import Temper

LABELS = (("zone", "a"), ("zone", "b"), ("gpu", ""))
KINDS = ("default", "mail", "video", "report")
TENANTS = ("ann", "bob", "cy")
CRONS = (
    "*/5 * * * * *",
    "*/20 * * * * *",
    "* * * * *",
    "*/2 * * * *",
    "30 */3 * * * *",
    "0 * * * *",
)
ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe")


class Draw:
    """What one seed has drawn.

    Attributes:
        chance: Where it comes from; the world goes on with it.
        settings: The engine's settings.
        remembers: Whether look-ups before submits are worth it.
        has: Features that this seed has.
        length: How long callers and faults go on.
        tasks: How many tasks callers hand in.
        temper: How handlers behave.
    """

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.has = {
            name: chance.random() < odds
            for name, odds in (
                ("labels", 0.5),
                ("kinds", 0.5),
                ("resources", 0.7),
                ("dependencies", 0.75),
                ("starts", 0.5),
                ("delays", 0.6),
                ("deadlines", 0.5),
                ("expiries", 0.4),
                ("schedules", 0.65),
                ("shedding", 0.4),
                ("tight", 0.4),
                ("fair", 0.5),
                ("operators", 0.6),
                ("bulk", 0.3),
                ("redrives", 0.6),
                ("deletes", 0.15),
                ("jumps", 0.35),
                ("old workers", 0.3),
                ("watch", 0.5),
            )
        }
        self.length: Duration = chance.randrange(60, 150) * SECOND
        self.tasks = chance.randrange(440, 520)
        self.remembers = chance.random() < 0.5
        self.settings = self._settings()
        self.temper = Temper(
            fails=chance.choice((0, 5, 15, 30)),
            breaks=chance.choice((0, 2, 5)),
            refuses=chance.choice((0, 3, 10)),
            cancels=chance.choice((0, 2)),
            slow=chance.choice((0, 2, 6)),
        )
        self._keys: list[str] = []
        self._numbers = 0

    # --- settings --------------------------------------------------------------------------------

    def _settings(self) -> EngineSettings:
        chance = self.chance
        return EngineSettings(
            pools=self._pools(),
            resources=self._resources(),
            shard=chance.choice((None, None, 1, 200)),
            max_pending_total=chance.choice((10_000, 10_000, 60 if self.has["tight"] else 10_000)),
            # What the engine forgets must be known to the store.
            key_retention=(chance.choice((90, 600, 3600)) if self.remembers else 3600) * SECOND,
            finished_max=chance.choice((1_000_000, 40)) if self.remembers else 1_000_000,
            store_remembers=self.remembers,
            catch_up_max=chance.choice((3, 100)),
            backfill_max=chance.choice((5, 100)),
        )

    def _pools(self) -> tuple[PoolSettings, ...]:
        chance = self.chance
        ttl = chance.choice((3, 6, 15)) * SECOND
        backoff = chance.choice((100 * MILLISECOND, SECOND))
        retry = RetryPolicy(chance.choice((1, 3, 5)), backoff, 2.0, 5 * SECOND, True)
        tight = chance.choice((8, 20)) if self.has["tight"] else 10_000
        pools = [
            PoolSettings("main", max_pending=tight, lease_ttl=ttl, retry=retry),
            PoolSettings(
                "side",
                max=chance.choice((4, 8, 12)),
                lease_ttl=ttl,
                retry=retry,
                default_duration=chance.choice((200 * MILLISECOND, SECOND)),
                await_unknown_dependencies=chance.choice((0, 3, 20)) * SECOND,
                max_hold=chance.choice((0, 2, 10)) * SECOND,
                reservable_fraction=chance.choice((0.5, 1.0)),
                max_slots_per_worker=chance.choice((None, 3)),
            ),
        ]
        if self.has["fair"]:
            weights = (("ann", 1.0), ("bob", chance.choice((1.0, 2.0, 4.0))), ("cy", 0.5))
            pools.append(
                PoolSettings(
                    "fair", lease_ttl=ttl, retry=retry, fair_share=True, tenant_weights=weights
                )
            )
        if self.has["shedding"]:
            policy = chance.choice((Overflow.SHED_LOWEST, Overflow.SHED_OLDEST, Overflow.REJECT))
            pools.append(
                PoolSettings(
                    "shed",
                    max_pending=chance.choice((6, 15)),
                    overflow=policy,
                    lease_ttl=ttl,
                    await_unknown_dependencies=5 * SECOND,
                )
            )
        return tuple(pools)

    def _resources(self) -> tuple[ResourceSettings, ...]:
        chance = self.chance
        if not self.has["resources"]:
            return ()
        return (
            ResourceSettings("db", permits=chance.choice((1, 2, 4))),
            ResourceSettings("disk", permits=chance.choice((2, 3))),
            ResourceSettings(
                "api",
                kind="token_bucket",
                rate=chance.choice((0.5, 2.0, 7.3)),
                burst=chance.choice((2, 5)),
            ),
            ResourceSettings("customer", permits=1, per_value=True),
            ResourceSettings("mailbox", kind="token_bucket", rate=1.0, burst=2, per_value=True),
        )

    # --- tasks -----------------------------------------------------------------------------------

    def spec(self, pool: str = "", key: str | None = None) -> TaskSpec:
        """One task with features of this seed."""
        chance, has = self.chance, self.has
        pool = pool or chance.choice(self.settings.pools).name
        given: dict[str, Any] = {}
        # Whoever waits in the fair pool may run anywhere in it, so that shares can be compared.
        fair = pool == "fair"
        if has["kinds"] and chance.random() < 0.5 and not fair:
            given["kind"] = chance.choice(KINDS)
        if has["labels"] and chance.random() < 0.3 and not fair:
            given["labels"] = (chance.choice(LABELS),)
        if has["resources"] and chance.random() < 0.35 and not fair:
            given["resources"] = self._amounts()
        if has["deadlines"] and chance.random() < 0.2:
            given["deadline_in"] = chance.randrange(1, 40) * SECOND
        if has["expiries"] and chance.random() < 0.15:
            given["expires_in"] = chance.randrange(1, 60) * SECOND
        if has["fair"]:
            given["tenant"] = chance.choice(("", *TENANTS, *TENANTS))
        self._time(given)
        if chance.random() < 0.25:
            given["timeout"] = chance.choice((500 * MILLISECOND, 3 * SECOND, 10 * SECOND))
        if chance.random() < 0.2:
            given["retry"] = RetryPolicy(
                max_attempts=chance.choice((0, 1, 2, 6)),
                initial_backoff=chance.choice((0, 50 * MILLISECOND)),
                multiplier=chance.choice((0.0, 1.0, 3.0)),
            )
        if chance.random() < 0.3:
            given["duration_hint"] = chance.choice((100 * MILLISECOND, SECOND, 8 * SECOND))
        if key is None and chance.random() < 0.4:
            key = self.new_key()
        return TaskSpec(
            pool,
            given.pop("kind", "default"),
            payload=b"x" * chance.randrange(8),
            priority=chance.choice((1, 2, 3, 3, 3, 4, 4)),
            key=key or "",
            tags=(("batch", str(chance.randrange(3))),) if chance.random() < 0.2 else (),
            **given,
        )

    def _time(self, given: dict[str, Any]) -> None:
        chance = self.chance
        draw = chance.random()
        if self.has["starts"] and draw < 0.15:
            given["start_in"] = chance.randrange(0, 40 * 1000) * MILLISECOND
            given["tolerance"] = chance.choice((0, 100 * MILLISECOND, SECOND, 5 * SECOND))
            given["on_miss"] = int(chance.choice(tuple(MissPolicy)))
        elif self.has["delays"] and draw < 0.35:
            given["delay"] = chance.randrange(0, 30 * 1000) * MILLISECOND

    def _amounts(self) -> tuple[tuple[str, int], ...]:
        chance = self.chance
        amounts = {}
        for name in ("db", "disk", "api"):
            if chance.random() < 0.4:
                amounts[name] = chance.choice((1, 1, 1, 2))
        if amounts.get("db", 0) > self.settings.resources[0].permits:
            amounts["db"] = 1
        if chance.random() < 0.3:
            amounts[f"customer:{chance.randrange(3)}"] = 1
        if chance.random() < 0.15:
            amounts[f"mailbox:{chance.randrange(2)}"] = 1
        return tuple(sorted(amounts.items()))

    def new_key(self) -> str:
        """A key, new or, now and then, used before."""
        if self._keys and self.chance.random() < 0.1:
            return self.chance.choice(self._keys)
        self._numbers += 1
        key = f"key-{self._numbers}"
        self._keys.append(key)
        return key

    def old_key(self) -> str:
        """A key that was drawn before, or one that nobody will ever use."""
        if not self._keys or self.chance.random() < 0.03:
            return "nobody"
        return self.chance.choice(self._keys)

    def batch(self) -> tuple[list[TaskSpec], SubmitMode]:
        """Tasks of one call, and how they belong together."""
        chance = self.chance
        mode = chance.choice((SubmitMode.ONE, SubmitMode.MANY, SubmitMode.BATCH))
        if mode == SubmitMode.ONE:
            return [self.with_parents(self.spec(), [])], mode
        pool = chance.choice(self.settings.pools).name if chance.random() < 0.5 else ""
        specs: list[TaskSpec] = []
        names: dict[str, None] = {}
        for _ in range(chance.randrange(2, 12)):
            spec = self.spec(pool)
            if spec.key in names:
                spec = self.spec(pool, "")
            if spec.key:
                names[spec.key] = None
            inside = list(names) if mode == SubmitMode.BATCH else []
            specs.append(self.with_parents(spec, [k for k in inside if k != spec.key]))
        if mode == SubmitMode.BATCH:
            chance.shuffle(specs)
        return specs, mode

    def with_parents(self, spec: TaskSpec, inside: list[str]) -> TaskSpec:
        """The task with dependencies, if it has any; ids are filled in when it is handed in."""
        chance = self.chance
        if not self.has["dependencies"] or chance.random() > 0.35:
            return spec
        edges = []
        for _ in range(chance.choice((1, 1, 2, 3))):
            draw = chance.random()
            target: TaskRef
            if inside and draw < 0.6:
                target = chance.choice(inside)
            elif draw < 0.8:
                # A place among the acknowledged ids, from the end.
                target = -1 - int(chance.random() * 12)
            else:
                target = self.old_key() if chance.random() < 0.7 else self.new_key()
            if target != spec.key:
                condition = chance.choice(
                    (EdgeCondition.ON_SUCCESS, EdgeCondition.ON_COMPLETE, EdgeCondition.ON_FAILURE)
                )
                edges.append(Dependency(target, condition))
        given = {name: getattr(spec, name) for name in spec.__struct_fields__}
        return TaskSpec(**{**given, "dependencies": tuple(edges)})

    # --- schedules -------------------------------------------------------------------------------

    def schedule(self, number: int) -> ScheduleSpec:
        """A schedule; its overlap depends on its name alone, whenever it is put."""
        chance = self.chance
        template = self.spec(chance.choice(("main", "side")), "")
        given = {name: getattr(template, name) for name in template.__struct_fields__}
        for name in ("start_in", "delay", "expires_in"):
            given[name] = None
        given["key"] = chance.choice(("", "", f"tick-{number}"))
        return ScheduleSpec(
            f"schedule-{number}",
            chance.choice(CRONS),
            TaskSpec(**given),
            zone=chance.choice(ZONES),
            overlap=tuple(Overlap)[number % 4],
            gap=int(chance.choice(tuple(Gap))),
            fold=int(chance.choice(tuple(Fold))),
            catch_up=int(chance.choice(tuple(CatchUp))),
        )
