"""Decides in which order scenarios are played, how many at once, and what a run comes to."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

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

# Those that wait longest begin first, so that none of them is the last.
SLOW_S = 20.0


async def play_one(scenario: Scenario, language: str, setting: Setting) -> Outcome:
    """Plays one scenario for one language."""
    begun = monotonic()
    failure = ""
    try:
        await Stage(scenario, language, setting).play(VERBS)
    except Failure as error:
        failure = str(error)
    return Outcome(scenario, language, failure, monotonic() - begun)


async def play_all(
    scenarios: Sequence[Scenario],
    languages: Sequence[Language],
    known: Sequence[Known],
    jobs: int,
    announce: Callable[[Outcome], None],
) -> list[Outcome]:
    """Plays every scenario for every language that it is for.

    Args:
        scenarios: What to play.
        languages: For whom.
        known: What is known to fail.
        jobs: How many are played at once.
        announce: Told of each outcome as it comes.
    """
    commands = await build(languages)
    with tempfile.TemporaryDirectory(prefix="cronoq-conformance-") as folder:
        setting = Setting(ROOT, commands, make_certificates(Path(folder)), environment())
        pairs = [
            (scenario, language.name)
            for scenario in sorted(scenarios, key=lambda each: -each.patience_s)
            for language in languages
            if scenario.is_for(language.name)
        ]
        gate = asyncio.Semaphore(jobs)

        async def one(scenario: Scenario, language: str) -> Outcome:
            async with gate:
                outcome = await play_one(scenario, language, setting)
            is_known = any(each.language == language and each.is_about(scenario) for each in known)
            outcome = Outcome(scenario, language, outcome.failure, outcome.seconds, is_known)
            announce(outcome)
            return outcome

        outcomes = await asyncio.gather(*(one(*pair) for pair in pairs))
    order = {scenario.full_name: place for place, scenario in enumerate(scenarios)}
    return sorted(outcomes, key=lambda outcome: order[outcome.scenario.full_name])


def environment() -> dict[str, str]:
    """Returns what participants find in their environment besides the runner's."""
    # Loopback goes through no proxy.
    return {"no_proxy": "*", "NO_PROXY": "*", "PYTHONUNBUFFERED": "1"} | {
        name: "" for name in ("http_proxy", "https_proxy", "grpc_proxy") if name in os.environ
    }
