"""Decides which payloads and refusals all SDKs must read alike: bytes, with what is made of them.

`python -m tests.campaigns._sdk_vectors` writes `conformance/vectors/payloads.json` and
`conformance/vectors/errors.json`; the Python SDK says what is in them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.rpc import error_details_pb2, status_pb2

from cronoq import _payload, _transport, errors

FOLDER: Final = Path(__file__).resolve().parents[2] / "conformance" / "vectors"
PAYLOADS: Final = FOLDER / "payloads.json"
ERRORS: Final = FOLDER / "errors.json"
MAX_BYTES: Final = 64
"""What the transform `zlib` of the vectors may unpack to."""

ABOUT_PAYLOADS: Final = (
    "Payloads (base64) with a content type and what every SDK's TransformingCodec makes of them: "
    f"its inner codec is 'json' or 'msgpack', its one transform zlib of at most {MAX_BYTES} bytes. "
    "Whatever is there is wanted. 'bytes' and 'value' are what is read, 'unsaid' a value that JSON "
    "has no form for, 'refused' an error of a payload. "
    "Written by python -m tests.campaigns._sdk_vectors."
)
ABOUT_ERRORS: Final = (
    "Statuses (google.rpc.Status, base64) inside an answer and the error that every SDK makes of "
    "each, for a fault at 'place' of the request. 'family' is the error's kind, 'reason' null "
    "where the server gave none that is known. Written by python -m tests.campaigns._sdk_vectors."
)

_JSON: Final = (
    *(b"", b" ", b"null", b"true", b"1", b"-0", b"01", b"1.", b".5", b"+1", b"1e5", b"1E+2", b"-"),
    *(b"nan", b"NaN", b"Infinity", b"'a'", b'"a', b'"\\x"', b'"\\u00e9"', b'"\t"', b'"\0"'),
    *(b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', '"ü\u2028"'.encode(), b"\xef\xbb\xbf1"),
    *(b"[]", b"[1,]", b"[,1]", b"[1 2]", b"[1,2", b"{}", b'{"a":1,}', b'{"a" 1}', b"{a:1}"),
    *(b'{"a":1,"a":2}', b'{"a":{"b":[null]}}', b"1 2", b"1//x", b"/**/1", b"\n[1]\t\r ", b"\x0b1"),
    *(b'"\\ud83d\\ude00"', b"tru", b"nullx", b"[" * 100, b"[" * 60 + b"]" * 60, b"0x10", b"1_0"),
    *(b"\xc2\xa01", b"1\0", b"\0", b'{"__proto__":{"a":1}}', b'{"constructor":1}'),
)
_MSGPACK: Final = (
    *(b"\xc0", b"\xc1", b"\xc2", b"\xc3", b"\x00", b"\x7f", b"\xff", b"\xe0", b"\xcc\xff", b"\xcc"),
    *(b"\xcd\x01\x00", b"\xce\xff\xff\xff\xff", b"\xd0\x80", b"\xd1\x80\x00", b"\xd2\x80\0\0\0"),
    *(
        b"\xa1a",
        b"\xa2a",
        b"\xd9\x01a",
        b"\xda\0\x01a",
        b"\xdb\0\0\0\x01a",
        b"\xdb\xff\xff\xff\xff",
    ),
    *(b"\x90", b"\x91\x01", b"\x91", b"\x92\x01", b"\xdc\0\x01\xc0", b"\xdd\xff\xff\xff\xff"),
    *(b"\x80", b"\x81\xa1a\x01", b"\x81\xa1a", b"\x82\xa1a\x01\xa1a\x02", b"\xdf\xff\xff\xff\xff"),
    *(b"\xde\0\x01\xa1a\x01", b"\xca\x3f\x80\0\0", b"\xcb\x3f\xf0\0\0\0\0\0\0", b"\xcb", b"\xc4"),
    *(b"\x01\x02", b"\xc0\xc0", b"\xc4\x01\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 50 + b"\xc0"),
    *(b"\xa1\xff", b"\xa3\xed\xa0\x80", b"\xd9", b"\xdc", b"\xde\x01", b"\x91" * 60),
)
_JSON_TYPE: Final = "application/json"
_TYPES: Final = (
    *("", "application/json", "Application/JSON", " application/json ", "application/json;v=2"),
    *(
        "application/json ;v",
        "application/msgpack",
        "APPLICATION/MSGPACK",
        "application/msgpac\u212a",
    ),
    *("application/octet-stream", "application/octet-stream;x", "text/plain", "json", ";", "/"),
    *("application/json;transform=gzip", "application/json;transform=", "application/json\0"),
    *(
        "application/json\x1f",
        "\u00a0application/json",
        "\x85application/json",
        "\ufeffapplication/json",
    ),
    *(
        "application/json,text/plain",
        "application /json",
        "\tapplication/json\r\n",
        "\x0bapplication/json",
    ),
    *("application/json;Transform=zlib", "application/json; transform=zlib"),
)


def _codec(own: str) -> _payload.TransformingCodec:
    inner = _payload.MsgpackCodec() if own == "msgpack" else _payload.JsonCodec()
    return _payload.TransformingCodec(inner, [_payload.ZlibTransform(max_bytes=MAX_BYTES)])


def payload_vector(own: str, content_type: str, payload: bytes) -> dict[str, Any]:
    """What the SDK makes of a payload whose own codec is `own`."""
    told = {
        "codec": own,
        "content_type": content_type,
        "payload": base64.b64encode(payload).decode(),
    }
    try:
        value = _codec(own).decode(payload, content_type, Any)
    except errors.PayloadError:
        return {**told, "read": "refused"}
    media = _payload.plain_type(content_type)
    if media == _payload.BYTES_TYPE:
        return {**told, "read": "bytes", "value": base64.b64encode(value).decode()}
    if _has_bytes(value):
        return {**told, "read": "unsaid"}
    return {**told, "read": "value", "value": value}


def _has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_bytes(part) for part in value.values())
    if isinstance(value, list):
        return any(_has_bytes(part) for part in value)
    return not (value is None or isinstance(value, bool | int | float | str))


def _packed() -> Iterator[tuple[str, bytes]]:
    """Content types with bytes that went, or did not go, through zlib."""
    once = f"{_JSON_TYPE};transform=zlib"
    fits, exceeds = b'"' + b"a" * (MAX_BYTES - 2) + b'"', b'"' + b"a" * (MAX_BYTES - 1) + b'"'
    for level in (0, 1, 9):
        for plain in (fits, exceeds, fits[:-1], b"", b"1", b'"' + b"a" * 3000 + b'"'):
            yield once, zlib.compress(plain, level)
    whole = zlib.compress(fits)
    yield from ((once, whole[:length]) for length in range(len(whole)))
    yield from ((once, whole + extra) for extra in (b"\0", b"x" * 9, whole))
    yield once, whole[:-1] + bytes((whole[-1] ^ 1,))
    yield once, b"\x78\x9c" + whole[2:]
    yield once, b"\x79" + whole[1:]
    yield once, zlib.compress(b"1")[2:-4]
    with_dictionary = zlib.compressobj(zdict=b"aaaa")
    yield once, with_dictionary.compress(fits) + with_dictionary.flush()
    yield once, b"1"
    yield f"{once};transform=zlib", zlib.compress(zlib.compress(b"1"))
    yield f"{once};transform=zlib", zlib.compress(b"1")
    yield f"{once};transform=gzip", zlib.compress(b"1")
    yield ";transform=zlib", zlib.compress(b"1")
    yield "application/octet-stream;transform=zlib", zlib.compress(b"\xff\x00")
    yield "text/plain;transform=zlib", zlib.compress(b"1")


def payload_vectors() -> list[dict[str, Any]]:
    """All payloads that are committed."""
    found = [payload_vector("json", _JSON_TYPE, text) for text in _JSON]
    found += [payload_vector("msgpack", "application/msgpack", text) for text in _MSGPACK]
    found += [payload_vector("json", media, b"1") for media in _TYPES]
    found += [payload_vector("msgpack", media, b"1") for media in _TYPES]
    return found + [payload_vector("json", media, packed) for media, packed in _packed()]


def error_vector(status: status_pb2.Status, place: str) -> dict[str, Any]:
    """The error that the SDK makes of a status inside a message."""
    error = _transport.status_error(status, place)
    reason, _ = _transport.error_info_of(status)
    family = next(kind for kind in type(error).__mro__ if errors.CronoqError in kind.__bases__)
    return {
        "status": base64.b64encode(status.SerializeToString(deterministic=True)).decode(),
        "place": place,
        "family": family.__name__.removesuffix("Error"),
        "reason": reason.value if reason is not None else None,
        "details": dict(error.details),
        "executed": error.executed is not False,
    }


def _status(code: int, reason: str, *, domain: str = "cronoq", **details: str) -> status_pb2.Status:
    status = status_pb2.Status(code=code, message="tasks[3].key: no")
    info = error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=details)
    status.details.add().Pack(info, deterministic=True)
    return status


def error_vectors() -> list[dict[str, Any]]:
    """Every reason, every code, and details that are not what they say."""
    found = []
    internal = 13
    for reason in errors.ErrorReason:
        word = f"ERROR_REASON_{reason.name}"
        found.append(
            error_vector(_status(internal, word, field="tasks[3].key", index="3"), "tasks[3].")
        )
    for code in (*range(18), 99, -1):
        found.append(error_vector(status_pb2.Status(code=code, message="x"), ""))
        found.append(error_vector(_status(code, "ERROR_REASON_OF_TOMORROW", a="b"), ""))
    found.append(error_vector(_status(5, "ERROR_REASON_TASK_UNKNOWN", domain="another"), ""))
    # The one reason that comes with two statuses: that of another tenant's key is a denial.
    found.append(error_vector(_status(7, "ERROR_REASON_KEY_IN_USE"), ""))
    for word in ("task_unknown", "Task_Unknown", "", "ERROR_REASON_"):
        found.append(error_vector(_status(9, word), ""))
    for broken in (
        b"\xff",
        b"\x0a\x05ab",
        b"\x12\x01",
        b"\x1a\x03\x0a\x01",
        b"\x0a\x01\xff",
        b"\x08\x01",
    ):
        status = _status(9, "ERROR_REASON_TASK_UNKNOWN", index="3", x="tasks[3].")
        status.details.insert(
            0, type(status.details[0])(type_url=status.details[0].type_url, value=broken)
        )
        found.append(error_vector(status, "tasks[3]."))
        del status.details[1]
        found.append(error_vector(status, ""))
    return found


def text_of(about: str, vectors: list[dict[str, Any]]) -> str:
    """A file of vectors, one a line."""
    body = ",\n    ".join(json.dumps(one) for one in vectors)
    return f'{{\n  "about": {json.dumps(about)},\n  "vectors": [\n    {body}\n  ]\n}}\n'


def files() -> dict[Path, str]:
    """Each file with what is to stand in it."""
    return {
        PAYLOADS: text_of(ABOUT_PAYLOADS, payload_vectors()),
        ERRORS: text_of(ABOUT_ERRORS, error_vectors()),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="ascii")
