"""How tests speak HTTP: by an ordinary client, and byte by byte where it matters."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from cronoq_server.config import Address

if TYPE_CHECKING:
    from tests.api.conftest import Edge


@asynccontextmanager
async def browsing(edge: Edge, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server, which sends these headers with every request."""
    async with httpx.AsyncClient(
        base_url=f"http://{edge.server.http_address}",
        headers=headers,
        trust_env=False,
        verify=False,  # nothing is encrypted here, and a context takes long to make
        timeout=30,
    ) as client:
        yield client


def refused(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, reason and field of an answer that is a refusal."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    assert error["message"]
    assert isinstance(error["details"], dict)
    return answer.status_code, error["reason"], error.get("field", "")


class Event(NamedTuple):
    """One server-sent event."""

    kind: str
    cursor: str
    told: Any


class Watch:
    """A stream of events, read as a browser would."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._lines = answer.aiter_lines()

    async def next(self) -> Event:
        """The next event, whatever it is."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line:
                return Event(fields["event"], fields.get("id", ""), json.loads(fields["data"]))
            name, _, value = line.partition(": ")
            fields[name] = value
        raise AssertionError("the stream has ended")

    async def status(self) -> Event:
        """The next event that is no bookmark."""
        while (event := await self.next()).kind == "bookmark":
            pass
        return event

    async def ended(self) -> bool:
        """Whether there is nothing more."""
        return [line async for line in self._lines] == []


@asynccontextmanager
async def watching(
    web: httpx.AsyncClient, query: str = "", cursor: str = ""
) -> AsyncIterator[Watch]:
    """Watches; the cursor is sent as a browser does when it connects again."""
    headers = {"last-event-id": cursor} if cursor else {}
    async with web.stream("GET", f"/v1/watch?{query}", headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"] == "text/event-stream"
        yield Watch(answer)


class Answer:
    """An answer that was read byte by byte."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def reason(self) -> str:
        """The reason, if it is a refusal."""
        return str(json.loads(self.body)["error"]["reason"])


class Line:
    """One connection, on which a test writes what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, address: Address) -> Line:
        """Connects."""
        line = cls(*await asyncio.open_connection(*address))
        _OPEN.append(line)
        return line

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        version: str = "1.1",
        **headers: str,
    ) -> None:
        """Writes a request; underscores in names of headers stand for dashes."""
        lines = [f"{method} {path} HTTP/{version}", "host: 127.0.0.1"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body is not None and "content_length" not in headers:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def answer(self, *, head_only: bool = False) -> Answer:
        """Reads one answer."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = 0 if head_only else int(headers.get("content-length", 0))
        return Answer(int(first.split()[1]), headers, await self.reader.readexactly(length))

    async def ended(self) -> bytes:
        """What is left to read when the other side has closed."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        """Goes away without a word."""
        self.writer.transport.abort()


_OPEN: list[Line] = []


async def close_lines() -> None:
    """Closes whatever tests have opened and left."""
    for line in _OPEN:
        line.close()
    _OPEN.clear()
    await asyncio.sleep(0)


async def until(is_so: Callable[[], bool]) -> None:
    """Lets everything else run until a fact holds."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110  # nobody tells of what is counted
            await asyncio.sleep(0)


def submission(**fields: Any) -> bytes:
    """The body of a submit."""
    return json.dumps(fields).encode()
