"""A configuration with shards is held against all its rules at once, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronoq_server import cli, config, shard_table
from cronoq_server.assembly import store_settings, topology
from cronoq_server.engine.ids import pack
from cronoq_server.stores.base import Unusable
from tests.sharding.conftest import SHARDS, Cluster

BASE = """
[[pools]]
name = "a"
[[pools]]
name = "b"
[[resources]]
name = "ra"
permits = 2
shard = "one"
[[shards]]
name = "one"
number = 1
pools = ["a"]
endpoint = "https://one.test:7070"
[[shards]]
name = "two"
number = 2
pools = ["b"]
endpoint = "http://two.test:7070/"
http_endpoint = "http://two.test:7071"
"""


def problems(text: str) -> dict[str, str]:
    """The mistakes of a configuration by path."""
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def test_each_server_gets_what_its_shard_owns() -> None:
    """Pools, resources and store of its own; who owns the rest is known."""
    whole = config.parse(
        BASE + '[store]\nkind = "sqlite"\npath = "/q/{shard}.db"\n[server]\nshard = "two"\n'
    )
    own = config.localized(whole)
    assert [pool.name for pool in own.pools] == ["b"]
    assert own.resources == ()
    assert own.store.path == "/q/two.db"
    settings = store_settings(own)
    assert settings.sqlite is not None
    assert settings.sqlite.shard == 2
    owners = topology(whole)
    assert owners.own.name == "two"
    one = owners.of_pool("a")
    assert one is not None
    assert (one.name, one.endpoint) == ("one", "https://one.test:7070")
    assert owners.of_resource("ra") is one
    assert owners.own.endpoint == "http://two.test:7070"


async def test_ids_carry_the_number_and_stores_belong_to_their_shard(
    shards: Callable[[str], Any], tmp_path: Path
) -> None:
    """The first id of a first leadership is known; another shard's store is refused."""
    path = tmp_path / "{shard}.db"
    cluster: Cluster = await shards(f"[store]\nkind = 'sqlite'\npath = '{path}'\n")
    first = [await cluster.edges["cpu"].submit(pool=pool) for pool in ("default", "llm", "site")]
    assert first == [pack(number, 1, 1) for number, _ in SHARDS.values()]
    assert first[:2] == [72058693549555713, 144116287587483649]
    await cluster.stop("gpu")
    await cluster.stop("web")
    (tmp_path / "gpu.db").rename(tmp_path / "web.db")
    with pytest.raises(Unusable, match="belongs to shard 2, not to 200"):
        await cluster.start("web")


def test_schemas_are_named_after_their_shards_if_nothing_is_said() -> None:
    """And may be named otherwise, as long as the shard is in the name."""
    url = '[store]\nkind = "postgres"\nurl = "postgres://h/d"\n'
    for line, expected in (("", "cronoq_one"), ('schema = "q_{shard}_x"\n', "q_one_x")):
        whole = config.parse(BASE + url + line + '[server]\nshard = "one"\n')
        assert config.localized(whole).store.schema == expected
    alone = config.parse(url)
    assert config.localized(alone).store.schema == "public"


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (('pools = ["b"]', 'pools = ["a", "b"]'), "shards[0].pools", "'a' is in 2 shards"),
        (('pools = ["b"]', 'pools = ["c"]'), "shards[1].pools", "no pool 'c'"),
        (('pools = ["b"]', 'pools = ["c"]'), "pools[1].name", "'b' is in no shard"),
        (("number = 2", "number = 1"), "shards[1].number", "also the number of shards[0]"),
        (("number = 2", "number = 0"), "shards[1].number", "from 1 to 255"),
        (("number = 2", "number = 256"), "shards[1].number", "from 1 to 255"),
        (('name = "two"', 'name = "one"'), "shards[1].name", "also the name of shards[0]"),
        (('shard = "one"', ""), "resources[0].shard", "must be given"),
        (('shard = "one"', 'shard = "six"'), "resources[0].shard", "no shard 'six'"),
        (("http://two.test:7070/", "ftp://two.test"), "shards[1].endpoint", "http"),
        (("http://two.test:7070/", "http://u:p@two.test"), "shards[1].endpoint", "http"),
        (("http://two.test:7070/", "http://two.test/x"), "shards[1].endpoint", "nothing behind"),
        (
            ("http://two.test:7070/", "https://one.test:7070"),
            "shards[1].endpoint",
            "also the endpoint",
        ),
    ],
)
def test_contradictions_are_named(change: tuple[str, str], path: str, message: str) -> None:
    """Each with its path and what is wrong."""
    assert change[0] in BASE
    found = problems(BASE.replace(*change))
    assert message in found[path]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('[server]\nshard = "one"\n', "server.shard"),
        ('[store]\nkind = "sqlite"\npath = "{shard}.db"\n', "store.path"),
        ('[[resources]]\nname = "r"\npermits = 1\nshard = "one"\n', "resources[0].shard"),
    ],
)
def test_what_belongs_to_shards_needs_shards(text: str, path: str) -> None:
    """Without `[[shards]]` it is a mistake, not ignored."""
    assert "[[shards]]" in problems(text)[path]


@pytest.mark.parametrize(
    ("store", "path"),
    [
        ('kind = "sqlite"\npath = "q.db"\n', "store.path"),
        ('kind = "postgres"\nurl = "postgres://h/d"\nschema = "public"\n', "store.schema"),
    ],
)
def test_shards_never_share_a_store(store: str, path: str) -> None:
    """A place that does not depend on the shard is refused."""
    assert "must hold {shard}" in problems(f"{BASE}[store]\n{store}")[path]


def test_a_shard_whose_name_makes_no_schema_is_refused() -> None:
    """PostgreSQL would not take it, or take it for another."""
    text = BASE.replace('"two"', '"Two.2"')
    found = problems(text + '[store]\nkind = "postgres"\nurl = "postgres://h/d"\n')
    assert "cronoq_Two.2" in found["shards[1].name"]


def test_a_server_must_be_told_its_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Serving needs one; checking the file that all servers share does not."""
    file = tmp_path / "cronoq.toml"
    file.write_text(BASE)
    assert cli.main(["--config", str(file)]) == cli.WRONG_CONFIG
    assert "--shard: must be given, since there are [[shards]]: one, two" in capsys.readouterr().err
    assert cli.main(["--config", str(file), "--check"]) == cli.OK
    assert cli.main(["--config", str(file), "--shard", "six"]) == cli.WRONG_CONFIG
    assert "there is no shard 'six', only one, two" in capsys.readouterr().err


async def test_the_table_says_who_owns_what_and_who_leads(cluster: Cluster) -> None:
    """One row for each shard, with its leader's own address and epoch; one that is down is seen."""
    await cluster.stop("gpu")
    text = await shard_table.table(cluster.config("cpu"))
    head, *rows = text.splitlines()
    assert head.split() == list(shard_table.HEAD)
    assert [row.split()[0] for row in rows] == list(SHARDS)
    assert [row.endswith("does not answer  -") for row in rows] == [False, True, False]
    for row, name in ((rows[0], "cpu"), (rows[2], "web")):
        leader, epoch = row.split()[-2:]
        assert leader == str(cluster.servers[name].address)
        assert int(epoch) > 0
