"""Everything that parses, given all that fuzzers ever found worth keeping, and fresh damage.

The campaign `parsers` is the long form; this one takes the same inputs every time.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.campaigns import _endpoint_vectors as vectors
from tests.campaigns import _sdk_vectors as sdk
from tests.campaigns._parser_cases import CORPUS, damaged, read_corpus, write_corpus
from tests.campaigns._parser_targets import TARGETS, read_events
from tests.campaigns.parsers import OTHERS, ROOT, fuzz_other, fuzz_plain

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


def test_shared_payloads_are_what_this_sdk_makes_of_them() -> None:
    """Also where another release of zlib would pack them in other bytes."""
    told = json.loads(sdk.PAYLOADS.read_text(encoding="utf-8"))["vectors"]
    assert len(told) == len(sdk.payload_vectors())
    for one in told:
        packed = base64.b64decode(one["payload"])
        assert sdk.payload_vector(one["codec"], one["content_type"], packed) == one


def test_shared_statuses_are_what_this_sdk_makes_of_them() -> None:
    """The other languages are held against the file, this one made it."""
    told = json.loads(sdk.ERRORS.read_text(encoding="utf-8"))["vectors"]
    assert told == sdk.error_vectors()


SOURCES = {"go": "*_test.go", "node": "test/*.test.ts", "cargo": "src/*.rs"}
"""Where the targets of a language stand, by the program that runs them."""


@pytest.mark.parametrize("name", OTHERS)
def test_targets_of_other_languages_are_there(name: str) -> None:
    """A target that was renamed would match no test, and a run of no test is no fault to some."""
    folder, (program, *arguments) = OTHERS[name]
    files = sorted((ROOT / folder).glob(SOURCES[program]))
    words = {word for part in arguments for word in re.findall(r"[A-Za-z_]\w+", part)}
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    match program:
        case "go":
            wanted = {word for word in words if word.startswith(("Fuzz", "Test"))}
            assert wanted <= set(re.findall(r"^func (\w+)\(", text, re.MULTILINE))
        case "node":
            assert (ROOT / folder / arguments[0]).is_file()
            wanted = set(arguments[1:])
            assert all(any(file.name.startswith(one) for file in files) for one in wanted)
        case _:
            wanted = {part for part in arguments if "::" in part}
            modules = {file.stem for file in files} | {f"{file.stem}::tests" for file in files}
            names = {f"fuzz_tests::{one}" for one in re.findall(r"^fn (\w+)\(", text, re.MULTILINE)}
            assert all(any(known.startswith(one) for known in names | modules) for one in wanted)
    assert wanted


def test_other_languages_are_told_how_long_and_from_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time, the seed and newly made endpoints; the exit code says whether all was well."""
    says = (
        "import json, os; e = os.environ; "
        "made = json.load(open(e['CRONOQ_ENDPOINT_VECTORS']))['vectors']; "
        "raise SystemExit(not (len(made) > 100 and e['CRONOQ_FUZZ_S'] == '{seconds}' == '7' "
        "and e['CRONOQ_FUZZ_SEED'] == '5'))"
    )
    monkeypatch.setattr("tests.campaigns.parsers.FOUND", tmp_path)
    monkeypatch.setattr("tests.campaigns.parsers.ENDPOINTS", 200)
    monkeypatch.setitem(OTHERS, "a-endpoints", ("tests", (sys.executable, "-c", says)))
    assert fuzz_other("a-endpoints", 7, 5)
    assert not fuzz_other("a-endpoints", 8, 5)


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
