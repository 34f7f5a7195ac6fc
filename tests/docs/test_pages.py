"""What the pages of the documentation tell their readers to do works, and prints what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.session import framed, reading
from tools.check_text import ROOT
from tools.doc_blocks import Block, blocks_of, pages

RUN = [page for page in pages() if any(block.is_run for block in blocks_of(page))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_page_works(page: Path, tmp_path: Path) -> None:
    """Its blocks, done in their order by somebody who reads it from top to bottom."""
    with reading(tmp_path) as session:
        for block in blocks_of(page):
            if block.is_run:
                session.run(block)


def test_a_block_takes_the_place_in_its_frame() -> None:
    """It is indented as its frame is."""
    assert framed("if 1:\n    # the block\n", "a\n\nb\n") == "if 1:\n    a\n\n    b\n"


@pytest.mark.parametrize(
    ("rest", "language", "text", "output"),
    [
        ("bash", "console", "$ false\n", None),
        ("bash", "console", "$ echo 1\n2\n", None),
        ("python", "python", "raise SystemExit(1)\n", None),
        ("python", "python", "print(1)\n", "2\n"),
        ("unheard of", "python", "print(1)\n", None),
    ],
)
def test_a_page_that_does_not_work_is_noticed(
    rest: str, language: str, text: str, output: str | None, tmp_path: Path
) -> None:
    """What fails, prints something else, or nobody can run, fails the page and names the line."""
    block = Block(ROOT / "docs/x.md", 7, language, text, "run", rest, output, (0, 0))
    with reading(tmp_path) as session, pytest.raises(AssertionError, match=r"docs/x\.md:7"):
        session.run(block)
