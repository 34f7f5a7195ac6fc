"""Decides how one machine plays several hosts, and how what they say to each other is spoilt.

Each host is a network namespace with a veth of its own on one bridge, without any way out. What
is cut or lost is dropped by the firewall of the host that it is for, so that whoever sends hears
nothing. What is delayed, doubled or overtaken is routed through `_hosts_wire` meanwhile, on every
kernel, whether it has netem or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from tests.campaigns._hosts_wire import Rule
from tests.e2e.replicas import ROOT

SUBNET = "10.97.0"
_SET_DEVICE = 0x400454CA
_TUN_WITHOUT_HEADER = 0x0001 | 0x1000


class NotPermitted(Exception):
    """This machine, or this user, has no network namespaces; says what is missing."""


class Network:
    """Hosts with an address each, and what befalls packets between them.

    Attributes:
        addresses: By host.
        knows_packets: Whether packets can be doubled and overtaken.
    """

    knows_packets = True

    def __init__(self, hosts: Iterable[str]) -> None:
        self.addresses = {host: f"{SUBNET}.{n}" for n, host in enumerate(hosts, 1)}
        self._prefix = f"cronoq{os.getpid()}"
        self._wire: Process | None = None
        self._routed: set[tuple[str, str]] = set()

    def wrapper(self, host: str) -> tuple[str, ...]:
        """A command that runs another one on a host, under the same process id."""
        return ("ip", "netns", "exec", self._name(host))

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Network]:
        """The hosts are there while the context is open.

        Raises:
            NotPermitted: There are no namespaces to be had.
        """
        try:
            self._make()
            await self._lay_wire()
            yield self
        finally:
            if self._wire is not None:
                assert self._wire.stdin is not None
                self._wire.stdin.close()
                await self._wire.wait()
            self._remove()

    def _make(self) -> None:
        for tool in ("ip", "iptables"):
            if shutil.which(tool) is None:
                raise NotPermitted(f"the command {tool} is missing")
        lan = self._name("lan")
        _run("ip", "netns", "add", lan)
        _run("ip", "-n", lan, "link", "add", "lan", "type", "bridge")
        _run("ip", "-n", lan, "link", "set", "lan", "up")
        for host, address in self.addresses.items():
            name = self._name(host)
            _run("ip", "netns", "add", name)
            _run(
                *("ip", "-n", lan, "link", "add", host, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            )
            _run("ip", "-n", lan, "link", "set", host, "master", "lan", "up")
            _run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")

    def _remove(self) -> None:
        for name in (*self.addresses, "lan"):
            subprocess.run(("ip", "netns", "del", self._name(name)), capture_output=True)

    async def _lay_wire(self) -> None:
        """One TUN device a host; their other ends are with one process."""
        ends: list[str] = []
        files: list[int] = []
        try:
            for number, (host, address) in enumerate(self.addresses.items()):
                name, device = self._name(host), f"cq{os.getpid()}w{number}"
                try:
                    fd = os.open("/dev/net/tun", os.O_RDWR)
                    files.append(fd)
                    fcntl.ioctl(
                        fd, _SET_DEVICE, struct.pack("16sH", device.encode(), _TUN_WITHOUT_HEADER)
                    )
                except OSError as error:
                    raise NotPermitted(f"no TUN device: {error}") from error
                _run("ip", "link", "set", device, "netns", name)
                _run("ip", "-n", name, "link", "set", device, "name", "wire")
                _run("ip", "-n", name, "link", "set", "wire", "up")
                strict = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done"
                _run(*self.wrapper(host), "sh", "-c", strict)
                ends.append(f"{fd}={address}")
            self._wire = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.campaigns._hosts_wire", *ends),
                cwd=ROOT,
                pass_fds=files,
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
            )
        finally:
            for fd in files:
                os.close(fd)

    async def endpoint(self, _source: str, target: str, port: int) -> str:
        """Where a port of a target is for a source."""
        return f"{self.addresses[target]}:{port}"

    async def cut(self, source: str, target: str, share: float = 1.0) -> None:
        """Loses packets from one host to another, all or this share, until `heal`."""
        some = ("-m", "statistic", "--mode", "random", "--probability", str(share))
        await _arun(
            *(*self.wrapper(target), "iptables", "-w", "-A", "INPUT"),
            *("-s", self.addresses[source], *(some if share < 1 else ()), "-j", "DROP"),
        )

    async def spoil(self, rules: dict[tuple[str, str], Rule]) -> None:
        """Leads these directions over the wire, with these rules, until `heal`."""
        await self._tell(rules)
        for source, target in rules:
            await _arun(
                *("ip", "-n", self._name(source), "route", "replace"),
                *(f"{self.addresses[target]}/32", "dev", "wire"),
                *("src", self.addresses[source]),
            )
            self._routed.add((source, target))

    async def _tell(self, rules: dict[tuple[str, str], Rule]) -> None:
        assert self._wire is not None
        assert self._wire.stdin is not None
        assert self._wire.stdout is not None
        said = {
            f"{self.addresses[source]}>{self.addresses[target]}": msgspec.to_builtins(rule)
            for (source, target), rule in rules.items()
        }
        self._wire.stdin.write(json.dumps(said).encode() + b"\n")
        await self._wire.stdout.readline()

    async def heal(self) -> None:
        """Everybody hears everybody again."""
        for host in self.addresses:
            await _arun(*self.wrapper(host), "iptables", "-w", "-F", "INPUT")
        for source, target in self._routed:
            await _arun(
                *("ip", "-n", self._name(source), "route", "del"),
                *(f"{self.addresses[target]}/32", "dev", "wire"),
            )
        self._routed.clear()
        await self._tell({})


def has_netem() -> bool:
    """Whether this kernel has the queue that spoils packets by itself."""
    name = f"cronoq{os.getpid()}-netem"
    with contextlib.suppress(NotPermitted, FileNotFoundError):
        _run("ip", "netns", "add", name)
        try:
            _run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
        finally:
            subprocess.run(("ip", "netns", "del", name), capture_output=True)
        return True
    return False


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotPermitted(f"{' '.join(command)}: {done.stderr.strip()}")


async def _arun(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    _, errors = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {errors.decode().strip()}")
