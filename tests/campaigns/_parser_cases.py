"""Decides which inputs a fuzzer of parsers tries: those kept, and ones made from them by damage.

A corpus is a file of JSON texts, one a line, each byte a character from U+0000 to U+00FF. The same
seed makes the same inputs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).resolve().parents[1] / "parsers" / "corpus"
LONGEST: Final = 5000
"""Most bytes of an input that is made."""

PIECES: Final = (
    *(b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"-1", b"0", b"1e999", b"9" * 30),
    *(b"[", b"{", b'"', b"\\ud800", b"\\u0000", b"\r\n", b"\n", b": ", b"=", b"__", b"\x1e"),
    *(
        "é".encode(),
        "\u212a".encode(),
        "\u2028".encode(),
        b"\xed\xa0\x80",
        b"%00",
        b"@",
        b"#",
        b"?",
    ),
    *(b"?", b"http://", b"https://", b"[::1]", b":0", b"..", b"*/", b"L", b"#5", b"nan", b"inf"),
)


def read_corpus(path: Path) -> list[bytes]:
    """The inputs of a file, in order; none when there is no such file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="ascii").splitlines()
    return [str(json.loads(line)).encode("latin-1") for line in lines]


def write_corpus(path: Path, inputs: Iterable[bytes]) -> None:
    """Keeps inputs, the short ones first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(one.decode("latin-1")) for one in sorted(set(inputs), key=_by_length)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def _by_length(content: bytes) -> tuple[int, bytes]:
    return len(content), content


def damaged(inputs: list[bytes], seed: int) -> Iterator[bytes]:
    """Inputs without end: kept ones with some damage, or put together from two."""
    chance = random.Random(seed)
    while True:
        content = bytearray(chance.choice(inputs))
        for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
            _damage(content, chance, inputs)
        yield bytes(content[:LONGEST])


def _damage(content: bytearray, chance: random.Random, inputs: list[bytes]) -> None:
    at = chance.randrange(len(content) + 1)
    match chance.randrange(7):
        case 0:
            content[at : at + 1] = bytes((chance.randrange(256),))
        case 1:
            del content[at : at + chance.choice((1, 1, 2, 8, 64))]
        case 2:
            content[at:at] = chance.choice(PIECES)
        case 3:
            content[at : at + chance.randrange(4)] = chance.choice(PIECES)
        case 4:
            content[at:at] = content[at : at + chance.randrange(1, 20)] * chance.choice((1, 2, 50))
        case 5:
            other = chance.choice(inputs)
            content[at:] = other[chance.randrange(len(other) + 1) :]
        case _:
            if at < len(content):
                content[at] ^= 1 << chance.randrange(8)
