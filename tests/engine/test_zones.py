"""Decides whether zones come from the bundled data alone, and whether no change is overlooked."""

from __future__ import annotations

import struct
import subprocess
import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest

from cronoq_server.engine.cron import parse
from cronoq_server.engine.model import ErrorReason, Refusal
from cronoq_server.engine.zones import Change, load_zone
from tests.engine.cron_oracle import offset_changes, unix

NAMES = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
SHORTEST = 6 * 86_400
"""Twice the distance of the probes that look for changes."""

PRINT_NEXT = """
from cronoq_server.engine.cron import occurrence_key, parse
for zone in ("Europe/Berlin", "Australia/Lord_Howe"):
    print(occurrence_key("", parse("0 12 * * *", zone).next_after(1_790_000_000 * 10**9)))
"""


def footer(name: str) -> str:
    """The rule at the end of a zone's compiled file; it has a comma if it changes the offset."""
    content = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    return content.rstrip().rpartition(b"\n")[2].decode()


def compiled_changes(name: str) -> list[Change]:
    """The changes of offset that a zone's compiled file lists (RFC 9636, version 2 block)."""
    content = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()

    def counts(at: int) -> tuple[int, ...]:
        return struct.unpack(">6l", content[at + 20 : at + 44])

    utc, standard, leaps, times, types, letters = counts(0)
    start = 44 + 5 * times + 6 * types + letters + 8 * leaps + standard + utc
    _, _, _, times, types, _ = counts(start)
    start += 44
    instants = struct.unpack_from(f">{times}q", content, start)
    kinds = content[start + 8 * times : start + 9 * times]
    offsets = [
        struct.unpack_from(">l", content, start + 9 * times + 6 * kind)[0] for kind in range(types)
    ]
    readings = [offsets[0], *(offsets[kind] for kind in kinds)]
    return [
        Change(at, before, after)
        for at, (before, after) in zip(instants, pairwise(readings), strict=True)
        if before != after
    ]


def test_no_zone_changes_its_offset_twice_between_two_probes() -> None:
    """In all bundled zones changes are so far apart that probing finds each of them."""
    for name in NAMES:
        for earlier, later in pairwise(compiled_changes(name)):
            assert later.at - earlier.at > SHORTEST, (name, earlier, later)


def test_no_rule_for_the_future_changes_an_offset_twice_between_two_probes() -> None:
    """The same holds for the yearly rules by which the files go on after their last change."""
    by_rule = {footer(name): name for name in NAMES}
    assert len(by_rule) > 40
    for rule, name in by_rule.items():
        changes = offset_changes(name, unix("2090-01-01"), unix("2092-01-01"))
        assert len(changes) == (4 if "," in rule else 0), (name, rule)
        assert all(later - earlier > SHORTEST for earlier, later in pairwise(changes)), (name, rule)


@pytest.mark.parametrize(
    "name",
    [
        "Africa/Cairo",
        "Africa/Casablanca",
        "America/Noronha",
        "Asia/Baku",
        "Asia/Gaza",
        "Asia/Kathmandu",
        "Australia/Lord_Howe",
        "Europe/Dublin",
        "Pacific/Apia",
        "Pacific/Kwajalein",
    ],
)
def test_changes_are_those_of_the_compiled_data(name: str) -> None:
    """Probing finds each change of a century to the second, as far as the file lists them."""
    start, stop = unix("1937-01-01"), unix("2037-01-01")
    zone = load_zone(name)
    assert zone is not None
    expected = [change for change in compiled_changes(name) if start <= change.at <= stop]
    assert expected == zone.changes_between(start, expected[-1].at)
    for change in expected:
        assert [change] == zone.changes_between(change.at, change.at)
        assert zone.changes_between(change.at + 1, change.at + 1) == []
        assert (zone.offset_at(change.at - 1), zone.offset_at(change.at)) == change[1:]


def test_a_change_either_skips_or_repeats() -> None:
    """What clocks skip when they go forward, they repeat when they go back."""
    assert (Change(0, 3600, 7200).skipped, Change(0, 3600, 7200).repeated) == (3600, 0)
    assert (Change(0, 7200, 5400).skipped, Change(0, 7200, 5400).repeated) == (0, 1800)


@pytest.mark.regression("R26")
@pytest.mark.parametrize("zone_files", ["none", "wrong"])
def test_zones_do_not_depend_on_the_machine(zone_files: str, tmp_path: Path) -> None:
    """Without system zone files, and with wrong ones, the bundled data counts."""
    if zone_files == "wrong":
        for name in ("Europe/Berlin", "Australia/Lord_Howe"):
            impostor = tmp_path / name
            impostor.parent.mkdir()
            source = resources.files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo")
            impostor.write_bytes(source.read_bytes())
    environment = {"PYTHONTZPATH": str(tmp_path)}
    printed = subprocess.run(
        [sys.executable, "-c", PRINT_NEXT], env=environment, check=True, capture_output=True
    )
    assert printed.stdout.decode().split() == ["@2026-09-22T10:00:00Z", "@2026-09-22T01:30:00Z"]


@pytest.mark.regression("R26")
@pytest.mark.parametrize(
    "name",
    ["Mars/Olympus", "europe/berlin", "../zones", "Europe", "Factory", "UTC+1", " UTC", "\0"],
)
def test_unknown_zone_is_refused(name: str) -> None:
    """What is no zone name is refused by name, and never taken for UTC."""
    refusal = parse("0 0 * * *", name)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is ErrorReason.ZONE_UNKNOWN
    assert repr(name) in refusal.message


def test_every_bundled_zone_can_be_loaded() -> None:
    """Each listed name but the placeholder gives a zone."""
    assert [name for name in NAMES if load_zone(name) is None] == ["Factory"]
