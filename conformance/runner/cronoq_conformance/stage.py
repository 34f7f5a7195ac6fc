"""Decides how a scenario is played: its topology is set up, its steps are done one after another.

A step is one verb with its fields. It either acts, or waits for a fact; a fact that does not come
within the scenario's patience fails the scenario, and the step's number and what was seen meanwhile
are told.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .certificates import Certificates
from .cluster import Cluster, ShardedCluster
from .judge import shown
from .participant import Participant, ParticipantError
from .proxy import Proxy
from .scenario import Scenario
from .scripted_server import Exchange, ExchangeOver, Peer, server_credentials

Step = Callable[["Stage", Any, Mapping[str, Any]], Awaitable[None]]

SET_UP_S = 120.0
NESTED = re.compile(r"\{[^{}]*\{")
REFERENCE = re.compile(r"\{([a-z_][a-z_0-9.\-]*)\}")


class Failure(Exception):
    """What was observed is not what the scenario expects."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all scenarios of a run share.

    Attributes:
        root: The repository.
        commands: How each language's participant is started.
        certificates: For TLS.
        environment: Besides this process's own, for participants.
    """

    root: Path
    commands: Mapping[str, tuple[str, ...]]
    certificates: Certificates
    environment: Mapping[str, str] = field(default_factory=dict)


class Stage:
    """One scenario being played for one language."""

    def __init__(self, scenario: Scenario, language: str, setting: Setting) -> None:
        self.scenario = scenario
        self.language = language
        self.setting = setting
        self.peers: dict[str, Peer] = {}
        self.proxies: dict[str, Proxy] = {}
        self.cluster: Cluster | None = None
        self.participants: dict[str, Participant] = {}
        self.exchanges: dict[str, Exchange] = {}
        self.answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.saved: dict[str, Any] = dict(scenario.variables)
        self.marks: dict[str, float] = {}
        self.tasks: list[asyncio.Task[Any]] = []
        self._stack = contextlib.AsyncExitStack()

    async def play(self, verbs: Mapping[str, Step]) -> None:
        """Plays the scenario.

        Raises:
            Failure: Something was not as it should be.
        """
        async with self._stack:
            try:
                async with asyncio.timeout(SET_UP_S):
                    await self._set_up()
            except TimeoutError as error:
                raise Failure("the topology did not come up") from error
            await self._play(self.scenario.steps, verbs)

    async def _play(
        self, steps: Sequence[Mapping[str, Any]], verbs: Mapping[str, Step], place: str = ""
    ) -> None:
        for number, step in enumerate(steps, 1):
            verb = next(iter(step))
            if verb == "for_each":
                for index, variables in enumerate(step[verb], 1):
                    self.saved.update(variables)
                    await self._play(step["steps"], verbs, f"{place}{number}.{index}.")
                continue
            fields = self.resolve(step)
            argument = fields.pop(verb)
            patience = float(fields.pop("seconds", self.scenario.patience_s))
            try:
                async with asyncio.timeout(patience):
                    await verbs[verb](self, argument, fields)
            except (Failure, ParticipantError, ExchangeOver) as error:
                text = f"step {place}{number} ({verb} {shown(argument)}): {error}"
                raise Failure(f"{text}\n{self._seen()}") from error
            except TimeoutError as error:
                text = f"step {place}{number} ({verb} {shown(argument)} {shown(fields)})"
                raise Failure(f"{text}: did not come\n{self._seen()}") from error

    async def _set_up(self) -> None:
        for name, said in self.scenario.peers.items():
            peer = self._make_peer(said)
            self._stack.push_async_callback(peer.stop)
            await peer.start()
            self.peers[name] = peer
        if self.scenario.cluster is not None:
            folder = tempfile.TemporaryDirectory(prefix="cronoq-conformance-")
            self._stack.callback(folder.cleanup)
            said = dict(self.scenario.cluster)
            self.cluster = self._make_cluster(Path(folder.name), said)
            self._stack.push_async_callback(self.cluster.stop)
            await self.cluster.start()
        for name, said in self.scenario.proxies.items():
            proxy = Proxy([self._address(to) for to in said["to"]])
            self._stack.push_async_callback(proxy.stop)
            await proxy.start()
            self.proxies[name] = proxy
        self._stack.push_async_callback(self._tear_down)

    def _make_cluster(self, folder: Path, said: dict[str, Any]) -> Cluster:
        if "shards" not in said:
            return Cluster(folder, **said)
        certificates = self.setting.certificates
        cluster = ShardedCluster(folder, certificates, self.scenario.variant, **said)
        self.proxies.update(cluster.gates)
        return cluster

    def _make_peer(self, said: Mapping[str, Any]) -> Peer:
        variant = said.get("variant", self.scenario.variant)
        credentials = None
        if variant != "plain":
            certificates = self.setting.certificates
            is_foreign = said.get("foreign", False)
            identity = certificates.foreign_server if is_foreign else certificates.server
            credentials = server_credentials(
                identity.cert.read_bytes(),
                identity.key.read_bytes(),
                certificates.trusted.ca.read_bytes() if variant == "mtls" else None,
            )
        host = said.get("host", "127.0.0.1")
        return Peer(host, credentials=credentials, is_old=said.get("old", False))

    def _address(self, name: str) -> tuple[str, int]:
        if name in self.peers:
            return ("127.0.0.1", self.peers[name].port)
        assert self.cluster is not None
        return ("127.0.0.1", self.cluster.named[name].port)

    async def _tear_down(self) -> None:
        for participant in self.participants.values():
            await participant.close()
        for answer in self.answers.values():
            answer.cancel()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def participant(self, name: str = "it", language: str | None = None) -> Participant:
        """Returns a participant, started when it is first asked for."""
        found = self.participants.get(name)
        if found is None:
            command = self.setting.commands[language or self.language]
            found = Participant(command, self.setting.root, self.setting.environment)
            self.participants[name] = found
            await found.start()
        return found

    # --- what stands for something else -----------------------------------------------------------

    def resolve(self, value: Any) -> Any:
        """Returns a value with its references replaced: {a} an endpoint, {t.task_id} an answer."""
        if isinstance(value, str):
            whole = REFERENCE.fullmatch(value)
            if whole is not None:
                found = self._find(whole[1])
                return value if found is None else self.resolve_again(found)
            replaced = REFERENCE.sub(self._text, value)
            # What was inside a reference is in its place now.
            is_nested = replaced != value and NESTED.search(value) is not None
            return self.resolve(replaced) if is_nested else replaced
        if isinstance(value, Mapping):
            return {key: self.resolve(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.resolve(each) for each in value]
        return value

    def resolve_again(self, found: Any) -> Any:
        """Variables of a case may hold references themselves."""
        is_text = isinstance(found, str) and REFERENCE.search(found) is not None
        return self.resolve(found) if is_text or isinstance(found, Mapping | list) else found

    def _text(self, match: re.Match[str]) -> str:
        found = self._find(match[1])
        return match[0] if found is None else str(found)

    def _find(self, path: str) -> Any:
        head, _, rest = path.partition(".")
        if head in self.peers:
            return self._of_peer(self.peers[head], rest)
        if head in self.proxies:
            proxy = self.proxies[head]
            scheme = "http" if self.scenario.variant == "plain" else "https"
            found = {"": proxy.endpoint, "url": f"{scheme}://{proxy.endpoint}", "port": proxy.port}
            return found[rest]
        if head == "cluster" and self.cluster is not None:
            return self.cluster.endpoint
        if self.cluster is not None and head in self.cluster.named:
            return f"127.0.0.1:{self.cluster.named[head].port}"
        if head == "certs":
            return self._certificate(rest)
        if head not in self.saved:
            return None
        value = self.saved[head]
        for part in filter(None, rest.split(".")):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return value

    def _of_peer(self, peer: Peer, part: str) -> Any:
        return {"": peer.endpoint, "url": peer.url, "port": peer.port}[part]

    def _certificate(self, name: str) -> str:
        certificates = self.setting.certificates
        return str(
            {
                "ca": certificates.trusted.ca,
                "foreign_ca": certificates.foreign.ca,
                "cert": certificates.client.cert,
                "key": certificates.client.key,
                "foreign_cert": certificates.foreign_client.cert,
                "foreign_key": certificates.foreign_client.key,
            }[name]
        )

    def credentials(self) -> Mapping[str, str]:
        """Returns the options with which servers of a sharded cluster know callers."""
        return self.cluster.credentials if isinstance(self.cluster, ShardedCluster) else {}

    def tls_options(self) -> dict[str, str]:
        """Returns the TLS options that a participant needs in this variant."""
        certificates = self.setting.certificates
        if self.scenario.variant == "plain":
            return {}
        options = {"tls_ca": str(certificates.trusted.ca)}
        if self.scenario.variant == "mtls":
            options["tls_cert"] = str(certificates.client.cert)
            options["tls_key"] = str(certificates.client.key)
        return options

    def _seen(self) -> str:
        """Returns what participants and their streams said, for the report of a failure."""
        lines: list[str] = []
        for name, participant in self.participants.items():
            lines += [f"  {name}: {shown(fact)}" for fact in participant.facts[-12:]]
            lines += [f"  {name} log: {line[:300]}" for line in participant.log[-12:]]
        for name, exchange in self.exchanges.items():
            lines += [f"  {name}: {shown(message)}" for message in exchange.log[-8:]]
        return "\n".join(lines)
