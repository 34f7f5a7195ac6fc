"""What the console is served from: files of the package, and two answers about this server."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cronoq_server.api.auth import Authenticator, Operation, Principal, require
from cronoq_server.api.console.history import History, PoolSample, Sample
from cronoq_server.api.http import answers
from cronoq_server.api.http.front import HEADERS, WHO
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

HOME: Final = "/"
FILES: Final = "/console/"
DATA: Final = "/console-data/"

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
MEDIA: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
KEPT_FOR: Final = b"no-cache"
"""Browsers keep the files and ask whether they are still good."""

INSTANT_MAX: Final = (1 << 63) - 1


class Shown(msgspec.Struct, frozen=True):
    """What the console is told of a shard.

    Attributes:
        name: Its name; empty without shards.
        number: Its number.
        pools: Its pools.
        endpoint: Where it is reached.
        own: Whether this server belongs to it.
        answers: Whether its leader answers.
    """

    name: str
    number: int
    pools: list[str]
    endpoint: str
    own: bool
    answers: bool


class About(msgspec.Struct, frozen=True):
    """What this server is.

    Attributes:
        version: Its version.
        store: Its kind of store.
        grpc_addr: Where it serves gRPC.
        shards: The shards that a caller may know of; by pools (None = all).
    """

    version: str
    store: str
    grpc_addr: str
    shards: Callable[[frozenset[str] | None], list[Shown]]


class _Who(msgspec.Struct, frozen=True):
    name: str
    role: str
    pools: list[str] | None
    asked: bool


class _Server(msgspec.Struct, frozen=True):
    version: str
    store: str
    grpc_addr: str
    epoch: int
    commit_p50_s: float
    commit_p99_s: float
    who: _Who
    shards: list[Shown]


class _Series(msgspec.Struct, frozen=True):
    at_unix_ns: list[str]
    epochs: list[int]
    pools: dict[str, dict[str, list[float]]]


class _File:
    """One file, as it is sent."""

    def __init__(self, name: str, content: bytes) -> None:
        suffix = name[name.rindex(".") :]
        self.tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        self.media = MEDIA[suffix].encode()
        self.plain = content
        packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
        self.packed = packer.compress(content) + packer.flush()

    def answer(self, headers: dict[str, str]) -> Response:
        """The file, or that the visitor's copy is still good."""
        common = [
            (b"content-type", self.media),
            (b"etag", self.tag.encode()),
            (b"cache-control", KEPT_FOR),
            (b"content-security-policy", POLICY.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"vary", b"accept-encoding"),
        ]
        if headers.get("if-none-match") == self.tag:
            return answers.Reply(b"", 304, common)
        body = self.plain
        if "gzip" in headers.get("accept-encoding", ""):
            body = self.packed
            common.append((b"content-encoding", b"gzip"))
        common.append((b"content-length", str(len(body)).encode()))
        return answers.Reply(body, 200, common)


def is_public(path: str) -> bool:
    """Whether a path is a file of the console, which everybody may have."""
    return path == HOME or path.startswith(FILES)


def routes(history: History, about: About, authenticator: Authenticator) -> Sequence[BaseRoute]:
    """The console's routes.

    Args:
        history: What its charts are drawn from.
        about: What this server is.
        authenticator: Whether callers are asked who they are.
    """
    files = _load()

    async def home(request: Request) -> Response:
        return files["index.html"].answer(request.scope.get(HEADERS, {}))

    async def file(request: Request) -> Response:
        found = files.get(request.path_params["name"])
        if found is None:
            refusal = Refusal(ErrorReason.UNSUPPORTED, "the console has no such file")
            return await answers.finish(answers.refusal(refusal, code=404), accepts_gzip=False)
        return found.answer(request.scope.get(HEADERS, {}))

    async def server(request: Request) -> Response:
        who: Principal = request.scope[WHO]
        last = history.last
        return await _json(
            request,
            _Server(
                about.version,
                about.store,
                about.grpc_addr,
                last.epoch if last is not None else 0,
                last.commit_p50_s if last is not None else 0.0,
                last.commit_p99_s if last is not None else 0.0,
                _Who(
                    who.name,
                    str(who.role),
                    None if who.pools is None else sorted(who.pools),
                    authenticator.is_on,
                ),
                about.shards(who.pools),
            ),
        )

    async def series(request: Request) -> Response:
        who: Principal = request.scope[WHO]
        try:
            require(who, Operation.SNAPSHOT)
            after = _after(request.query_params.get("after", "0"))
        except Refused as refused:
            return await answers.finish(answers.refusal(refused.refusal), accepts_gzip=False)
        return await _json(request, _columns(history.since(after), who.pools))

    return [
        Route(HOME, home),
        Route(FILES + "{name:path}", file),
        Route(DATA + "server", server),
        Route(DATA + "history", series),
    ]


def _after(text: str) -> int:
    # Of more than thousands of digits int() makes nothing.
    if not text.isdecimal() or len(text) > 19 or int(text) > INSTANT_MAX:
        message = f"after: must be a whole number from 0 to {INSTANT_MAX}"
        raise Refused(Refusal(ErrorReason.INVALID_FIELD, message, (("field", "after"),)))
    return int(text)


async def _json(request: Request, value: msgspec.Struct) -> Response:
    accepts = "gzip" in request.scope[HEADERS].get("accept-encoding", "")
    return await answers.finish(answers.json(value), accepts_gzip=accepts)


def _columns(samples: Sequence[Sample], pools: frozenset[str] | None) -> _Series:
    """Samples as one list for each figure of each pool that the caller may see."""
    names = samples[-1].pools if samples else {}
    empty = PoolSample(0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    columns: dict[str, dict[str, list[float]]] = {}
    for name in names:
        if pools is not None and name not in pools:
            continue
        rows = [sample.pools.get(name, empty) for sample in samples]
        columns[name] = {
            field: [getattr(row, field) for row in rows] for field in PoolSample.__struct_fields__
        }
    return _Series(
        [str(sample.at) for sample in samples], [sample.epoch for sample in samples], columns
    )


def _load() -> dict[str, _File]:
    """All files of the console by their paths."""
    root = resources.files(__package__).joinpath("static")
    found: dict[str, _File] = {}
    folders = [("", root)]
    while folders:
        prefix, folder = folders.pop()
        for entry in folder.iterdir():
            name = prefix + entry.name
            if entry.is_dir():
                folders.append((f"{name}/", entry))
            elif name[name.rindex(".") :] in MEDIA:
                found[name] = _File(name, entry.read_bytes())
    return found
