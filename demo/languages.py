"""Workers in four languages beside each other, and the console to look at them: `demo --languages`.

Each language's worker is its SDK's own `hello_worker` example and has a pool of its own. Tasks come
to all four once a second until somebody ends it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cronoq
from demo.children import ROOT, Children
from demo.errors import DemoError

SERVING = "serving gRPC on "
CONSOLE_PORT: Final = 7071
EVERY_S: Final = 1.0
GREETING: Final = (("greet", "world"), ("square", 12))


@dataclass(frozen=True, slots=True)
class Language:
    """One language's worker.

    Attributes:
        name: Its name, which is also that of its pool.
        needs: The program that it can't be built without.
        builds: Commands that build it, each with the folder in which it runs.
        run: How it is started; endpoint and pool follow.
        tasks: Kinds and payloads that it is given in each round.
    """

    name: str
    needs: str
    builds: tuple[tuple[str, tuple[str, ...]], ...]
    run: tuple[str, ...]
    tasks: tuple[tuple[str, Any], ...]


def languages(cache: Path) -> list[Language]:
    """Returns all of them; what is built is put into a folder that stays."""
    go, rust = str(cache / "demo-go"), str(cache / "rust-target")
    compiler = ("node", "node_modules/typescript/bin/tsc", "-p", "tsconfig.test.json", "--noCheck")
    typescript: tuple[tuple[str, tuple[str, ...]], ...] = (
        ("sdk-typescript", ("npm", "run", "--silent", "build")),
        ("sdk-typescript", compiler),
    )
    if not _has_packages(ROOT / "sdk-typescript"):
        install = ("npm", "ci", "--no-audit", "--no-fund", "--silent")
        typescript = (("sdk-typescript", install), *typescript)
    cargo = ("cargo", "build", "--quiet", "--locked", "--example", "hello_worker")
    return [
        Language(
            "python",
            sys.executable,
            (),
            (sys.executable, "sdk-python/examples/hello_worker.py"),
            GREETING,
        ),
        Language(
            "go",
            "go",
            (("sdk-go", ("go", "build", "-o", go, "./examples/hello_worker")),),
            (go,),
            GREETING,
        ),
        Language(
            "typescript",
            "npm",
            typescript,
            ("node", "sdk-typescript/build/examples/hello-worker.js"),
            GREETING,
        ),
        Language(
            "rust",
            "cargo",
            (("sdk-rust", (*cargo, "--target-dir", rust)),),
            (f"{rust}/debug/examples/hello_worker",),
            (("count_letters", "hello world"), ("bake", {"item": "bread", "count": 3})),
        ),
    ]


def cache_folder() -> Path:
    """The folder for what is built, which stays; it is made if there is none."""
    folder = Path(os.environ.get("CRONOQ_CACHE") or Path.home() / ".cache" / "cronoq")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _has_packages(folder: Path) -> bool:
    """Whether what the lock file names is installed; npm notes what it installed."""
    noted = folder / "node_modules" / ".package-lock.json"
    return (
        noted.exists() and noted.stat().st_mtime >= (folder / "package-lock.json").stat().st_mtime
    )


async def build(language: Language) -> None:
    """Builds one language's worker.

    Raises:
        DemoError: Its tools are missing, or a command failed; has what that said.
    """
    if shutil.which(language.needs) is None:
        raise DemoError(f"{language.name}: there is no {language.needs} on this machine")
    for folder, command in language.builds:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT / folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output, _ = await process.communicate()
        except asyncio.CancelledError:
            process.terminate()
            raise
        if process.returncode != 0:
            text = output.decode(errors="replace").strip()
            raise DemoError(f"{language.name}: {' '.join(command)} failed\n{text}")


def console_port() -> int:
    """The usual port if nobody has it, else any."""
    for port in (CONSOLE_PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise DemoError("no port is free on 127.0.0.1")


def configuration(names: Sequence[str], folder: Path) -> Path:
    """Writes the server's configuration: a pool for each language."""
    path = folder / "languages.toml"
    path.write_text("".join(f'[[pools]]\nname = "{name}"\n' for name in names))
    return path


async def show(children: Children, folder: Path, rounds: int | None) -> int:
    """Builds, starts and feeds all four.

    Args:
        children: What runs.
        folder: For files that are gone afterwards.
        rounds: After how many rounds it ends; None = never.

    Returns:
        How many tasks succeeded.

    Raises:
        DemoError: Something can't be built or does not start, or a task did not succeed.
    """
    spoken = languages(cache_folder())
    for language in spoken:
        begun = time.monotonic()
        print(f"building the worker in {language.name} …", end=" ", flush=True)
        await build(language)
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
    config = configuration([language.name for language in spoken], folder)
    console = f"127.0.0.1:{console_port()}"
    server = ("cronoq_server", "--config", str(config), "--http-addr", console)
    address = await children.start("server", (*server, "--grpc-addr", "127.0.0.1:0"), SERVING)
    for language in spoken:
        await children.run(language.name, (*language.run, address, language.name))
    print(f"\nconsole: http://{console}/     server: {address}     Ctrl-C ends all\n", flush=True)
    done = dict.fromkeys((language.name for language in spoken), 0)
    async with cronoq.Client(address) as client:
        while rounds is None or sum(done.values()) < rounds * sum(len(one.tasks) for one in spoken):
            await asyncio.gather(*(_feed(client, language, done) for language in spoken))
            counts = "   ".join(f"{name} {count}" for name, count in done.items())
            print(f"\rsucceeded: {counts}", end="", flush=True)
            if rounds is None:
                await asyncio.sleep(EVERY_S)
    print()
    return sum(done.values())


async def _feed(client: cronoq.Client, language: Language, done: dict[str, int]) -> None:
    """Hands in a round of tasks and waits for their ends."""
    for kind, payload in language.tasks:
        handle = await client.submit(kind, payload, pool=language.name)
        result = await handle.wait()
        if result.status is not cronoq.TaskStatus.SUCCEEDED:
            raise DemoError(f"{language.name}: {kind} ended as {result.status}: {result.message}")
        done[language.name] += 1
