"""The command `dev`: a server and a worker of one's own, started again when code changes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from .app import WRONG, app, session
from .connection import ENDPOINT

LOOK_EVERY_S = 0.5
STOP_S = 10.0

RUN = """
import importlib, logging, sys
sys.path.insert(0, "")
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
name, _, attribute = sys.argv[1].partition(":")
getattr(importlib.import_module(name), attribute or "worker").run_forever()
"""


def stamps(folder: Path) -> dict[Path, int]:
    """When each Python file below a folder was written last."""
    found: dict[Path, int] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        for name in files:
            if name.endswith(".py"):
                path = Path(root, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:  # it is being replaced
                    continue
    return found


def stop(process: subprocess.Popen[bytes] | None) -> None:
    """Ends a process in order, or else by force."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@app.command()
def dev(
    context: typer.Context,
    worker: Annotated[str, typer.Argument(help="module:name of a Worker; name is `worker`.")],
    store: Annotated[str, typer.Option(help="memory or sqlite:PATH.")] = "sqlite:cronoq-dev.db",
    server: Annotated[bool, typer.Option(help="Start a server as well.")] = True,
    reload: Annotated[bool, typer.Option(help="Start the worker again when code changes.")] = True,
) -> None:
    """Run a server and a worker from a module, for developing handlers.

    With an endpoint of your own the server listens there, and the worker finds it in
    CRONOQ_ENDPOINT, as an `App` does; a `Worker` goes where its module says.
    """
    here = session(context)
    # Whoever asks for an end, it is in order: first the worker, then its server.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    endpoint = here.target.endpoint
    serving: subprocess.Popen[bytes] | None = None
    working: subprocess.Popen[bytes] | None = None
    if server:
        command = shutil.which("cronoq-server")
        if command is None:
            here.output.errors.print("cronoq-server is not installed: pip install cronoq-server")
            raise typer.Exit(WRONG)
        listen = [] if endpoint == ENDPOINT else ["--grpc-addr", endpoint.rpartition("/")[2]]
        # A process group of its own: Ctrl-C is for this command to pass on.
        serving = subprocess.Popen([command, "--store", store, *listen], process_group=0)
    seen = stamps(Path.cwd())
    try:
        while True:
            if working is None:
                working = subprocess.Popen(
                    [sys.executable, "-c", RUN, worker],
                    env={**os.environ, "CRONOQ_ENDPOINT": endpoint},
                    process_group=0,
                )
            time.sleep(LOOK_EVERY_S)
            if serving is not None and serving.poll() is not None:
                raise typer.Exit(serving.returncode or 1)
            now = stamps(Path.cwd()) if reload else seen
            if now != seen:
                seen = now
                here.output.say("code has changed: starting the worker again")
                stop(working)
                working = None
            elif working.poll() is not None:
                if not reload:
                    raise typer.Exit(working.returncode)
                seen = _changed(seen)
                working = None
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    finally:
        stop(working)
        stop(serving)


def _changed(seen: dict[Path, int]) -> dict[Path, int]:
    """Waits until a file has changed: a worker that ended by itself would end again."""
    while (now := stamps(Path.cwd())) == seen:
        time.sleep(LOOK_EVERY_S)
    return now
