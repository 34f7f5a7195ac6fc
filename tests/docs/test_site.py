"""The documentation as a site: it builds without a warning, and needs nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tools.check_text import ROOT
from tools.site_hooks import lead_out, navigation, on_page_markdown

# What a browser fetches by itself, by tag.
FETCHED = {"audio": "src", "iframe": "src", "img": "src", "link": "href", "script": "src"}
# Links of that kind name an address and fetch nothing.
NAMES_ONLY = {"canonical", "prev", "next"}


class Page(HTMLParser):
    """One page: what it fetches, where it leads, which places it has, what its text holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.paragraphs: list[str] = []
        self._in_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Takes an element."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.places.add(given["id"])
        if tag in FETCHED and FETCHED[tag] in given and given.get("rel") not in NAMES_ONLY:
            self.fetched.append(given[FETCHED[tag]])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "p":
            self._in_paragraph = True

    def handle_endtag(self, tag: str) -> None:
        """Takes the end of an element."""
        self._in_paragraph = self._in_paragraph and tag != "p"

    def handle_data(self, data: str) -> None:
        """Takes text."""
        if self._in_paragraph:
            self.paragraphs.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as ``just docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (0, "")
    return folder


@pytest.fixture(scope="module")
def built(site: Path) -> dict[Path, Page]:
    """Its pages; that of things not found is served at every address, and has no relative ones."""
    found = {p: Page(p.read_text("utf-8")) for p in site.rglob("*.html") if p.name != "404.html"}
    assert len(found) > 40
    return found


def test_every_page_is_there(built: dict[Path, Page], site: Path) -> None:
    """All of docs/ but the template of decision records."""
    expected = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    assert {path.relative_to(site).as_posix() for path in built} == expected - {"adr/template.html"}


def test_nothing_is_fetched_from_elsewhere(built: dict[Path, Page], site: Path) -> None:
    """No font, script, picture or style of another host: the site works without a network."""
    away = {url for page in built.values() for url in page.fetched if urlsplit(url).netloc}
    assert away == set()
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", styles) == []


def targets(built: dict[Path, Page]) -> Iterator[tuple[Path, str, str]]:
    """Each link within the site: the page that it is on, what it says, its anchor."""
    for path, page in built.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc:
                yield path, unquote(parts.path), unquote(parts.fragment)


def test_every_link_within_leads_somewhere(built: dict[Path, Page]) -> None:
    """Every file is there, and every place in a page."""
    broken = []
    for path, name, anchor in targets(built):
        target = (path.parent / name).resolve() if name else path
        page = built.get(target)
        if not target.exists() or (anchor and page is not None and anchor not in page.places):
            broken.append((path.name, name, anchor))
    assert broken == []


def test_lists_and_tables_are_seen_as_such(built: dict[Path, Page]) -> None:
    """Text that reads as a list in the repository is one on the site, too."""
    fault = re.compile(r"^(?:[-*] |\d+\. |\|.*\|$|=== \"|<!-- )", re.MULTILINE)
    odd = [(path.name, text) for path, page in built.items() for text in page.paragraphs]
    assert [(name, text) for name, text in odd if fault.search(text.strip())] == []


def test_links_out_of_the_folder_lead_to_the_repository() -> None:
    """What is not a page is read where the source is."""
    text = "[a](../../tests/x.py#L3) [b](errors.md) [c](../../demo) [d](https://e.example/f)"
    assert lead_out(text, "reference/x.md", "https://r.example") == (
        "[a](https://r.example/blob/main/tests/x.py#L3) [b](errors.md) "
        "[c](https://r.example/tree/main/demo) [d](https://e.example/f)"
    )


def test_bold_lines_between_the_marks_become_tabs() -> None:
    """Code keeps its lines, marks go, and what stands outside stays."""

    class File:
        src_uri = "x.md"

    class Here:
        file = File()

    text = (
        "Before\n\n<!-- tabs -->\n\n**One**\n\n<!-- run: bash -->\n```sh\na\n\nb\n```\n\n"
        "**Two**\n\nText\n<!-- end of tabs -->\n\n**After**\n"
    )
    found = on_page_markdown(text, Here(), {"extra": {"source": ""}})
    assert found == (
        'Before\n\n=== "One"\n\n    ```sh\n    a\n\n    b\n    ```\n\n=== "Two"\n\n    Text\n\n\n'
        "**After**\n"
    )


def test_the_navigation_is_what_the_index_lists() -> None:
    """One list of pages, in one order."""
    index = "## A\n\n| to learn | read |\n| --- | --- |\n| x | [X](x.md) |\n| y | [Y](../Y.md) |\n"
    assert navigation(index, "") == [{"Home": "index.md"}, {"A": [{"X": "x.md"}]}]
