"""Which shard owns what follows from one table."""

from __future__ import annotations

import pytest

from cronoq_server.engine.ids import pack
from cronoq_server.sharding import Shard, Topology

CPU = Shard("cpu", 1, frozenset({"default", "mail"}), frozenset({"api"}), "https://cpu.test:7070")
GPU = Shard("gpu", 200, frozenset({"llm"}), frozenset({"gpu"}), "http://127.0.0.1:7072")
TOPOLOGY = Topology([GPU, CPU], "cpu")


def test_shards_stand_in_the_order_of_their_ids() -> None:
    """Whatever the order of the file: listings go through them by number."""
    assert TOPOLOGY.shards == (CPU, GPU)
    assert CPU.last_id() < pack(GPU.number, 1, 1) < GPU.last_id()
    assert CPU.last_id() == pack(2, 0, 0) - 1


def test_each_pool_resource_and_id_has_its_owner() -> None:
    """A value of a resource belongs where the resource does."""
    assert TOPOLOGY.own is CPU
    assert TOPOLOGY.of_pool("llm") is GPU
    assert TOPOLOGY.of_pool("nowhere") is None
    assert TOPOLOGY.of_resource("gpu") is GPU
    assert TOPOLOGY.of_resource("api:user-7") is CPU
    assert TOPOLOGY.of_resource("nothing") is None
    assert TOPOLOGY.of_id(pack(200, 7, 9)) is GPU
    assert TOPOLOGY.of_id(pack(3, 1, 1)) is None


def test_without_shards_everything_is_the_servers_own() -> None:
    """The ids of an unsharded server have its epoch where others have the shard's number."""
    single = Topology.single(["default"])
    assert not single.is_sharded
    assert single.of_id(pack(None, 700, 1)) is single.own
    assert single.of_pool("default") is single.own


@pytest.mark.parametrize(
    ("endpoint", "encrypted", "local"),
    [
        ("https://cpu.test:7070", True, False),
        ("http://cpu.test:7070", False, False),
        ("http://localhost:7070", False, True),
        ("http://[::1]:7070", False, True),
        ("http://127.9.9.9:7070", False, True),
    ],
)
def test_an_endpoint_says_whether_calls_are_safe_from_listeners(
    endpoint: str, encrypted: bool, local: bool
) -> None:
    """What leaves the machine unencrypted can be heard."""
    shard = Shard("a", 1, frozenset(), endpoint=endpoint)
    assert (shard.is_encrypted, shard.is_local) == (encrypted, local)


def test_a_shard_is_open_to_whoever_may_use_one_of_its_pools() -> None:
    """One pool is enough, and no restriction means all."""
    assert CPU.is_open_to(None)
    assert CPU.is_open_to(frozenset({"llm", "mail"}))
    assert not CPU.is_open_to(frozenset({"llm"}))
    assert not CPU.is_open_to(frozenset())
