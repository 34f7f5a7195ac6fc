"""Decides what is fuzzed of all that parses, and what must hold whatever it is given.

A target takes any bytes. It returns when they were understood or refused in order, and raises when
anything else happened; where something was understood, it is held against what was said.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
from google.protobuf.message import DecodeError
from msgspec import UNSET, UnsetType

from cronoq import _endpoint, _payload
from cronoq.errors import PayloadError
from cronoq_server._proto import tasks_pb2, workers_pb2
from cronoq_server.api import admin_convert, convert, frames, texts
from cronoq_server.api.http import forms, names, reading, requests, streams
from cronoq_server.api.http.front import HEADERS, HOLDING, WHO
from cronoq_server.api.http.routes import Call
from cronoq_server.api.merged import MergedWatch
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import ConfigError, LimitsConfig, parse, to_toml
from cronoq_server.engine import StatusEvent
from cronoq_server.engine.cron import Calendar, Fold, Gap
from cronoq_server.engine.cron import parse as parse_cron
from cronoq_server.engine.model import SECOND, YEAR, Progress, Refusal
from cronoq_server.runtime import cursors
from cronoq_server.runtime.refusals import Refused
from cronoq_server.runtime.watch_stream import WatchBatch
from tests.campaigns._stored_rows import rows

Target = Callable[[bytes], None]

READER: Final = SpecReader(LimitsConfig(), ["default"])
ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Nowhere")
SPLIT: Final = "\x1e"
"""Stands between the parts of an input that has several."""


def text_of(content: bytes) -> str:
    """Bytes as the text that they could be, lone surrogates included."""
    return content.decode("utf-8", "surrogatepass" if b"\xed" in content else "replace")


def readable(content: bytes) -> str | None:
    """Bytes as text; None when they are none."""
    try:
        return text_of(content)
    except UnicodeDecodeError:
        return None


# --- the server's own words -----------------------------------------------------------------------


def config(content: bytes) -> None:
    """A configuration file, and variables behind it: a whole one, or all its mistakes."""
    text = readable(content)
    if text is None:
        return
    file, *lines = text.split(SPLIT)
    environment = dict(line.partition("=")[::2] for line in lines)
    try:
        found = parse(file, "cronoq.toml", environment)
    except ConfigError as error:
        str(error).encode()
        if not error.problems:
            raise AssertionError("a refusal without a reason") from error
        return
    shown = to_toml(found)
    shown.encode()
    if "not shown" not in shown:
        assert to_toml(parse(shown)) == shown


def cron(content: bytes) -> None:
    """A cron expression in a zone: refused, or due at rising instants that it counts itself."""
    if not content:
        return
    head, expression = content[0], content[1:].decode("latin-1")
    zone = ZONES[head % len(ZONES)]
    gap, fold = Gap(1 + head // 8 % len(Gap)), Fold(1 + head // 32 % len(Fold))
    calendar = parse_cron(expression, zone, gap, fold)
    if isinstance(calendar, Refusal):
        calendar.message.encode()
        return
    begin = 1_700_000_000 * SECOND + head * 40 * 86_400 * SECOND
    _walk(calendar, begin)


def _walk(calendar: Calendar, begin: int) -> None:
    due = calendar.upcoming(begin, 10)
    assert due == sorted(set(due))
    assert not due or due[0] > begin
    if not due:
        assert calendar.next_after(begin) is None
        return
    assert calendar.next_after(begin) == due[0]
    end = due[-1] + 1
    assert calendar.between(begin + 1, end, 100) == due
    assert calendar.count(begin + 1, end) == len(due)
    assert calendar.latest_at_or_before(due[-1], begin) == due[-1]
    assert calendar.latest(begin + 1, end, 3) == due[-3:]


def values(content: bytes) -> None:
    """Durations, instants, ids, names and messages, as each door reads them."""
    _numbers(content[:8].ljust(8, b"\0"))
    text = readable(content[8:])
    if text is None:
        return
    for check in (texts.name, texts.word, texts.resource):
        _is_kept(check(text, "field"), text) if _passes(check, text, "field") else None
    if _passes(texts.key, text, "key", 256):
        assert len(text.encode()) <= 256
    _passes(texts.pairs, {text[: len(text) // 2]: text[len(text) // 2 :]}, "tags", 64)
    cleaned = texts.clean(text, 100)
    assert "\0" not in cleaned
    assert len(cleaned) <= 100
    cleaned.encode()
    assert texts.shown(text).rstrip("…").isascii()


def _passes(check: Callable[..., Any], *given: Any) -> bool:
    try:
        check(*given)
    except Refused as refused:
        refused.refusal.message.encode()
        return False
    return True


def _is_kept(found: str, text: str) -> None:
    assert found == text
    found.encode()


def _numbers(content: bytes) -> None:
    (real,) = struct.unpack("<d", content)
    (whole,) = struct.unpack("<q", content)
    if _passes(texts.duration, real, "field"):
        assert 0 <= texts.duration(real, "field") <= YEAR
    delay, fraction = texts.clean_delay(real), texts.clean_fraction(real)
    assert delay is None or 0 <= delay <= texts.RETRY_AFTER_MAX
    assert fraction is None or 0 <= fraction <= 1
    _passes(texts.instant, whole, "field")
    _passes(names.identity, whole & names.SAFE_MAX, "id")
    _passes(names.identity, str(whole & texts.ID_MAX), "id")
    _passes(admin_convert.read_rate, real)
    _passes(convert.read_wait, real, "timeout_s", 60.0)


# --- places to go on from -------------------------------------------------------------------------


def places(content: bytes) -> None:
    """Cursors as bytes and as text, `Last-Event-ID`, queries and page tokens."""
    found = cursors.decode(content)
    if found is not None:
        again = cursors.encode(found.epoch, found.position, found.index, found.whole)
        assert cursors.decode(again) == found
    told = streams.cursor_text(content)
    if len(told) <= streams.CURSOR_MAX:
        assert streams.read_cursor(told, "after_cursor") == content
    _passes(streams.read_cursor, content.decode("latin-1"), "last-event-id")
    if _passes(_merged, content):
        _merged(content).start(1)
    for shape in QUERIES:
        _passes(_query, content, shape)


def _merged(content: bytes) -> MergedWatch:
    return MergedWatch(content, bookmarks=False)


QUERIES: Final = (requests.ListQuery, requests.WatchQuery, requests.SubmitQuery, requests.NextQuery)


def _query(content: bytes, shape: type[Any]) -> None:
    scope: dict[str, Any] = {
        HEADERS: {},
        WHO: None,
        HOLDING: None,
        "path_params": {},
        "path": "/",
        "query_string": content,
    }
    found = Call(scope).query(shape)
    if isinstance(found, requests.ListQuery):
        reading.filter_message(reading.query_filter(found))
        names.whole(found.after, "after", texts.ID_MAX)
    if isinstance(found, requests.WatchQuery):
        names.identities(found.id, "id")


def endpoints(content: bytes) -> None:
    """Endpoints that a user configures or a server names: plain places, and never half of one."""
    text = readable(content)
    if text is None:
        return
    for read in (_endpoint.parse_redirect, _configured, _configured_tls):
        try:
            found = read(text)
        except _endpoint.EndpointError:
            continue
        assert str(found).isascii()
        assert 0 < found.port < 65_536
        assert _endpoint.parse_redirect(str(found)) == found
        assert "@" not in text
        assert not found.is_loopback or _is_written_as_loopback(found.host)


def _configured(text: str) -> _endpoint.Endpoint:
    return _endpoint.parse_configured(text, tls=False)


def _configured_tls(text: str) -> _endpoint.Endpoint:
    return _endpoint.parse_configured(text, tls=True)


def _is_written_as_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.") or (":" in host and host.endswith("1"))


# --- what callers send ----------------------------------------------------------------------------

BODIES: Final[dict[type[Any], Callable[[Any], Any]]] = {
    requests.NewTask: lambda task: _task(task),
    requests.NewBatch: lambda batch: reading.batch_message(batch.tasks),
    requests.TaskFilter: reading.filter_message,
    requests.BulkOrder: lambda order: names.whole(order.after, "after", texts.ID_MAX),
    requests.WaitOrder: lambda order: names.identities(order.ids, "ids"),
    requests.NewSchedule: lambda schedule: _schedule(reading.schedule_message("s", schedule)),
    requests.SchedulePreview: lambda preview: _schedule(reading.preview_message(preview)),
    requests.Backfill: lambda order: names.instant(order.from_unix_ns, "from_unix_ns"),
    requests.ResourceSize: lambda size: size,
}


def bodies(content: bytes) -> None:
    """JSON of every shape that callers send, down to what the engine would be told."""
    for shape, read in BODIES.items():
        try:
            read(reading.body(content, shape))
        except Refused as refused:
            reading.renamed(refused.refusal, 1).message.encode()


def _task(task: Any) -> None:
    message = tasks_pb2.SubmitRequest()
    reading.fill_task(message.task, task)
    spec = READER.read(message.task)
    if task.payload is not UNSET:
        assert spec.payload == bytes(task.payload)


def _schedule(message: Any) -> None:
    admin_convert.read_schedule(message, READER, 256)


def payloads(content: bytes) -> None:
    """Payloads of any type: told exactly as JSON, and decoded by the SDK or refused by it."""
    head, _, body = content.partition(b"\n")
    media = head.decode("latin-1")
    for form in (forms.write(body, media), forms.guess(body)):
        if form.text is not None:
            assert form.text.encode() == body
        elif form.base64 is not None:
            assert base64.b64decode(form.base64) == body
        elif not isinstance(form.value, UnsetType):
            assert bytes(form.value) == body
            msgspec.json.decode(b'{"value":%s}' % body, type=dict[str, msgspec.Raw])
    codec = _payload.TransformingCodec(
        _payload.JsonCodec(), [_payload.ZlibTransform(max_bytes=65_536)]
    )
    for wanted in (Any, int, dict[str, str], bytes, str):
        try:
            codec.decode(body, media, wanted)
        except PayloadError as error:
            str(error).encode()


def frames_of_workers(content: bytes) -> None:
    """Messages of workers: refused as a whole, or cleaned so that every store can hold them."""
    message = workers_pb2.WorkerMessage()
    try:
        message.ParseFromString(content)
    except DecodeError:
        return
    for report in frames.ReportReader(4096).reports(message.reports):
        for name in ("message", "reason", "content_type"):
            text = getattr(report, name, "")
            assert "\0" not in text
            text.encode()
    for _, progress in frames.read_progress(message.heartbeats):
        assert progress.fraction is None or 0 <= progress.fraction <= 1
        assert len(progress.content) <= texts.PROGRESS_MAX
    _passes(frames.read_register, message.register, READER, 64)


def events(content: bytes) -> None:
    """Server-sent events: whatever they carry, a reader gets one event of each, whole."""
    head, _, body = content.partition(b"\n")
    text = texts.clean(text_of(body) if readable(body) is not None else body.decode("latin-1"))
    progress = Progress(head, 0.5 if head else None)
    change = StatusEvent(len(body) + 1, "default", text[:64], 4, 1, 5, text, progress)
    after = cursors.encode(1, len(body), 1)
    told = streams.sse(WatchBatch([(change, after), (change, after)], after))
    found = read_events(told.decode())
    assert [(name, given) for name, given, _ in found] == [
        ("status", streams.cursor_text(after))
    ] * 2
    for _, _, carried in found:
        assert msgspec.json.decode(carried, type=Carried).message == text


class Carried(msgspec.Struct):
    """What matters of an event's content; numbers of others may be any that JSON can say."""

    message: str = ""


class Told(NamedTuple):
    """One event as a reader of the format understands it."""

    name: str
    id: str
    content: str


def read_events(text: str) -> list[Told]:
    """Reads server-sent events as browsers do: lines end at CR, LF or both, nowhere else."""
    found: list[Told] = []
    name = last = ""
    content: list[str] = []
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if content:
                found.append(Told(name, last, "\n".join(content)))
            name, content = "", []
        elif field == "data":
            content.append(value)
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            last = value
    return found


TARGETS: Final[dict[str, Target]] = {
    "bodies": bodies,
    "config": config,
    "cron": cron,
    "endpoints": endpoints,
    "events": events,
    "frames": frames_of_workers,
    "payloads": payloads,
    "places": places,
    "rows": rows,
    "values": values,
}
"""Every target by name."""
