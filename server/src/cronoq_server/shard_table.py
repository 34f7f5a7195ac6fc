"""What `cronoq-server shards` prints: who owns what, and whether a leader answers there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cronoq_server.assembly import peer_settings, shards_of
from cronoq_server.config import Config
from cronoq_server.config.sharding import schema_of
from cronoq_server.sharding import Shard
from cronoq_server.sharding.peers import Peer

HEAD = ("shard", "number", "pools", "resources", "store", "endpoint", "leader")


async def table(config: Config) -> str:
    """Asks every shard once, all at the same time, and lays out what is known of them."""
    shards = shards_of(config)
    peers = [Peer(shard, peer_settings(config)) for shard in shards]
    try:
        await asyncio.gather(*(peer.probe() for peer in peers))
        rows = [
            _row(config, shard, answers=peer.answers)
            for shard, peer in zip(shards, peers, strict=True)
        ]
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
    return "\n".join(_aligned([HEAD, *rows]))


def _row(config: Config, shard: Shard, *, answers: bool) -> tuple[str, ...]:
    (given,) = [one for one in config.shards if one.name == shard.name]
    store = config.store
    place = store.kind
    if store.kind == "sqlite" and store.path is not None:
        place = store.path.replace("{shard}", shard.name)
    elif store.kind == "postgres":
        place = f"schema {schema_of(store, given)}"
    return (
        shard.name,
        str(shard.number),
        " ".join(sorted(shard.pools)),
        " ".join(sorted(shard.resources)) or "-",
        place,
        shard.endpoint,
        "answers" if answers else "does not answer",
    )


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
