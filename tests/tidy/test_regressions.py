"""Decides that every known kind of fault has a test, and that marks say so where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.fault_kinds import FAULT_KINDS, FaultKind
from tools.regression_marks import Mark, MarkError, collect, of_comments, of_python
from tools.render_docs import covered

KINDS = (FaultKind("R1", "a fault", "what is right"), FaultKind("R2", "another", "what is right"))
MARKED = """
import pytest
@pytest.mark.regression("R1", "R2")
async def test_both() -> None: ...
class TestMany:
    # Covers R3.
    @pytest.mark.parametrize("a", [1])
    def test_one(self) -> None: ...
"""


def test_every_kind_of_fault_has_a_test() -> None:
    """Each row is covered, by tests of several languages, and no mark is for a row of nothing."""
    marks = collect()
    assert [kind.number for kind, _ in covered(FAULT_KINDS, marks)] == [
        f"R{number}" for number in range(1, len(FAULT_KINDS) + 1)
    ]
    assert {Path(mark.path).suffix for mark in marks} == {".py", ".go", ".rs", ".ts", ".yaml"}


def test_row_without_a_test_is_an_error() -> None:
    """It is named, with what would go unnoticed."""
    with pytest.raises(LookupError, match="no test covers R2, another"):
        covered(KINDS, [Mark("R1", "a.py", "test_a")])


def test_mark_for_an_unknown_row_is_an_error() -> None:
    """A slip of the pen covers nothing."""
    with pytest.raises(LookupError, match=r"a\.py: test_a covers R9"):
        covered(KINDS, [Mark("R9", "a.py", "test_a")])


def test_marks_of_python_are_read() -> None:
    """As decorators, and as comments where the mark may not be known."""
    assert list(of_python(MARKED, "a.py")) == [
        Mark("R1", "a.py", "test_both"),
        Mark("R2", "a.py", "test_both"),
        Mark("R3", "a.py", "test_one"),
    ]


@pytest.mark.parametrize(
    ("path", "test", "name"),
    [
        ("a_test.go", "func TestA_DoesB(t *testing.T) {", "TestA_DoesB"),
        ("a.rs", "    #[tokio::test]\n    async fn does_b() {", "does_b"),
        ("a.test.ts", '  it("does b", async () => {', "does b"),
    ],
)
def test_marks_of_other_languages_are_read(path: str, test: str, name: str) -> None:
    """A comment right above the test names its rows."""
    text = f"// Holds b.\n// Covers R1, R2.\n{test}\n"
    assert list(of_comments(text, path)) == [Mark("R1", path, name), Mark("R2", path, name)]


@pytest.mark.parametrize(
    "text",
    [
        "# Covers R1.\n\ndef test_a() -> None: ...\n",
        "# Covers R1.\ndef helps() -> None: ...\n",
        '@pytest.mark.regression("R1")\ndef helps() -> None: ...\n',
        "@pytest.mark.regression\ndef test_a() -> None: ...\n",
        "@pytest.mark.regression(1)\ndef test_a() -> None: ...\n",
    ],
)
def test_mark_that_belongs_to_no_test_is_an_error(text: str) -> None:
    """Something between, something else below, no row: nothing would be covered by it."""
    with pytest.raises(MarkError):
        list(of_python(text, "a.py"))
