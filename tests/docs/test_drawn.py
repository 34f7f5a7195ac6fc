"""Pages and pictures that are drawn from the code leave nothing of it out."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from cronoq_server.engine.lifecycle import TRANSITIONS
from cronoq_server.engine.model import Status
from tools import grpc_reference, pictures
from tools.check_text import ROOT

PROTOS = [
    path
    for path in (ROOT / "proto/cronoq/v1").glob("*.proto")
    if path.stem != "errors"  # it has a page of its own
]


def test_the_grpc_reference_has_every_declaration() -> None:
    """Each service, method, message, enumeration, field and value of the contract is there."""
    page = grpc_reference.page("")
    assert {path.stem for path in PROTOS} == set(grpc_reference.FILES)
    for path in PROTOS:
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        for name in re.findall(r"^\s*(?:service|message|enum) (\w+)", text, re.MULTILINE):
            assert re.search(rf"^##+ {name}$", page, re.MULTILINE), name
        for name in re.findall(r"^\s*rpc (\w+)", text, re.MULTILINE):
            assert f"| `{name}` |" in page
        for name, number in re.findall(r"(\w+) = (\d+)[;\s]", text):
            assert f"`{name} = {number}`" in page


def test_a_line_that_is_not_known_is_not_left_out() -> None:
    """A new kind of declaration has to be taught to the reader of proto files."""
    with pytest.raises(ValueError, match="extend"):
        list(grpc_reference.read("extend google.protobuf.FieldOptions {\n"))


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_well_formed_and_titled(name: str) -> None:
    """A picture is XML that browsers take, with a title for who can't see it."""
    root = ElementTree.fromstring(pictures.PICTURES[name]())
    assert root[0].tag.endswith("title")
    assert root[0].text


def test_the_picture_of_a_life_has_every_status() -> None:
    """All statuses are in it, and an arrow for each pair of those that tasks go through."""
    drawn = pictures.task_lifecycle()
    for status in Status:
        assert f">{status.name.lower()}<" in drawn
    pairs = {(before, after) for (before, _), after in TRANSITIONS.items() if before}
    arrows = [p for p in pairs if p[1] in pictures.PLACES or p[0] is Status.RUNNING]
    assert drawn.count('marker-end="url(#tip)"') == len(arrows)
