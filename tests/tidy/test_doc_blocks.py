"""Decides that every block of code in the documentation has a fate that somebody looks after.

``tools/doc_blocks.py`` says how a page marks its blocks; ``tests/docs`` runs them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_text import ROOT
from tools.doc_blocks import (
    Block,
    all_blocks,
    blocks_of,
    commands_of,
    included,
    pages,
    shows,
    source_of,
)

ALL = list(all_blocks())
# What is taken from elsewhere comes from where a test of the SDK, or of the deployment, meets it.
COMPILED = ("sdk-go/", "sdk-python/", "sdk-rust/", "sdk-typescript/", "server/deploy/")
# The page that is drawn from the server's own document is named by that.
NAMED = {"http-api": "openapi", "new-language": "new_language"}


def name_of(page: Path) -> str:
    """The page as the repository knows it, for the ids of tests."""
    return page.relative_to(ROOT).as_posix()


def test_every_block_has_a_fate() -> None:
    """A block that is neither run nor marked as something to look at would rot unseen."""
    assert ALL
    assert [str(block) for block in ALL if not block.fate] == []


def test_illustrations_say_why_they_are_not_run() -> None:
    """Whoever gives up on running a block gives a reason."""
    bare = [str(one) for one in ALL if one.fate == "illustration" and len(one.rest) < 8]
    assert bare == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_blocks_from_files_are_current(page: Path) -> None:
    """What a page shows of a file is what the file says; ``just docs`` brings it up to date."""
    assert included(page) == page.read_text(encoding="utf-8")


def test_blocks_come_from_files_that_are_compiled() -> None:
    """Only what some test meets may be shown as if it worked."""
    strange = [b for b in ALL if b.fate == "from" and not b.rest.startswith(COMPILED)]
    assert [str(block) for block in strange] == []


def test_blocks_with_a_test_of_their_own_have_one() -> None:
    """The test is there and names the page, or what the page is drawn from."""
    for block in ALL:
        if block.fate == "tested":
            test = (ROOT / block.rest).read_text(encoding="utf-8")
            assert NAMED.get(block.page.stem, block.page.stem) in test, str(block)


SAMPLE = """\
<!-- run: bash -->
```console
$ echo one \\
    two
one two
$ false
```

```python
print(1)
```

```text
1
```

Words.

```text
2
```

<!-- from: sdk-go/x.go#part -->
```go
old
```
"""


def test_blocks_are_told_apart(tmp_path: Path) -> None:
    """Comments, programs with their output, and blocks about which nothing is said."""
    sample = tmp_path / "sample.md"
    sample.write_text(SAMPLE, encoding="utf-8")
    found = [(b.line, b.language, b.fate, b.rest, b.output) for b in blocks_of(sample)]
    assert found == [
        (2, "console", "run", "bash", None),
        (9, "python", "run", "python", "1\n"),
        (13, "text", "output", "", None),
        (19, "text", "", "", None),
        (24, "go", "from", "sdk-go/x.go#part", None),
    ]


def test_commands_are_told_from_their_output() -> None:
    """Lines that go on belong to the command, all others are what it prints."""
    assert commands_of("$ a \\\n    b\nc\n$ d\n") == [("a \\\n    b", "c\n"), ("d", None)]
    assert commands_of("a\nb\n") == [("a\nb\n", None)]
    assert shows("id …\n", "id 7\n")
    assert not shows("id …\n", "no 7\n")


def test_a_part_that_is_not_there_is_an_error() -> None:
    """A page can't show what a file does not say."""
    for where in ("sdk-go/no.go", "sdk-go/client.go#no such part"):
        block = Block(ROOT / "docs/x.md", 1, "go", "", "from", where, None, (0, 0))
        with pytest.raises(LookupError):
            source_of(block)
