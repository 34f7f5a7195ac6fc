"""What the SDK's tests share: a scripted server per test, closed with it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

# The scripted peer is a module beside the tests, which are no package.
sys.path.insert(0, str(Path(__file__).parent))

from scripted_server import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """A listening server without answers."""
    listening = await ScriptedServer().start()
    yield listening
    await listening.stop()


@pytest.fixture
async def other() -> AsyncIterator[ScriptedServer]:
    """A second one."""
    listening = await ScriptedServer().start()
    yield listening
    await listening.stop()
