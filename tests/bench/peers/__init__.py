"""Other job systems beside ours, on the same work: `./justw bench peers`."""

from tests.bench.peers.run import main

__all__ = ["main"]
