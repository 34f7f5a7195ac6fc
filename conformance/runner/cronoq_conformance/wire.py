"""Decides how protobuf messages stand in scenarios: as plain data, read and written both ways.

Fields have their names of the proto files. Enum values are written in lower case without the enum's
prefix, bytes as text (UTF-8), as `{zeros: N}`, `{random: N}` or `{b64: text}`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

from cronoq_server._proto import admin_pb2, tasks_pb2, workers_pb2

M = TypeVar("M", bound=Message)

SERVICES = (
    admin_pb2.DESCRIPTOR.services_by_name["Admin"],
    tasks_pb2.DESCRIPTOR.services_by_name["Tasks"],
    workers_pb2.DESCRIPTOR.services_by_name["Workers"],
)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in SERVICES
    for method in service.methods
}
# What a server of the older protocol knows.
OLD_METHODS = frozenset({"Submit", "SubmitBatch", "Cancel", "Get", "ListTasks", "Wait", "Watch"})
OLD_METHODS |= {"Work", "Snapshot", "AddRecurring", "RemoveRecurring", "ListWorkers"}
OLD_METHODS |= {"ListRecurring"}


def to_bytes(value: Any) -> bytes:
    """Returns the bytes that a scenario means."""
    if isinstance(value, Mapping):
        if "zeros" in value:
            return bytes(value["zeros"])
        return base64.b64decode(value["b64"])
    return value if isinstance(value, bytes) else str(value).encode()


def _enum_prefix(enum: EnumDescriptor) -> str:
    return enum.values[0].name.removesuffix("UNSPECIFIED")


def _to_scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return to_bytes(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_name[_enum_prefix(field.enum_type) + value.upper()].number
    if field.cpp_type in (
        FieldDescriptor.CPPTYPE_UINT64,
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT32,
    ):
        return int(value)
    if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, Mapping):
        return value["text"] * value["count"]
    return value


def _is_map(field: FieldDescriptor) -> bool:
    entry = field.message_type
    return bool(entry is not None and entry.GetOptions().map_entry)


def fill(message: M, data: Mapping[str, Any]) -> M:
    """Puts data into a message and returns it.

    Raises:
        KeyError: A field or enum value does not exist.
    """
    for name, value in data.items():
        field: Any = message.DESCRIPTOR.fields_by_name[name]
        if _is_map(field):
            getattr(message, name).update(value)
        elif field.is_repeated:
            target = getattr(message, name)
            for each in value:
                if field.message_type is not None:
                    fill(target.add(), each)
                else:
                    target.append(_to_scalar(field, each))
        elif field.message_type is not None:
            target = getattr(message, name)
            target.SetInParent()
            fill(target, value)
        else:
            setattr(message, name, _to_scalar(field, value))
    return message


def plain(message: Message) -> dict[str, Any]:
    """Returns the fields of a message that are there, as plain data."""
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if _is_map(field):
            found[field.name] = dict(value)
        elif field.is_repeated:
            found[field.name] = [_plain_one(field, each) for each in value]
        else:
            found[field.name] = _plain_one(field, value)
    return found


def _plain_one(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        name = field.enum_type.values_by_number[value].name
        return name.removeprefix(_enum_prefix(field.enum_type)).lower()
    return value
