"""The campaign of faults between hosts: a short form of it, and what its parts owe."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

import pytest

from tests.campaigns import _page, hosts
from tests.campaigns._hosts_play import STORES
from tests.campaigns._hosts_wire import Rule, Wire

HERE, THERE = "10.0.0.1", "10.0.0.2"


def packet(target: str, content: bytes = b"content") -> bytes:
    """An IP packet for somebody."""
    return bytes([0x45]) + bytes(15) + socket.inet_aton(target) + content


@pytest.fixture
def ends() -> tuple[int, int]:
    """Two ends of a pipe: what a wire writes into the second can be read from the first."""
    return os.pipe()


def test_a_wire_delays_doubles_and_loses_by_its_rules(ends: tuple[int, int]) -> None:
    """Each packet comes as often and as late as the rule of its direction says."""
    reading, writing = ends
    os.set_blocking(reading, False)
    wire = Wire({HERE: writing, THERE: writing}, random.Random(1))
    wire.rule('{"10.0.0.1>10.0.0.2": {"delay_ms": 300, "duplicate": 1}}')
    wire.take(HERE, packet(THERE), now=10.0)
    assert wire.give(10.2) == pytest.approx(0.1)
    assert wire.give(10.31) is None
    assert os.read(reading, 1000) == packet(THERE) * 2
    wire.rule('{"10.0.0.1>10.0.0.2": {"loss": 1}}')
    wire.take(HERE, packet(THERE), now=11.0)
    wire.take(THERE, packet(HERE), now=11.0)
    assert wire.give(11.0) is None
    assert os.read(reading, 1000) == packet(HERE)


def test_a_wire_lets_packets_overtake_each_other(ends: tuple[int, int]) -> None:
    """Of many packets some come in another order than they were sent, and none is missing."""
    reading, writing = ends
    wire = Wire({THERE: writing}, random.Random(1))
    wire.rule('{"10.0.0.1>10.0.0.2": {"reorder": 0.3}}')
    sent = [packet(THERE, bytes([number])) for number in range(100)]
    for number, each in enumerate(sent):
        wire.take(HERE, each, now=number / 1000)
    assert wire.give(10.0) is None
    came = os.read(reading, 100_000)
    size = len(sent[0])
    pieces = [came[at : at + size] for at in range(0, len(came), size)]
    assert sorted(pieces) == sent
    assert pieces != sent


def test_what_is_no_rule_is_refused() -> None:
    """A rule with a field that there is not would spoil nothing, unseen."""
    assert Rule().delays_s(random.Random(1)) == [0]
    with pytest.raises(ValueError, match="losss"):
        Wire({}, random.Random(1)).rule('{"a>b": {"losss": 1}}')


def test_without_go_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a judge nothing is played, and nobody has to guess why."""
    monkeypatch.setenv("PATH", "")
    assert hosts.main(["--relays"]) == 2
    assert "Go: install it" in capsys.readouterr().err


@pytest.mark.parametrize("store", STORES)
def test_a_fault_between_hosts_breaks_no_promise(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The leader is cut off from all who call, and what they saw can be explained."""
    fault = "leader-cut-from-callers"
    code = hosts.main(
        ["--store", store, "--episodes", "1", "--only", fault, "--keep", str(tmp_path)]
    )
    told = capsys.readouterr().out
    assert code == 0, told
    assert f"  {fault}: " in told


def test_the_page_shows_the_results_beside_it() -> None:
    """A table that somebody typed would not be what was measured."""
    page = _page.PAGE.read_text(encoding="utf-8")
    assert _page.render(page) == page
