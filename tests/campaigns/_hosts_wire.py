"""A wire between network namespaces that loses, delays, doubles and overtakes packets.

`python -m tests.campaigns._hosts_wire FD=ADDRESS...` passes IP packets between TUN devices, one a
host, until its input ends. Each line of input replaces the rules, a JSON object by
`SOURCE>TARGET`; a pair without a rule has an ideal wire. It stands in for the kernel's netem.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import selectors
import socket
import sys
import time

import msgspec

PACKET_MAX = 65_536


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What befalls the packets of one direction.

    Attributes:
        loss: Share that is lost.
        delay_ms: How late each comes.
        duplicate: Share that comes twice.
        reorder: Share that is held back by up to `held_ms` and so overtaken.
        held_ms: See `reorder`.
    """

    loss: float = 0.0
    delay_ms: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    held_ms: float = 40.0

    def delays_s(self, chance: random.Random) -> list[float]:
        """For how long each copy of a packet is under way; none: it is lost."""
        if chance.random() < self.loss:
            return []
        copies = 2 if chance.random() < self.duplicate else 1
        return [(self.delay_ms + self._held_ms(chance)) / 1000 for _ in range(copies)]

    def _held_ms(self, chance: random.Random) -> float:
        return chance.uniform(0, self.held_ms) if chance.random() < self.reorder else 0.0


class Wire:
    """Passes packets on when they are due."""

    def __init__(self, devices: dict[str, int], chance: random.Random) -> None:
        self._devices = devices
        self._chance = chance
        self._rules: dict[str, Rule] = {}
        self._due: list[tuple[float, int, int, bytes]] = []
        self._number = 0

    def rule(self, text: str) -> None:
        """Takes other rules."""
        self._rules = msgspec.convert(json.loads(text), dict[str, Rule])

    def take(self, source: str, packet: bytes, now: float) -> None:
        """Decides when a packet comes to the host that it is for."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        target = socket.inet_ntoa(packet[16:20])
        if target not in self._devices:
            return
        rule = self._rules.get(f"{source}>{target}", Rule())
        for delay_s in rule.delays_s(self._chance):
            self._number += 1
            heapq.heappush(self._due, (now + delay_s, self._number, self._devices[target], packet))

    def give(self, now: float) -> float | None:
        """Hands over what is due; returns in how many seconds the next is, if any is under way."""
        while self._due and self._due[0][0] <= now:
            _, _, device, packet = heapq.heappop(self._due)
            os.write(device, packet)
        return self._due[0][0] - now if self._due else None


def main(arguments: list[str]) -> int:
    """Passes packets until the input ends."""
    devices = {address: int(fd) for fd, address in (each.split("=") for each in arguments)}
    wire = Wire(devices, random.Random(0))
    with selectors.DefaultSelector() as selector:
        for address, fd in devices.items():
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ, address)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        wait_s: float | None = None
        while True:
            for key, _ in selector.select(wait_s):
                if key.data is None:
                    line = sys.stdin.readline()
                    if not line:
                        return 0
                    wire.rule(line)
                    print("ruled", flush=True)
                else:
                    wire.take(key.data, os.read(key.fd, PACKET_MAX), time.monotonic())
            wait_s = wire.give(time.monotonic())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
