"""What `cronoq-server shards` prints: who owns what, and who leads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from cronoq_server.assembly import peer_settings, shards_of
from cronoq_server.config import Config
from cronoq_server.config.sharding import schema_of
from cronoq_server.sharding import Shard
from cronoq_server.sharding.peers import Peer

HEAD = ("shard", "number", "pools", "resources", "store", "endpoint", "leader", "epoch")


async def table(config: Config) -> str:
    """Asks every shard once, all at the same time, and lays out what is known of them."""
    shards = shards_of(config)
    peers = [Peer(shard, peer_settings(config)) for shard in shards]
    try:
        await asyncio.gather(*(peer.probe() for peer in peers))
        rows = [
            (*_owned(config, shard), *_led(peer)) for shard, peer in zip(shards, peers, strict=True)
        ]
    finally:
        await asyncio.gather(*(peer.close() for peer in peers))
    return "\n".join(_aligned([HEAD, *rows]))


def _owned(config: Config, shard: Shard) -> tuple[str, ...]:
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
    )


def _led(peer: Peer) -> tuple[str, str]:
    """Where the replica that leads listens, and its epoch."""
    if peer.leader is None:
        return ("nobody leads" if peer.stands_by else "does not answer", "-")
    return (peer.leader.replica or "answers", peer.leader.epoch or "-")


def _aligned(rows: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
