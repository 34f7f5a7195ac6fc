"""The lines for a shell in the documentation: they work as they stand."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.api.conftest import Edge

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DOCUMENTED = "127.0.0.1:7071"
ENDS_BY_ITSELF = ("-s", "-S", "--fail-with-body", "--max-time", "20")


def commands(page: str) -> list[list[str]]:
    """The calls of curl on a page, as words."""
    found = []
    for block in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE):
            if command.startswith("curl "):
                found.append(shlex.split(command))
    return found


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize(("page", "count"), [("README.md", 3), ("docs/getting-started.md", 9)])
async def test_documented_calls_work(edge: Edge, page: str, count: int) -> None:
    """Each call gets an answer that is no refusal, one after the other on one server."""
    calls = commands(page)
    assert len(calls) == count
    for words in calls:
        assert any(DOCUMENTED in word for word in words)
        here = [word.replace(DOCUMENTED, str(edge.server.http_address)) for word in words]
        pipe = asyncio.subprocess.PIPE
        run = await asyncio.create_subprocess_exec(*here, *ENDS_BY_ITSELF, stdout=pipe, stderr=pipe)
        output, errors = await run.communicate()
        assert run.returncode == 0, (words, output, errors)
        assert not output or json.loads(output)
