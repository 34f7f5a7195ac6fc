"""Decides what becomes of each block of code in the documentation, so that none can rot.

A block's fate is in a comment right above its fence, which readers of the page do not see:

* ``<!-- run: python -->`` is a program, ``run: bash`` commands, ``run: server`` one that serves;
  ``run: background`` goes on until the end of the page
* ``<!-- run: python as NAME -->`` is saved under that name and run, ``save as NAME`` only saved
* ``<!-- run: python in FILE -->`` is put into ``tests/docs/frames/FILE``, at ``# the block``
* ``<!-- config -->`` is a configuration that is accepted; ``config as NAME`` is saved, too
* ``<!-- from: PATH -->`` or ``PATH#PART`` is what stands in that file, or wherever in it a
  comment says ``docs: PART``, up to ``docs: end``; the tests of an SDK compile and run that file
* ``<!-- tested: PATH -->`` has a test of its own, which names the page
* ``<!-- output -->`` shows what something printed
* ``<!-- illustration: WHY -->`` is only to be looked at

A program in Python that is followed by a block of ``text`` needs no comment: it is run, and the
text is what it prints. ``tests/docs`` runs all this; ``tools/render_docs.py`` writes what comes
from files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.check_text import ROOT, tracked_files

FENCE = re.compile(r"^( *)(`{3,})([^`\n]*)\n(.*?)^\1\2 *$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!-- (run|save|config|from|tested|output|illustration)(?::? (.*))? -->\s*\Z")
SHELLS = ("console", "bash", "sh")
PART = r"^[ \t]*(?://|#)[!/]? docs: {}\n(.*?)^[ \t]*(?://|#)[!/]? docs: end$"


@dataclass(frozen=True, slots=True)
class Block:
    """One block between fences.

    Attributes:
        page: The file that it is in.
        line: Where its fence begins, counted from 1.
        language: The first word after the fence.
        text: What is between the fences.
        fate: The first word of its comment, or empty.
        rest: The rest of the comment.
        output: What the block of text after it shows, if that is its output.
        span: Where its text begins and ends in the page.
    """

    page: Path
    line: int
    language: str
    text: str
    fate: str
    rest: str
    output: str | None
    span: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def is_run(self) -> bool:
        """True if it is done by the tests of the documentation, in the order of its page."""
        return self.fate in ("run", "save", "config")


def pages() -> list[Path]:
    """Return the pages whose blocks count: all of the repository's."""
    return [path for path in tracked_files() if path.suffix == ".md"]


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    blocks: list[Block] = []
    for index, fence in enumerate(found):
        before = text[found[index - 1].end() if index else 0 : fence.start()]
        comment = COMMENT.search(before)
        fate, rest = (comment[1], comment[2] or "") if comment else ("", "")
        language = fence[3].split()[0] if fence[3].strip() else ""
        follower = found[index + 1] if index + 1 < len(found) else None
        output = None
        if (
            language == "python"
            and follower is not None
            and follower[3].strip() == "text"
            and not text[fence.end() : follower.start()].strip()
        ):
            output = textwrap.dedent(follower[4])
            if not fate:
                fate, rest = "run", "python"
        is_output = language == "text" and blocks and blocks[-1].output is not None
        if not fate and is_output and not before.strip():
            fate = "output"
        blocks.append(
            Block(
                page,
                text.count("\n", 0, fence.start()) + 1,
                language,
                textwrap.dedent(fence[4]),
                fate,
                rest,
                output,
                fence.span(4),
            )
        )
    return blocks


def all_blocks() -> Iterator[Block]:
    """Yield every block of every page."""
    for page in pages():
        yield from blocks_of(page)


def source_of(block: Block) -> str:
    """Return what a block ``from`` a file has to say.

    Raises:
        LookupError: There is no such file, or no such part in it.
    """
    path, _, part = block.rest.partition("#")
    file = ROOT / path
    if not file.is_file():
        raise LookupError(f"{block}: there is no file {path}")
    text = file.read_text(encoding="utf-8")
    if not part:
        return text
    found = re.findall(PART.format(re.escape(part)), text, re.DOTALL | re.MULTILINE)
    if not found:
        raise LookupError(f"{block}: {path} has no part {part}")
    return "\n".join(textwrap.dedent(one).strip("\n") + "\n" for one in found)


def included(page: Path) -> str:
    """Return the text of a page with each block ``from`` a file as that file has it now."""
    text = page.read_text(encoding="utf-8")
    for block in reversed(blocks_of(page)):
        if block.fate == "from":
            start, end = block.span
            text = text[:start] + source_of(block) + text[end:]
    return text


def write_included() -> list[Path]:
    """Bring the blocks ``from`` files up to date; return the pages that were written."""
    stale = [page for page in pages() if included(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        page.write_text(included(page), encoding="utf-8")
    return stale


def commands_of(text: str) -> list[tuple[str, str | None]]:
    """Return the commands of a session in a terminal, each with what it shows, if it shows it.

    A line after ``$`` begins a command; lines that are indented, or follow a backslash, go on with
    it; all others are its output. A block without any ``$`` is one script.
    """
    if not re.search(r"^\$ ", text, re.MULTILINE):
        return [(text, None)]
    commands: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append(([line[2:]], []))
        elif not commands:
            raise ValueError(f"{line!r} comes before the first command")
        else:
            said, shown = commands[-1]
            goes_on = said[-1].endswith("\\") or line.startswith("  ")
            (said if goes_on and not shown else shown).append(line)
    return [
        ("\n".join(said), "\n".join(shown) + "\n" if shown else None) for said, shown in commands
    ]


def shows(expected: str, output: str) -> bool:
    """Say whether an output is what a page shows; ``…`` there stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.rstrip("\n").split("…"))
    return re.fullmatch(pattern, output.rstrip("\n"), re.DOTALL) is not None
