"""The example of a store in the guide for authors is one: it passes the suite, word for word."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cronoq_server.testing.builders import batch, inserted
from cronoq_server.testing.store_suite import *  # noqa: F403 (a store's tests are the suite)
from cronoq_server.testing.store_suite import Place, ids, lead, opened, recovered

GUIDE = Path(__file__).resolve().parents[2] / "docs/guide/custom-stores.md"
BLOCK = re.compile(r'^```python title="(\w+)\.py"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


def module(name: str, source: str) -> ModuleType:
    """A block of the guide as a module."""
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(source, f"{GUIDE.name}: {name}", "exec"), made.__dict__)
    return made


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The guide's test module, bound to its store."""
    blocks = dict(BLOCK.findall(GUIDE.read_text(encoding="utf-8")))
    assert list(blocks) == ["jsonl_store", "test_jsonl_store"]
    for name, source in blocks.items():
        made = module(name, source)
    yield made
    for name in blocks:
        del sys.modules[name]


@pytest.fixture
def place(example: Any, tmp_path: Path) -> Place:
    """A fresh file."""
    made: Place = example.JsonLinesPlace(str(tmp_path / "queue.jsonl"))
    return made


def test_the_guide_binds_all_of_the_suite(example: Any) -> None:
    """What authors copy runs the same tests as our own stores."""
    own = {name for name in globals() if name.startswith("Test")}
    assert own
    assert {name for name in vars(example) if name.startswith("Test")} == own


def tear(file: Path) -> None:
    """What a crash in the middle of a write leaves."""
    file.write_bytes(file.read_bytes() + b'{"position":2,"base":0,"mutations":[["Task')


async def test_half_a_line_of_a_crash_is_no_batch(place: Any) -> None:
    """It is passed over, and the next batch takes its place."""
    store, leadership = await opened(place)
    await store.commit(leadership, batch(1, inserted(1)))
    await store.release_leadership(leadership)
    tear(Path(place.path))
    store = await place.open()
    leadership = await lead(store)
    assert leadership.position == 1
    await store.commit(leadership, batch(2, inserted(2)))
    other = await place.open()
    await store.release_leadership(leadership)
    assert ids((await recovered(other, await lead(other))).live) == [1, 2]
