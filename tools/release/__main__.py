"""Decides the order of a release check, and what it says in the end.

    python -m tools.release              everything
    python -m tools.release go npm       versions, bills, and these packages
    python -m tools.release --write      writes docs/reference/dependencies.md as well

Archives and bills of materials are left in dist.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.quickstart import ROOT, serving
from tools.release import packages
from tools.release.bill import PAGE, page, refused, write_bills
from tools.release.components import everything
from tools.release.places import Failed
from tools.release.versions import version

LANGUAGES = ("python", "go", "npm", "crate")
DIST = ROOT / "dist"


def check_components(stated: str, *, write: bool) -> None:
    """Write the bills, and hold licences and their page to what they should be.

    Raises:
        Failed: A licence may not be here, or the page is not current.
    """
    components = everything()
    for path in write_bills(DIST, stated, components):
        print(f"wrote {path.relative_to(ROOT)}")
    lines = refused(components)
    if lines:
        raise Failed("licences that may not be here:\n  " + "\n  ".join(lines))
    text = page(components, f"{sys.version_info.major}.{sys.version_info.minor}")
    if write:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        raise Failed(f"{PAGE.relative_to(ROOT)} is not current: run this with --write")


def try_packages(place: Path, stated: str, names: Sequence[str]) -> None:
    """Build packages, install them in a clean place, and run each one's quickstart there."""
    wheels = packages.build_python(place, DIST)
    programs = packages.install_python(place, wheels, stated)
    with serving([str(programs / "cronoq-server")], place) as address:
        if "python" in names:
            packages.try_python(place, programs, address)
        if "go" in names:
            packages.try_go(place, packages.build_go(place, DIST, stated), stated, address)
        if "npm" in names:
            packages.try_npm(place, packages.build_npm(place, DIST), address)
        if "crate" in names:
            packages.try_crate(place, packages.build_crate(place, DIST), address)


def main(arguments: Sequence[str]) -> int:
    """Check, and return the exit code."""
    parser = argparse.ArgumentParser(prog="release-check")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help=", ".join(LANGUAGES))
    parser.add_argument("--write", action="store_true", help="write the page of licences")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.packages) - set(LANGUAGES))
    if unknown:
        parser.error(f"no such package: {', '.join(unknown)} (there are: {', '.join(LANGUAGES)})")
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    try:
        stated = version()
        check_components(stated, write=given.write)
        with tempfile.TemporaryDirectory(prefix="cronoq-release-") as name:
            try_packages(Path(name), stated, given.packages or LANGUAGES)
    except (Failed, ValueError, RuntimeError) as error:
        print(error)
        print("release-check: failed")
        return 1
    print(f"release-check: ok, {stated}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
