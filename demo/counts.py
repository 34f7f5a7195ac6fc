"""What is known of a file, and how what is known of many adds up.

Sums do not depend on an order, so a tree of tasks may add them in any shape. The checksum is a sum
as well: a single wrong byte in any file, or a file that is left out, makes it another one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass

CHECKSUM_SPACE = 1 << 256
TEXT_LOOK_BYTES = 1 << 20
"""How much of a file's start decides whether it is text."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one file, or of many together.

    Attributes:
        files: How many.
        binaries: How many of them are not text; they have no lines and no words.
        bytes: Their size.
        lines: Lines of the texts; a last line without an end is one.
        words: Words of the texts, apart by white space.
        checksum: The SHA-256 digests as numbers, added up, in hexadecimal.
    """

    files: int = 0
    binaries: int = 0
    bytes: int = 0
    lines: int = 0
    words: int = 0
    checksum: str = "0"

    def __add__(self, other: Counts) -> Counts:
        checksum = (int(self.checksum, 16) + int(other.checksum, 16)) % CHECKSUM_SPACE
        return Counts(
            self.files + other.files,
            self.binaries + other.binaries,
            self.bytes + other.bytes,
            self.lines + other.lines,
            self.words + other.words,
            f"{checksum:x}",
        )


def add_up(many: Iterable[Counts]) -> Counts:
    """Returns the sum, that of nothing for none."""
    return functools.reduce(operator.add, many, Counts())


def is_text(start: bytes) -> bool:
    """Whether a file that begins like this is taken for text: texts have no NUL."""
    return b"\0" not in start
