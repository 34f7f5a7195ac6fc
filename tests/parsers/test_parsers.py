"""Everything that parses, given all that fuzzers ever found worth keeping, and fresh damage.

The campaign `parsers` is the long form; this one takes the same inputs every time.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest

from tests.campaigns import _endpoint_vectors as vectors
from tests.campaigns._parser_cases import CORPUS, damaged, read_corpus, write_corpus
from tests.campaigns._parser_targets import TARGETS, read_events
from tests.campaigns.parsers import fuzz_plain

DAMAGED = 400


@pytest.mark.parametrize("name", TARGETS)
def test_kept_and_damaged_inputs_break_nothing(name: str) -> None:
    """Each is understood or refused in order, and what is understood is what was said."""
    kept = read_corpus(CORPUS / f"{name}.jsonl")
    assert kept
    for content in (*kept, *islice(damaged(kept, 1), DAMAGED)):
        TARGETS[name](content)


def test_shared_endpoints_are_what_this_sdk_makes_of_them() -> None:
    """The other languages are held against the file, this one made it."""
    told = json.loads(vectors.PATH.read_text(encoding="utf-8"))["vectors"]
    assert told == [vectors.vector(text) for text in vectors.committed()]


def test_inputs_are_kept_as_they_are(tmp_path: Path) -> None:
    """Any bytes, each once, and the same seed damages them in the same way."""
    path = tmp_path / "inputs.jsonl"
    inputs = [bytes(range(256)), b"", b"a\nb", b""]
    write_corpus(path, inputs)
    kept = read_corpus(path)
    assert kept == [b"", b"a\nb", bytes(range(256))]
    first, second = (list(islice(damaged(kept, 3), 50)) for _ in range(2))
    assert first == second
    assert len(set(first)) > 25


def test_a_fault_is_found_and_its_input_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A parser that breaks on a byte is caught, and the input that broke it lies there."""

    def breaks(content: bytes) -> None:
        if b"\xff" in content:
            raise RecursionError("too deep")

    monkeypatch.setitem(TARGETS, "events", breaks)
    monkeypatch.setattr("tests.campaigns.parsers.FOUND", tmp_path)
    assert not fuzz_plain("events", 60, 1)
    (found,) = tmp_path.iterdir()
    assert b"\xff" in found.read_bytes()
    assert "FAULT" in capsys.readouterr().out


def test_reader_of_events_reads_as_browsers_do() -> None:
    """What events are held against: comments, three kinds of line ends, fields without value."""
    text = ": hello\r\ndata: a\rdata:b\nid: 7\n\nevent: end\ndata\n\ndata: lost"
    assert read_events(text) == [("", "7", "a\nb"), ("end", "7", "")]
