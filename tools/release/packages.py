"""Decides how each package is built, installed away from the checkout, and tried there."""

from __future__ import annotations

import json
import os
import re
import tarfile
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from tools.quickstart import EXPECTED_OUTPUT, README_ADDRESS, ROOT, read_quickstart, run_program
from tools.release.places import Failed, export, need, run

GO_MODULE = "github.com/cronoq/cronoq/sdk-go"
PYTEST_TRIES = """
def test_the_fixture_is_there(cronoq_server):
    cronoq_server.advance_blocking(60)
"""


def read_block(folder: str, language: str) -> str:
    """Return the first program in a package's README."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if found is None or README_ADDRESS not in found[1]:
        raise Failed(f"{folder}/README.md has no program in {language} with {README_ADDRESS}")
    return found[1]


def expect(package: str, output: str) -> None:
    """Hold what a quickstart printed against what it should.

    Raises:
        Failed: It printed something else.
    """
    if output != EXPECTED_OUTPUT:
        raise Failed(f"{package}: expected {EXPECTED_OUTPUT!r}, got {output!r}")


def build_python(place: Path, dist: Path) -> list[Path]:
    """Build the wheels of server and SDK."""
    for folder in ("server", "sdk-python"):
        source = export(folder, place / "src")
        python = need("python3")
        run(
            python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(dist), str(source), cwd=place
        )
    return sorted(dist.glob("*.whl"))


def install_python(place: Path, wheels: list[Path], version: str) -> Path:
    """Install the wheels into an environment of their own; return its programs' directory.

    Raises:
        Failed: The server there is of another version.
    """
    run(need("python3"), "-m", "venv", "x", cwd=place)
    programs = place / "x/bin"
    run(str(programs / "pip"), "install", "-q", *map(str, wheels), cwd=place)
    said = run(str(programs / "cronoq-server"), "--version", cwd=place)
    if version not in said:
        raise Failed(f"server: expected version {version}, got {said!r}")
    return programs


def try_python(place: Path, programs: Path, address: str) -> None:
    """Run the quickstart, then a test with the fixture that the package brings."""
    expect("sdk-python", run_program(read_quickstart(), str(programs / "python"), address, place))
    run(str(programs / "pip"), "install", "-q", "pytest", cwd=place)
    (place / "test_fixture.py").write_text(PYTEST_TRIES, encoding="utf-8")
    run(str(programs / "python"), "-m", "pytest", "-q", "-W", "error", "test_fixture.py", cwd=place)


def build_go(place: Path, dist: Path, version: str) -> Path:
    """Lay the module out as a module proxy serves it; return the proxy's directory."""
    source = export("sdk-go", place / "src")
    proxy = place / "proxy"
    versions = proxy / GO_MODULE / "@v"
    versions.mkdir(parents=True)
    archive = dist / f"cronoq-sdk-go-v{version}.zip"
    nested = source / "cronoqotel"  # A module of its own.
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in sorted(source.rglob("*")):
            if path.is_file() and nested not in path.parents:
                target.write(path, f"{GO_MODULE}@v{version}/{path.relative_to(source)}")
    (versions / f"v{version}.zip").write_bytes(archive.read_bytes())
    (versions / f"v{version}.mod").write_bytes((source / "go.mod").read_bytes())
    (versions / "list").write_text(f"v{version}\n", encoding="utf-8")
    told = {"Version": f"v{version}", "Time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    (versions / f"v{version}.info").write_text(json.dumps(told), encoding="utf-8")
    return proxy


def try_go(place: Path, proxy: Path, version: str, address: str) -> None:
    """Get the module into a program of its own, as its README says, and run that."""
    go = need("go")
    folder = place / "go"
    folder.mkdir()
    known = run(go, "env", "GOMODCACHE", cwd=folder).strip()
    outside = run(go, "env", "GOPROXY", cwd=folder).strip()
    cache = folder / "cache"
    env = {
        "GOPROXY": f"file://{proxy},file://{known}/cache/download,{outside}",
        "GONOSUMDB": GO_MODULE,
        "GOMODCACHE": str(cache),
        "GOFLAGS": "-modcacherw",
        "GOWORK": "off",
    }
    program = folder / "program"
    program.mkdir()
    run(go, "mod", "init", "example.com/program", cwd=program, env=env)
    source = read_block("sdk-go", "go").replace(README_ADDRESS, address)
    (program / "main.go").write_text(source, encoding="utf-8")
    run(go, "get", f"{GO_MODULE}@v{version}", cwd=program, env=env)
    expect("sdk-go", run(go, "run", ".", cwd=program, env=env))


def build_npm(place: Path, dist: Path) -> Path:
    """Build and pack the npm package; return the archive."""
    source = export("sdk-typescript", place / "src")
    # It copies what it shares with the other SDKs.
    export("conformance", place / "src")
    export("proto", place / "src")
    run(need("npm"), "ci", "--no-audit", "--no-fund", cwd=source)
    run(need("npm"), "pack", "--silent", "--pack-destination", str(dist), cwd=source)
    (archive,) = dist.glob("cronoq-*.tgz")
    return archive


def try_npm(place: Path, archive: Path, address: str) -> None:
    """Install the archive into a folder of its own, and run the quickstart there."""
    folder = place / "npm"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    run(need("npm"), "install", "--no-audit", "--no-fund", str(archive), cwd=folder)
    source = read_block("sdk-typescript", "ts").replace(README_ADDRESS, address)
    (folder / "program.js").write_text(source, encoding="utf-8")
    expect("sdk-typescript", run(need("node"), "program.js", cwd=folder))


def build_crate(place: Path, dist: Path) -> Path:
    """Package the crate; return the archive."""
    source = export("sdk-rust", place / "src")
    target = str(place / "target")
    run(need("cargo"), "package", "--quiet", "--no-verify", "--target-dir", target, cwd=source)
    (made,) = (place / "target/package").glob("cronoq-*.crate")
    archive = dist / made.name
    archive.write_bytes(made.read_bytes())
    return archive


def try_crate(place: Path, archive: Path, address: str) -> None:
    """Unpack the archive, and run the quickstart in a crate that depends on what was in it."""
    folder = place / "rust"
    folder.mkdir()
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    unpacked = archive.name.removesuffix(".crate")
    manifest = read_manifest(f"../{unpacked}")
    source = read_rust().replace(README_ADDRESS, address)
    program = folder / "program"
    (program / "src").mkdir(parents=True)
    (program / "Cargo.toml").write_text(manifest, encoding="utf-8")
    (program / "src/main.rs").write_text(source, encoding="utf-8")
    # Versions as they are locked: they are there already, and built for the SDK's own tests.
    (program / "Cargo.lock").write_bytes((ROOT / "sdk-rust/Cargo.lock").read_bytes())
    target = os.environ.get("CRONOQ_CACHE")
    env = {"CARGO_TARGET_DIR": f"{target}/rust-target"} if target else {}
    expect("sdk-rust", run(need("cargo"), "run", "--quiet", cwd=program, env=env))


def read_rust() -> str:
    """Return the program in the crate's README."""
    return read_block("sdk-rust", "rust,no_run")


def read_manifest(path: str) -> str:
    """Return the manifest of a program with the dependencies that the README names."""
    text = (ROOT / "sdk-rust/README.md").read_text(encoding="utf-8")
    found = re.search(r"^```toml\n(\[dependencies\]\n.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise Failed("sdk-rust/README.md names no dependencies")
    dependencies = re.sub(r'path = "[^"]*"', f'path = "{path}"', found[1])
    return f'[package]\nname = "program"\nversion = "0.1.0"\nedition = "2024"\n\n{dependencies}'
