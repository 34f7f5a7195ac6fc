"""The same small jobs through other job systems and through ours, in turns on the same machine.

    ./justw bench peers                        all of them, five rounds, under 20 minutes
    ./justw bench peers --quick                two short rounds, each with its usual setting
    ./justw bench peers --peers rq,river       only these; --list names them

A job does nothing, has a payload of 200 characters and puts out eight. Peers run with their durable
settings: jobs are acknowledged after the work, Redis syncs its log before it answers, PostgreSQL
every commit. First each is tried with two or three settings of its workers, and keeps the best.
Then in each round every peer has its turn, alone on the machine, with fresh data; what is shown are
medians. The first run installs the peers (once) in the cache folder; one that cannot be
installed or fails is listed with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from tests.bench.environment import describe, print_result, save
from tests.bench.peers import brokers, report
from tests.bench.peers.measuring import Sizes, attempt, running, turn
from tests.bench.peers.registry import BY_NAME, PEERS, Peer, Setting
from tests.bench.peers.talking import PeerFailed
from tests.stores.pg import Cluster, NotInstalled, running_cluster

FULL = Sizes(seconds=1.0, idle=100)
QUICK = Sizes(seconds=0.5, idle=30)
GIVE_UP = 2


@dataclasses.dataclass(slots=True)
class Entry:
    """What has been found about a peer so far."""

    peer: Peer
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    tried: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def setting(self) -> Setting:
        """The quickest of those that have been tried; without a try, the usual one."""
        return max(self.peer.settings, key=lambda setting: self.tried.get(setting.text, 0))

    def result(self) -> dict[str, Any]:
        """For JSON: how it was run, and medians over the rounds."""
        peer = self.peer
        head = {"name": peer.name, "title": peer.title}
        if not self.rounds:
            return {**head, "error": self.errors[-1]}
        names = dict.fromkeys(name for figures in self.rounds for name in figures)
        medians = {
            name: statistics.median(each[name] for each in self.rounds if name in each)
            for name in names
        }
        about = {
            "broker": peer.broker,
            "workers": self.setting.text,
            "settings": self.tried,
            "versions": self.versions,
            "bulk": peer.bulk,
            "keeps": peer.keeps,
            "durable": peer.durable,
            "mix": peer.mix,
        }
        return {**head, **about, **medians, "rounds": self.rounds, "errors": self.errors}


def say(text: str) -> None:
    """Tells whoever waits how far it has come."""
    print(text, file=sys.stderr, flush=True)


def installed(peers: Sequence[Peer]) -> list[Entry]:
    """Puts peers in place; those that cannot be have an error."""
    entries = []
    for peer in peers:
        entry = Entry(peer)
        entries.append(entry)
        say(f"{peer.title}: in place")
        try:
            peer.install()
        except PeerFailed as error:
            entry.errors += [str(error)] * GIVE_UP
            say(f"{peer.title}: {error}")
    return entries


def take_turn(entry: Entry, cluster: Cluster | None, sizes: Sizes) -> None:
    """One turn of one peer; a failure is noted down."""
    known = entry.rounds[-1] if entry.rounds else {}
    try:
        with running(entry.peer, entry.setting, cluster) as system:
            entry.versions = system.versions
            found = turn(system, sizes, known, mixed=bool(entry.peer.mix))
    except PeerFailed as error:
        entry.errors.append(str(error))
        say(f"{entry.peer.title}: {error}")
    else:
        entry.rounds.append(found)
        say(f"{entry.peer.title}: {found['through_bulk_per_s']:,.0f} jobs/s end to end")


def choose(entry: Entry, cluster: Cluster | None, sizes: Sizes) -> None:
    """Tries the settings of a peer's workers."""
    for setting in entry.peer.settings:
        try:
            entry.tried[setting.text] = round(attempt(entry.peer, setting, cluster, sizes))
        except PeerFailed as error:
            say(f"{entry.peer.title}, {setting.text}: {error}")
        else:
            say(f"{entry.peer.title}, {setting.text}: {entry.tried[setting.text]:,.0f} jobs/s")


def _cluster(stack: contextlib.ExitStack, peers: Sequence[Peer]) -> Cluster | None:
    """A PostgreSQL that syncs, if anyone needs one."""
    if not any("postgres" in peer.broker for peer in peers):
        return None
    return stack.enter_context(running_cluster(fsync=True))


def _chosen(names: str) -> list[Peer]:
    unknown = sorted(set(names.split(",")) - BY_NAME.keys())
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no peer {', '.join(unknown)}; there are {', '.join(BY_NAME)}"
        )
    return [BY_NAME[name] for name in names.split(",")]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./justw bench peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peers", type=_chosen, default=list(PEERS), help="names, with commas")
    parser.add_argument("--rounds", type=int, help="5, or 2 with --quick")
    parser.add_argument("--seconds", type=float, help="of each part")
    parser.add_argument("--tasks", type=int, help="at most in each part")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--list", action="store_true", help="name the peers and end")
    parser.add_argument("--save", action="store_true", help="for the documentation")
    parser.add_argument("--json", action="store_true", help="JSON, also on a terminal")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark and prints what it found."""
    given = _parse(arguments)
    if given.list:
        print("\n".join(f"{peer.name:20} {peer.title}" for peer in PEERS))
        return 0
    sizes = QUICK if given.quick else FULL
    if given.seconds:
        sizes = dataclasses.replace(sizes, seconds=given.seconds)
    if given.tasks:
        sizes = dataclasses.replace(sizes, most=given.tasks)
    rounds = given.rounds or (2 if given.quick else 5)
    entries = installed(given.peers)
    result = {**describe("peers"), "rounds": rounds, "seconds": sizes.seconds}
    with contextlib.ExitStack() as stack:
        try:
            cluster = _cluster(stack, given.peers)
        except NotInstalled as error:
            say(str(error))
            return 1
        for entry in () if given.quick else entries:
            if not entry.errors:
                choose(entry, cluster, sizes)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for entry in entries:
                if len(entry.errors) < GIVE_UP:
                    take_turn(entry, cluster, sizes)
    result |= {"brokers": brokers.versions(), "peers": [entry.result() for entry in entries]}
    if given.save:
        save(result, "peers")
        report.draw(result)
    print_result(result, report.rows(result), as_json=given.json)
    return 0
