"""Which requests a fuzzer makes: for every method of the contract, from whole to meaningless.

A message is filled at random from its descriptor, with a liking for values at the edges, and then
mostly spoilt as bytes: flipped, cut, repeated, with other wire types, lengths that are not there,
and groups within groups. The same chance makes the same requests.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from cronoq_server._proto import admin_pb2, tasks_pb2, workers_pb2

DEPTH = 4
WORDS = (
    *("", "default", "quiet", "nowhere", "gpu", "s1", "s2", "k1", "k2", "kind", "* * * * *"),
    *("0 0 30 2 *", "Europe/Berlin", "Mars/Olympus", "a\0b", "\ud7ff", "\u202e", "x" * 257),
    *("é" * 128, " ", "\n", "../..", "'; --", "%s%n", "{}", "1" * 64, "a:b"),
)
INTEGERS = (0, 1, 2, 3, 7, 100, 1000, 65_535, 2**31 - 1, 2**32 - 1)
LONG = (*INTEGERS, 2**53, 2**63 - 1, 1 << 48, (1 << 48) + 1, (1 << 56) + 3)
REALS = (0.0, -0.0, 1.0, 0.001, -1.0, 1e-300, 1e300, 31_622_400.0, 31_622_401.0)
ODD_REALS = (float("nan"), float("inf"), float("-inf"))


class Method(NamedTuple):
    """A method of the contract.

    Attributes:
        path: What it is called by.
        input: What its requests are.
        streams: Whether requests, and answers, are streams.
    """

    path: str
    input: Descriptor
    streams: tuple[bool, bool]


METHODS = tuple(
    Method(
        f"/{service.full_name}/{method.name}",
        method.input_type,
        (method.client_streaming, method.server_streaming),
    )
    for file in (tasks_pb2, workers_pb2, admin_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
)


class Requests:
    """An endless row of requests."""

    def __init__(self, chance: random.Random, *, spoils: bool = True) -> None:
        """Begins a row.

        Args:
            chance: Makes them.
            spoils: Whether most are spoilt; else all are messages as they should be.
        """
        self._chance = chance
        self._spoils = spoils

    def next(self) -> tuple[Method, Sequence[bytes]]:
        """The next method, and the messages that it is called with."""
        chance = self._chance
        method = chance.choice(METHODS)
        count = chance.randrange(1, 6) if method.streams[0] else 1
        contents = []
        for at in range(count):
            message = self._message(method.input, DEPTH)
            if method.streams[0] and at == 0 and chance.random() < 0.8:
                message = self._register()
            content = message.SerializeToString()
            is_spoilt = self._spoils and chance.random() < 0.6
            contents.append(self._spoilt(content) if is_spoilt else content)
        return method, contents

    def _register(self) -> Message:
        register = workers_pb2.Register(protocol_version=self._chance.randrange(6), slots=2)
        return workers_pb2.WorkerMessage(register=register)

    def _message(self, descriptor: Descriptor, depth: int) -> Message:
        message: Any = message_factory.GetMessageClass(descriptor)()
        for entry in descriptor.fields:
            if self._chance.random() < 0.4:
                self._fill(message, entry, depth)
        return message  # type: ignore[no-any-return]

    def _fill(self, message: Any, entry: FieldDescriptor, depth: int) -> None:
        chance = self._chance
        count = chance.choice((0, 1, 2, 2, 40)) if entry.is_repeated else 1
        if entry.message_type is not None and entry.message_type.GetOptions().map_entry:
            value = entry.message_type.fields_by_name["value"]
            for _ in range(count):
                if value.message_type is None:
                    getattr(message, entry.name)[self._word()] = self._value(value)
        elif entry.message_type is not None:
            for _ in range(min(count, 3) if depth else 0):
                inner = self._message(entry.message_type, depth - 1)
                if entry.is_repeated:
                    getattr(message, entry.name).append(inner)
                else:
                    getattr(message, entry.name).CopyFrom(inner)
        elif entry.is_repeated:
            getattr(message, entry.name).extend(self._value(entry) for _ in range(count))
        else:
            setattr(message, entry.name, self._value(entry))

    def _word(self) -> str:
        return self._chance.choice(WORDS)

    def _value(self, entry: FieldDescriptor) -> Any:
        chance = self._chance
        kinds = FieldDescriptor
        if entry.cpp_type == kinds.CPPTYPE_STRING:
            if entry.type == kinds.TYPE_BYTES:
                return chance.randbytes(chance.choice((0, 1, 16, 1000)))
            return self._word()
        if entry.cpp_type == kinds.CPPTYPE_BOOL:
            return chance.random() < 0.5
        if entry.cpp_type == kinds.CPPTYPE_ENUM:
            return chance.choice((0, 1, 2, 3, 13, 2**31 - 1, -1))
        if entry.cpp_type in (kinds.CPPTYPE_DOUBLE, kinds.CPPTYPE_FLOAT):
            return chance.choice(REALS if chance.random() < 0.8 else ODD_REALS)
        if entry.cpp_type in (kinds.CPPTYPE_UINT64, kinds.CPPTYPE_INT64):
            number = chance.choice(LONG)
            return -number if entry.cpp_type == kinds.CPPTYPE_INT64 and number % 3 else number
        return min(chance.choice(INTEGERS), 2**31 - 1)

    def _spoilt(self, content: bytes) -> bytes:
        for _ in range(self._chance.randrange(1, 4)):
            content = self._chance.choice(SPOILERS)(self._chance, content)
        return content


def _flip(chance: random.Random, content: bytes) -> bytes:
    if not content:
        return b"\x08"
    spoilt = bytearray(content)
    for _ in range(chance.randrange(1, 9)):
        spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
    return bytes(spoilt)


def _cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.randrange(len(content) + 1)]


def _repeat(chance: random.Random, content: bytes) -> bytes:
    return content * chance.randrange(2, 20) if len(content) < 10_000 else content


def _other_wire_type(chance: random.Random, content: bytes) -> bytes:
    number = chance.randrange(1, 30)
    kind = chance.randrange(8)
    return content + _varint(number << 3 | kind) + chance.randbytes(chance.randrange(12))


def _length_that_is_not_there(chance: random.Random, content: bytes) -> bytes:
    length = chance.choice((2**7, 2**20, 2**31 - 1, 2**31, 2**32, 2**63, 2**64 - 1))
    return content + _varint(chance.randrange(1, 30) << 3 | 2) + _varint(length)


def _nested(chance: random.Random, content: bytes) -> bytes:
    depth = chance.choice((10, 101, 10_000, 100_000))
    if chance.random() < 0.5:
        return content + bytes((chance.randrange(1, 16) << 3 | 3,)) * depth
    inner = b""
    for _ in range(min(depth, 2000)):
        inner = bytes((0x0A,)) + _varint(len(inner)) + inner
    return inner


def _endless_varint(chance: random.Random, content: bytes) -> bytes:
    return (
        content + bytes((chance.randrange(1, 16) << 3,)) + b"\xff" * chance.choice((9, 10, 11, 99))
    )


def _many_numbers(chance: random.Random, content: bytes) -> bytes:
    packed = struct.pack("<Q", chance.getrandbits(64)) * chance.choice((1, 1000, 20_000))
    return content + _varint(chance.randrange(1, 30) << 3 | 2) + _varint(len(packed)) + packed


def _large(chance: random.Random, content: bytes) -> bytes:
    filler = b"x" * chance.choice((70_000, 1_000_000, 1_100_000, 4_000_000))
    return content + _varint(chance.randrange(1, 30) << 3 | 2) + _varint(len(filler)) + filler


def _noise(chance: random.Random, _content: bytes) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 5, 50, 5000)))


SPOILERS = (
    *(_flip, _flip, _flip, _cut, _cut, _repeat, _other_wire_type, _other_wire_type),
    *(_length_that_is_not_there, _nested, _endless_varint, _many_numbers, _large, _noise),
)


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)
