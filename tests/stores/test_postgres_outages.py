"""A PostgreSQL server that is silent, or gone, at a bad moment: what is told, and what goes on."""

from __future__ import annotations

import asyncio

import pytest

from cronoq_server.engine.model import SECOND
from cronoq_server.stores import pg_reads
from cronoq_server.stores.base import TimeBase, Unavailable
from cronoq_server.testing.store_suite import acquire, lead
from tests.stores.pg import Cluster
from tests.stores.pg_place import PostgresPlace
from tests.stores.proxy import Proxy

LONG = 600 * SECOND


@pytest.fixture
def place(postgres: PostgresPlace) -> PostgresPlace:
    """A fresh schema."""
    return postgres


def through(proxy: Proxy, cluster: Cluster) -> str:
    """The URL of the cluster behind a relay."""
    return cluster.tcp_url.replace(str(cluster.port), str(proxy.port))


@pytest.mark.parametrize("setting", ["url", "lock_url"])
async def test_no_server_of_the_role_that_the_url_asks_for_is_an_outage(
    place: PostgresPlace, cluster: Cluster, setting: str
) -> None:
    """So it looks while a database fails over: there is no primary for a while."""
    url = f"{cluster.tcp_url}?target_session_attrs=standby"
    with pytest.raises(Unavailable):
        await acquire(place.open_with(**{setting: url}))


async def test_a_session_that_dies_while_it_is_set_up_is_an_outage(
    place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is tried, and nothing is left of this one."""
    store = place.open_with()
    with monkeypatch.context() as patch:
        patch.setattr(pg_reads, "PLANNING", "SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(Unavailable):
            await acquire(store)
    await lead(store)


async def test_a_server_that_falls_silent_after_the_greeting_is_an_outage(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """A connection pooler greets by itself, whatever has become of the server behind it."""

    def fall_silent(received: bytes) -> bytes:
        if b"pg_backend_pid" in received:
            proxy.hold_answers()
        return received

    async with Proxy(cluster.port, fall_silent) as proxy:
        store = place.open_with(lock_url=through(proxy, cluster), session_timeout=SECOND)
        with pytest.raises(Unavailable):
            await acquire(store)


async def test_giving_a_term_back_to_a_silent_server_can_be_given_up(
    place: PostgresPlace, cluster: Cluster
) -> None:
    """Whoever cancels it does not wait for the server a second time, and the lock goes."""
    async with Proxy(cluster.port) as proxy:
        url = through(proxy, cluster)
        store = place.open_with(url=url, session_timeout=LONG)
        leadership = await lead(store)
        proxy.hold_answers()
        releasing = asyncio.ensure_future(store.release_leadership(leadership))
        await asyncio.sleep(0)
        releasing.cancel()
        await asyncio.wait({releasing})
        assert releasing.cancelled()
        other, term = await place.open(), None
        while term is None:
            term = await other.acquire_leadership("other", 0, TimeBase())
        assert term.epoch == leadership.epoch + 1
