"""Decides in which order scenarios are played, how many at once, and what a run comes to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import grpc

from . import steps_participant, steps_peers, steps_server
from .certificates import make_certificates
from .languages import ROOT, Language, build
from .report import Known, Outcome
from .scenario import Scenario
from .stage import Failure, Setting, Stage, Step

# for_each is the stage's own.
VERBS: Mapping[str, Step] = {
    **steps_participant.STEPS,
    **steps_server.STEPS,
    **steps_peers.STEPS,
}

# What a scenario that is written wrongly, or a server that does not start, comes to.
CLUSTERS_AT_ONCE = 3  # To start a server takes a second of a processor.
# A right SDK can fail a scenario about time beside other load; a wrong one fails it each time.
REPLAYS_MAX = 2
REPLAYED_MAX = 12  # More than these are no accidents.
FAULTS = (LookupError, RuntimeError, TypeError, ValueError, OSError, grpc.RpcError)


async def play_one(scenario: Scenario, language: str, setting: Setting) -> Outcome:
    """Plays one scenario for one language."""
    begun = monotonic()
    failure = ""
    try:
        await Stage(scenario, language, setting).play(VERBS)
    except Failure as error:
        failure = str(error)
    except FAULTS as error:
        failure = f"cannot be played: {type(error).__name__}: {error}"
    return Outcome(scenario, language, failure, monotonic() - begun)


async def play_all(
    scenarios: Sequence[Scenario],
    languages: Sequence[Language],
    known: Sequence[Known],
    jobs: int,
    announce: Callable[[Outcome], None],
    *,
    replays: bool = True,
) -> list[Outcome]:
    """Plays every scenario for every language that it is for.

    Args:
        scenarios: What to play.
        languages: For whom.
        known: What is known to fail.
        jobs: How many are played at once.
        announce: Told of each outcome as it comes.
        replays: Whether scenarios about time that failed are played again, each alone.
    """
    commands = await build(languages)
    with tempfile.TemporaryDirectory(prefix="cronoq-conformance-") as folder:
        setting = Setting(ROOT, commands, make_certificates(Path(folder)), environment())
        # Those that wait longest begin first, so that none of them is the last.
        pairs = [
            (scenario, language.name)
            for scenario in sorted(scenarios, key=lambda each: -each.patience_s)
            for language in languages
            if scenario.is_for(language.name)
        ]
        gate, servers = asyncio.Semaphore(jobs), asyncio.Semaphore(CLUSTERS_AT_ONCE)

        async def one(scenario: Scenario, language: str) -> Outcome:
            servers_first = servers if scenario.cluster is not None else contextlib.nullcontext()
            async with servers_first, gate:
                outcome = await play_one(scenario, language, setting)
            is_known = any(each.language == language and each.is_about(scenario) for each in known)
            outcome = Outcome(scenario, language, outcome.failure, outcome.seconds, is_known)
            announce(outcome)
            return outcome

        outcomes = await asyncio.gather(*(one(*pair) for pair in pairs))
        if replays:
            outcomes = await _replay(outcomes, setting, announce)
    order = {scenario.full_name: place for place, scenario in enumerate(scenarios)}
    return sorted(outcomes, key=lambda outcome: order[outcome.scenario.full_name])


async def _replay(
    outcomes: Sequence[Outcome], setting: Setting, announce: Callable[[Outcome], None]
) -> list[Outcome]:
    """Plays what failed and is about time again, one after another; the last play counts."""
    accidents = [o for o in outcomes if not o.is_good and o.failure and o.scenario.is_timed]
    if len(accidents) > REPLAYED_MAX:
        return list(outcomes)
    kept = [outcome for outcome in outcomes if outcome not in accidents]
    for outcome in accidents:
        for _ in range(REPLAYS_MAX):
            if outcome.failure:
                outcome = await play_one(outcome.scenario, outcome.language, setting)
        announce(outcome)
        kept.append(outcome)
    return kept


def environment() -> dict[str, str]:
    """Returns what participants find in their environment besides the runner's."""
    # Loopback goes through no proxy.
    return {"no_proxy": "*", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"} | {
        name: "" for name in ("http_proxy", "https_proxy", "grpc_proxy") if name in os.environ
    }
