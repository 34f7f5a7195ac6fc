"""Decides that generated code is recognisable, equal in its copies, and watched.

Whether it is what the contract says is for `just gen-check` to find out, with the generators; the
tests here hold that check to what it promises, and need no generator.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proto import gen

ROOT = Path(__file__).resolve().parents[2]
SDK_COPY, SERVER_COPY = gen.PYTHON_COPIES["cronoq"], gen.PYTHON_COPIES["cronoq_server"]

# Loads both copies, passes a message of one through the other, and calls across them.
ONE_PROCESS = """
import asyncio
from cronoq._proto import admin_pb2_grpc, errors_pb2, task_pb2, tasks_pb2, tasks_pb2_grpc
from cronoq._proto import testing_pb2_grpc, workers_pb2_grpc
from cronoq_server._proto import admin_pb2_grpc as _admin, errors_pb2 as _errors
from cronoq_server._proto import task_pb2 as server_task, tasks_pb2 as server_tasks
from cronoq_server._proto import tasks_pb2_grpc as server, testing_pb2_grpc as _testing
from cronoq_server._proto import workers_pb2_grpc as _workers
from grpc import aio

class Tasks(server.TasksServicer):
    async def Submit(self, request, context):
        assert isinstance(request.task, server_task.TaskSpec)
        return server_tasks.SubmitResponse(id=len(request.task.tags))

async def main():
    served = aio.server()
    server.add_TasksServicer_to_server(Tasks(), served)
    port = served.add_insecure_port("127.0.0.1:0")
    await served.start()
    task = task_pb2.TaskSpec(tags={"a": "1", "b": "2"})
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = await tasks_pb2_grpc.TasksStub(channel).Submit(tasks_pb2.SubmitRequest(task=task))
    await served.stop(None)
    print(answer.id, task_pb2.DESCRIPTOR.name, server_task.DESCRIPTOR is task_pb2.DESCRIPTOR)

asyncio.run(main())
"""


def files_below(place: Path) -> Iterator[Path]:
    """The generated files of one directory, relative to it."""
    for path in sorted((ROOT / place).rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(ROOT / place)


@pytest.mark.parametrize("place", gen.GENERATED, ids=str)
def test_generated_files_say_so(place: Path) -> None:
    """Who opens a generated file reads first that editing it is in vain."""
    files = list(files_below(place))
    assert files
    for file in files:
        first_line = (ROOT / place / file).read_text().partition("\n")[0]
        assert first_line.endswith("DO NOT EDIT."), place / file


def test_python_copies_differ_by_their_package_alone() -> None:
    """Server and SDK speak from one contract, though they share no code."""
    assert list(files_below(SERVER_COPY)) == list(files_below(SDK_COPY))
    for file in files_below(SDK_COPY):
        sdk = (ROOT / SDK_COPY / file).read_text()
        server = (ROOT / SERVER_COPY / file).read_text()
        assert sdk.replace("'cronoq._proto.", "'cronoq_server._proto.") == server, file


def test_python_copies_live_in_one_process() -> None:
    """An embedded server and the SDK register the same descriptors and understand each other."""
    command = [sys.executable, "-W", "error", "-c", ONE_PROCESS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "cronoq/v1/task.proto", "True"]


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files into the first generated directory of a tree."""
    for name, text in files.items():
        path = root / gen.GENERATED[0] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_check_names_every_difference(tmp_path: Path) -> None:
    """A changed, a forgotten and a left-over file are each told apart; equal ones are not told."""
    made = tree(tmp_path / "made", {"same.py": "1", "changed.py": "1", "new.py": "1"})
    found = tree(tmp_path / "tree", {"same.py": "1", "changed.py": "2", "old/gone.py": "1"})
    assert gen.differences(made, found) == [
        f"differs: {gen.GENERATED[0]}/changed.py",
        f"missing: {gen.GENERATED[0]}/new.py",
        f"not generated: {gen.GENERATED[0]}/old/gone.py",
    ]


def test_installing_leaves_no_difference(tmp_path: Path) -> None:
    """Generating into a tree replaces what changed and removes what is not generated any more."""
    made = tree(tmp_path / "made", {"changed.py": "1", "deep/new.py": "1"})
    found = tree(tmp_path / "tree", {"changed.py": "2", "gone.py": "1"})
    gen.install(made, found)
    assert gen.differences(made, found) == []


def test_a_missing_toolchain_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped for want of a tool: the message names it and where to get it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for tools, program in (
        (gen.go_tools, "go"),
        (gen.node_tools, "npm"),
        (gen.rust_tools, "cargo"),
    ):
        with pytest.raises(gen.ToolError, match=f"^{program} is not on the path: install "):
            tools()
