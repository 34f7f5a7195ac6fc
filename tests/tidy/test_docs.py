"""Decides that the documentation can be trusted: links lead somewhere, what it names is there."""

import re
from pathlib import Path

import pytest

from tools.check_text import ROOT, find_faults, tracked_files
from tools.quickstart import read_quickstart
from tools.render_docs import stale_pages

DOCUMENTS = [path for path in tracked_files() if path.suffix == ".md"]

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
RECIPE_CALL = re.compile(r"\./justw ([a-z][a-z-]*)")
RECIPE = re.compile(r"^([a-z][a-z-]*)[^:=\n]*:(?!=)", re.MULTILINE)
# Paths in backticks that begin with a directory of the repository.
NAMED_PATH = re.compile(
    r"`((?:server|sdk-[a-z]+|proto|tests|tools|docs|demo|requirements)/[\w./-]*\w/?)`"
)
# Paths in backticks that begin with a package of the server.
NAMED_MODULE = re.compile(r"`((?:api|engine|ha|runtime|sharding|stores|testing)/\w+\.py)`")
SERVER = ROOT / "server/src/cronoq_server"
# One word per thing: what other systems say, and the word that the glossary has for it.
FOREIGN_WORDS = {
    "cron job": "schedule",
    "idempotency token": "key",
    "job": "task",
    "jobs": "tasks",
    "master": "leader",
    "misfire": "missed start",
    "slave": "standby",
    "visibility timeout": "lease",
}
# These pages speak of other systems, and give their words as hints.
MAY_SAY_FOREIGN_WORDS = {"docs/comparison.md", "docs/glossary.md", "docs/guide/migrating.md"}


def name_of(path: Path) -> str:
    """Return a path as the repository knows it, for the ids of tests."""
    return path.relative_to(ROOT).as_posix()


def anchors_of(document: Path) -> set[str]:
    """Return the anchors that a Markdown file's headings make."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_resolve(document: Path) -> None:
    """Every relative link names a file, and every anchor a heading of it."""
    broken = []
    for target in LINK.findall(FENCE.sub("", document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (document.parent / name).resolve() if name else document
        if not path.exists() or (anchor and anchor not in anchors_of(path)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_paths_exist(document: Path) -> None:
    """A path in backticks is one of the tree."""
    text = document.read_text(encoding="utf-8")
    named = [ROOT / path for path in NAMED_PATH.findall(text)]
    named += [SERVER / path for path in NAMED_MODULE.findall(text)]
    assert [name_of(path) for path in named if not path.exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_named_recipes_exist(document: Path) -> None:
    """Every command that a page tells to call is in the justfile."""
    recipes = set(RECIPE.findall((ROOT / "justfile").read_text(encoding="utf-8")))
    called = set(RECIPE_CALL.findall(document.read_text(encoding="utf-8")))
    assert called - recipes == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_documents_use_the_words_of_the_glossary(document: Path) -> None:
    """A thing has one name everywhere."""
    if name_of(document) in MAY_SAY_FOREIGN_WORDS:
        return
    text = FENCE.sub("", document.read_text(encoding="utf-8")).lower()
    said = [word for word in FOREIGN_WORDS if re.search(rf"\b{word}\b", text)]
    assert said == []


def test_generated_pages_are_current() -> None:
    """Pages that are drawn from the code say what the code says; ``just docs`` writes them."""
    assert stale_pages() == []


def test_text_files_are_clean() -> None:
    """No merge marks, notes for later, machine paths or stray space anywhere in the tree."""
    assert [fault for path in tracked_files() for fault in find_faults(path)] == []


def test_lock_files_name_no_host() -> None:
    """Lock files hold versions and hashes; where they come from is each user's setting."""
    locks = [*ROOT.glob("requirements/*.txt"), *ROOT.glob("*/package-lock.json")]
    assert locks
    with_hosts = [
        name_of(path)
        for path in locks
        if re.search(r'"resolved"|--(extra-)?index-url|--find-links', path.read_text("utf-8"))
    ]
    assert with_hosts == []


def test_quickstart_fits_its_promise() -> None:
    """The README says 20 lines, so that is what it has at most."""
    assert len(read_quickstart().splitlines()) <= 20


def test_every_page_is_on_the_index() -> None:
    """A page that no list names is found by nobody."""
    docs = ROOT / "docs"
    index = (docs / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages -= {page for page in pages if page.startswith("adr/") and page != "adr/index.md"}
    assert pages - {"index.md"} - set(LINK.findall(index)) == set()


def test_decision_records_are_numbered_and_indexed() -> None:
    """Each record has its own number, the usual headings, and a line on the index page."""
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    index = (ROOT / "docs/adr/index.md").read_text(encoding="utf-8")
    assert records
    assert len({record.name[:4] for record in records}) == len(records)
    for record in records:
        text = record.read_text(encoding="utf-8")
        headings = HEADING.findall(text)
        assert headings[1:] == ["Context", "Decision", "Consequences"], record.name
        assert re.search(r"^Status: (proposed|accepted|superseded by \d{4})$", text, re.MULTILINE)
        assert f"({record.name})" in index
