"""Decides that what is released belongs together: one version, and licences that may be there.

Building and trying the packages is `./justw release-check`; here is what takes no time.
"""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools.quickstart import ROOT
from tools.release.bill import bill, page, refused
from tools.release.components import Component, npm, python
from tools.release.licences import expression_of, expression_of_text, is_permissive
from tools.release.packages import read_block, read_manifest, read_rust
from tools.release.versions import version, versions

GPL = Component("viral", "1.0", "pkg:pypi/viral@1.0", "GPL-3.0-only")
ODD = Component("odd", "1.0", "pkg:pypi/odd@1.0", "unknown")
FINE = Component("fine", "1.0", "pkg:pypi/fine@1.0", "MIT")


def test_all_packages_have_one_version() -> None:
    """In every place that states one, locks and the chart included."""
    assert version() in versions().values()


def test_versions_that_are_not_in_step_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the place that differs is named."""
    monkeypatch.setattr("tools.release.versions.versions", lambda: {"server": "1", "chart": "2"})
    with pytest.raises(ValueError, match="chart: 2"):
        version()


@pytest.mark.parametrize(
    ("stated", "expression", "may_be_here"),
    [
        (["MIT"], "MIT", True),
        (["", "BSD License"], "BSD-3-Clause", True),
        (["MIT/Apache-2.0"], "MIT OR Apache-2.0", True),
        (["GPL-2.0-only OR MIT"], "GPL-2.0-only OR MIT", True),
        (["Apache-2.0 AND MPL-2.0"], "Apache-2.0 AND MPL-2.0", False),
        (["Apache-2.0 WITH LLVM-exception"], "Apache-2.0 WITH LLVM-exception", True),
        (["GPL-3.0-only"], "GPL-3.0-only", False),
        (["free as in beer"], "unknown", False),
        ([], "unknown", False),
    ],
)
def test_licences_are_told_apart(stated: list[str], expression: str, may_be_here: bool) -> None:
    """Alternatives count if one of them is permissive, parts if all are."""
    assert expression_of(*stated) == expression
    assert is_permissive(expression) is may_be_here


def test_our_own_licence_is_known_by_its_text() -> None:
    """As those of Go modules are."""
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert expression_of_text(text) == "Apache-2.0"
    assert expression_of_text("All rights reserved.") == "unknown"


def test_licences_that_may_not_be_here_are_refused_by_name() -> None:
    """One that is not permissive, and one that nobody knows."""
    assert refused({"sdk": [FINE, GPL, ODD]}) == [
        "sdk: odd 1.0 is unknown",
        "sdk: viral 1.0 is GPL-3.0-only",
    ]


def test_dependencies_of_python_and_npm_may_be_here() -> None:
    """Those that can be told without a registry; a release check looks at all."""
    components = {
        "server": python("cronoq-server"),
        "sdk-python": python("cronoq", ("cli", "otel", "pydantic")),
        "sdk-typescript": npm(ROOT / "sdk-typescript/package-lock.json"),
    }
    assert refused(components) == []
    assert {"grpcio", "msgspec"} <= {one.name for one in components["sdk-python"]}


def test_bills_of_materials_are_what_cyclonedx_asks_for() -> None:
    """Every component with its licence, and what depends on it."""
    made = bill("sdk", "1.0", [FINE])
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made)) is None
    assert made["components"][0]["purl"] == FINE.purl
    assert made["dependencies"][0]["dependsOn"] == [FINE.purl]
    assert "| fine | 1.0 | MIT |" in page({"sdk": [FINE]}, "3.11")


def test_each_package_has_a_program_to_try() -> None:
    """In its README, with the address that is replaced."""
    for folder, language in (("sdk-go", "go"), ("sdk-typescript", "ts")):
        assert read_block(folder, language)
    assert "cronoq::" in read_rust()
    assert 'path = "../x"' in read_manifest("../x")
