"""Decides how pages that are read in the repository become pages of the site.

Pages are written so that they read well as they lie in the repository. Three things differ on the
site: a link that leaves ``docs/`` leads to the repository's address; what stands between
``<!-- tabs -->`` and ``<!-- end of tabs -->`` becomes tabs, one for each line in bold alone; the
marks that say how a block is tested are left out. The navigation is what the tables of
``docs/index.md`` list, so there is one list of pages. Called by mkdocs, see ``mkdocs.yml``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->$", re.DOTALL | re.MULTILINE)
TAB = re.compile(r"^\*\*([^*\n]+)\*\*$", re.MULTILINE)
MARK = re.compile(r"^<!-- (?:run|from|config|tested|output|illustration)\b.*?-->\n", re.MULTILINE)
TEMPLATE = "docs/adr/template.md"  # not a page: mkdocs.yml leaves it out
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| .* \| \[([^\]]+)\]\((?!\.\./)([\w/.-]+)\) \|$", re.MULTILINE)
RECORD = re.compile(r"^\| \[\d+\]\((\d{4}-[\w-]+\.md)\) \| (.+) \|$", re.MULTILINE)


def on_config(config: Any, **_: Any) -> Any:
    """Give mkdocs the navigation."""
    docs = Path(config["docs_dir"])
    config["nav"] = navigation(
        (docs / "index.md").read_text("utf-8"), (docs / "adr/index.md").read_text("utf-8")
    )
    return config


def navigation(index: str, records: str) -> list[Any]:
    """Return the navigation: a section for each heading above a table of pages."""
    _, *parts = SECTION.split(index)
    sections: list[Any] = [{"Home": "index.md"}]
    for title, content in zip(parts[::2], parts[1::2], strict=True):
        pages: list[Any] = [{name: path} for name, path in ROW.findall(content)]
        for page in pages:
            if page.get("Decision records") is not None:
                adrs = [{name: f"adr/{path}"} for path, name in RECORD.findall(records)]
                page["Decision records"] = ["adr/index.md", *adrs]
        if pages:
            sections.append({title: pages})
    return sections


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return a page's text as the site has it; mkdocs calls this for every page."""
    source = config["extra"]["source"]
    parts = FENCED.split(markdown)
    parts[::2] = [lead_out(part, page.file.src_uri, source) for part in parts[::2]]
    return TABS.sub(as_tabs, MARK.sub("", "".join(parts)))


def lead_out(text: str, page: str, source: str) -> str:
    """Return a text whose links out of ``docs/`` lead to the repository."""

    def led(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[1]))
        if path.startswith("docs/") and path != TEMPLATE:
            return link[0]
        kind = "blob" if posixpath.splitext(path)[1] else "tree"
        return f"{source}/{kind}/main/{path}{link[2] or ''}"

    return LINK.sub(led, text)


def as_tabs(found: re.Match[str]) -> str:
    """Return what stands between the marks as tabs, one for each line in bold."""
    _, *parts = TAB.split(found[1])
    lines: list[str] = []
    for name, content in zip(parts[::2], parts[1::2], strict=True):
        lines += [f'=== "{name}"', ""]
        lines += [f"    {line}" if line else "" for line in content.strip("\n").splitlines()]
        lines.append("")
    return "\n".join(lines)
