"""What is thrown at the gateway: calls that its own document allows or forbids, and broken bytes.

Nothing here knows the routes: they come from `/openapi.json`, with what each may answer.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.checks import content_type_conformance, response_schema_conformance
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import status_code_conformance

TIMEOUT_S: Final = 20.0
ENDLESS: Final = frozenset({"/v1/watch"})
"""Paths whose answers do not end by themselves."""

CHECKS: Final = [status_code_conformance, content_type_conformance, response_schema_conformance]
SEEDS: Final = (
    b"GET /v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"POST /v1/tasks HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b'content-length: 12\r\n\r\n{"kind":"k"}',
    b"POST /v1/batches HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    b'c\r\n{"tasks":[]}\r\n0\r\n\r\n',
    b"GET /readyz HTTP/1.0\r\n\r\n",
)
PIECES: Final = (
    b"\x00",
    b"\xff" * 9,
    b"\r\n",
    b"\r\n\r\n",
    b": ",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"expect: 100-continue\r\n",
    b"upgrade: h2c\r\nconnection: upgrade\r\n",
    b"x: " + b"y" * 40_000 + b"\r\n",
    b"%00%ff%2e%2e",
    b'{"a":' * 5000,
)


@dataclass
class Findings:
    """What came of it.

    Attributes:
        ends: How often calls ended in which way.
        faults: What must not be.
    """

    ends: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def attack_routes(
    address: str, cases: int, seed: int, modes: Sequence[GenerationMode] = tuple(GenerationMode)
) -> Findings:
    """Calls every route with what its document allows, and with what it forbids.

    Args:
        address: `host:port` of the gateway.
        cases: How many calls, about.
        seed: Other calls for each.
        modes: Which of the two.
    """
    url = f"http://{address}"
    document = requests.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
    schema = schemathesis.openapi.from_dict(document)
    operations: list[Any] = [one.ok() for one in schema.get_all_operations()]  # type: ignore[union-attr]
    wanted = [one for one in operations if one.path not in ENDLESS]
    findings = Findings()
    each = max(1, cases // (len(modes) * len(wanted)))
    for operation in wanted:
        for mode in modes:
            _attack_operation(operation, mode, url, each, seed, findings)
    return findings


def _attack_operation(
    operation: Any, mode: GenerationMode, url: str, cases: int, seed: int, findings: Findings
) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def call(case: Any) -> None:
        answer = case.call(base_url=url, timeout=TIMEOUT_S)
        findings.ends[str(answer.status_code)] += 1
        fault = _fault(case, answer)
        if fault:
            findings.faults.append(f"{operation.method} {operation.path} {fault}")

    # Some routes have nothing to get wrong.
    with contextlib.suppress(hypothesis.errors.Unsatisfiable):
        call()


def _fault(case: Any, answer: Any) -> str:
    """What is wrong with an answer; empty = nothing."""
    if answer.status_code == 500 or b"Traceback" in answer.content:
        return f"{answer.status_code} {answer.content[:300]!r} to {case.as_curl_command()}"
    lines = answer.headers.get("content-type") == ["application/x-ndjson"]
    try:
        case.validate_response(answer, checks=CHECKS[:2] if lines else CHECKS)
    except (Failure, FailureGroup) as failure:
        return str(failure)[:1000]
    return ""


def attack_bytes(address: str, cases: int, seed: int, *, breaks: bool = True) -> Findings:
    """Sends requests that were broken on the way: each is answered or hung up on, in time.

    Args:
        address: `host:port` of the gateway.
        cases: How many.
        seed: Other requests for each.
        breaks: Whether they are broken at all.
    """
    chance = random.Random(seed)
    host, _, port = address.rpartition(":")
    findings = Findings()
    for _ in range(cases):
        content = broken(chance) if breaks else chance.choice(SEEDS)
        try:
            end = _send(host, int(port), content)
        except TimeoutError:
            findings.faults.append(f"neither answered nor hung up: {content[:300]!r}")
            continue
        findings.ends[end] += 1
        if end == "500":
            findings.faults.append(f"500 to {content[:300]!r}")
    return findings


def broken(chance: random.Random) -> bytes:
    """A request with some damage."""
    content = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(4):
            case 0:
                content[at:at] = chance.choice(PIECES)
            case 1:
                del content[at : at + chance.randint(1, 20)]
            case 2:
                content[at : at + 1] = bytes([chance.randrange(256)])
            case _:
                content += chance.choice(SEEDS)
    return bytes(content)


def _send(host: str, port: int, content: bytes) -> str:
    """How the server answered: the status of its first answer, or that it hung up."""
    with socket.create_connection((host, port), TIMEOUT_S) as line:
        try:
            line.sendall(content)
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(4096)
        except (ConnectionError, BrokenPipeError):
            return "hung up"
    words = answer.split(b" ", 2)
    return words[1].decode("latin-1") if len(words) == 3 else "hung up"
