"""Who may do what through another shard's server: every cell, over every kind of connection.

Each call is made where its pool is not. It must end as it would at the owner, or as the router's
own table says where a credential can't be lent; and never better than at the owner.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2

from cronoq_server._proto import task_pb2, tasks_pb2
from cronoq_server.api.auth import PERMISSIONS, Operation
from cronoq_server.api.passing import FORWARDED_KEY
from cronoq_server.api.rpc import OPERATIONS
from tests.api.conftest import Edge, reason_of
from tests.api.permissions import (
    ADMIN,
    CONFIG,
    CREDENTIALS,
    TARGETS,
    Credential,
    Target,
    methods,
)
from tests.api.test_http_permissions import OFFERED, ask, reason, requests
from tests.api.test_permissions import Grpc, bearer, furnish
from tests.sharding.conftest import by_id, free_ports, get
from tests.sharding.guarded import (
    ELSEWHERE,
    OWNERS,
    SECURITIES,
    Guarded,
    certificate_caller,
    certificate_of,
    forging_caller,
    guarded,
    heard,
    running,
    token_caller,
)
from tests.sharding.test_forwarding import refused
from tools.passing_table import ABOUT

CONSUMES = frozenset({"Retry", "Delete", "RemoveRecurring", "Cancel"})
"""Methods after which their target is another."""

MARK = (FORWARDED_KEY, "here")


class Forging(Grpc):
    """Calls by gRPC that say of themselves that a server passed them on."""

    def stub(self, method: str) -> Any:
        """See `Grpc.stub`."""
        plain = super().stub(method)
        return lambda *given, metadata=(): plain(*given, metadata=(*metadata, MARK))


class Cells:
    """The cells of one method, with what each of them is about."""

    def __init__(self, pair: Guarded, method: str) -> None:
        self._pair = pair
        self._method = method
        self._targets: dict[str, Target] = {}

    async def __aiter__(self) -> AsyncIterator[tuple[Credential, str, Target]]:
        for who, pool in itertools.product(CREDENTIALS, TARGETS):
            if pool not in self._targets or self._method in CONSUMES:
                owner = self._pair.edges[OWNERS.get(pool, "here")]
                self._targets[pool] = await furnish(owner, pool)
            yield who, pool, self._targets[pool]


@pytest.fixture(params=SECURITIES)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Guarded]:
    """Both shards, over each kind of connection."""
    async with guarded(request.param, tmp_path) as pair:
        yield pair


@pytest.fixture
async def mtls(tmp_path: Path) -> AsyncIterator[Guarded]:
    """Both shards, with certificates on both sides."""
    async with guarded("mtls", tmp_path) as pair:
        yield pair


async def test_a_token_is_good_for_the_same_at_any_shard(pair: Guarded) -> None:
    """By gRPC: every method, role, limit and pool ends as at the owner, or with directions."""
    for method in methods():
        async for who, pool, target in Cells(pair, method):
            way = Grpc(pair.edges[ELSEWHERE[pool]])
            told = heard(who, method, pool, token_caller)
            ended = await way.call(method, who.token, target)
            assert ended == told.here, (method, who, pool)
            assert ended != "OK" or told.there == "OK"


async def test_a_token_is_good_for_the_same_at_any_shard_over_http(pair: Guarded) -> None:
    """The same, and the mark of being passed on means nothing here."""
    webs = {
        name: await pair.web(name, "nobody.example", **{FORWARDED_KEY: "here"})
        for name in OWNERS.values()
    }
    for method in OFFERED:
        async for who, pool, target in Cells(pair, method):
            answer = await ask(webs[ELSEWHERE[pool]], requests(target)[method], who.token)
            told = heard(who, method, pool, token_caller)
            assert reason(answer) == told.here, (method, who, pool, answer)
            assert told.here != "OK" or told.there == "OK"


async def test_a_forged_mark_gains_nothing(pair: Guarded) -> None:
    """Whoever says that his call was passed on is held to all that others are, and goes nowhere."""
    for method in methods():
        async for who, pool, target in Cells(pair, method):
            way = Forging(pair.edges[ELSEWHERE[pool]])
            told = heard(who, method, pool, forging_caller)
            ended = await way.call(method, who.token, target)
            assert ended == told.here, (method, who, pool)
            assert ended != "OK" or told.there == "OK"


@pytest.mark.parametrize("forges", [False, True])
async def test_a_certificate_is_good_for_its_own_server(mtls: Guarded, forges: bool) -> None:
    """It can't be lent: what is another shard's is refused, or not there, or named as missing."""
    edges = {
        (who, name): await mtls.edge(name, certificate_of(who))
        for who in CREDENTIALS
        for name in OWNERS.values()
    }
    kind = Forging if forges else Grpc
    caller = forging_caller if forges else certificate_caller
    for method in methods():
        async for who, pool, target in Cells(mtls, method):
            told = heard(who, method, pool, caller)
            ended = await kind(edges[who, ELSEWHERE[pool]]).call(method, None, target)
            assert ended == told.here, (method, who, pool)
            assert ended != "OK" or told.there == "OK"


async def test_a_certificate_is_good_for_its_own_server_over_http(mtls: Guarded) -> None:
    """The same by HTTP."""
    webs = {
        (who, name): await mtls.web(name, certificate_of(who))
        for who in CREDENTIALS
        for name in OWNERS.values()
    }
    for method in OFFERED:
        async for who, pool, target in Cells(mtls, method):
            web = webs[who, ELSEWHERE[pool]]
            answer = await ask(web, requests(target)[method], None)
            told = heard(who, method, pool, certificate_caller)
            assert reason(answer) == told.here, (method, who, pool, answer)


async def test_ids_are_no_way_around(mtls: Guarded) -> None:
    """By id: a token is lent, a certificate is told where to go, a forged mark goes nowhere."""
    plain = mtls.edges["here"]
    request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(pool="other"))
    task_id = (await plain.tasks.Submit(request, metadata=bearer(ADMIN.token))).id
    for who in CREDENTIALS:
        edge = await mtls.edge("here", certificate_of(who))
        may = Operation.GET in PERMISSIONS[who.role]
        denied = "TASK_UNKNOWN" if may else "ROLE_NOT_ALLOWED"
        opens = may and not who.is_limited
        assert await _ended(plain, task_id, who.token) == ("OK" if opens else denied)
        directions = "WRONG_SHARD" if opens else denied
        assert await _ended(edge, task_id, None) == directions
        assert await _ended(plain, task_id, who.token, MARK) == directions


async def _ended(edge: Edge, task_id: int, token: str | None, *more: tuple[str, str]) -> str:
    """How it ends to look at a task."""
    try:
        await edge.tasks.Get(get(by_id(task_id)), metadata=(*bearer(token), *more))
    except grpc.aio.AioRpcError as error:
        return reason_of(error)[0]
    return "OK"


class Overhearing(grpc.GenericRpcHandler):
    """A peer that notes who calls it with what, and says of itself that it serves.

    Attributes:
        calls: Methods that were called, each with the metadata that came.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, str]]] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """See `grpc.GenericRpcHandler.service`."""
        method = handler_call_details.method
        metadata = {key: str(value) for key, value in handler_call_details.invocation_metadata}
        self.calls.append((method, metadata))
        if method.endswith("/Check"):
            return grpc.unary_unary_rpc_method_handler(_serves)
        return grpc.stream_stream_rpc_method_handler(_nothing)


async def _serves(_request: bytes, _context: Any) -> bytes:
    status = health_pb2.HealthCheckResponse.SERVING
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())


async def _nothing(_requests: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "there is nothing here")


@pytest.mark.parametrize("is_allowed", [False, True])
async def test_no_token_leaves_on_plain_http_to_another_host(is_allowed: bool) -> None:
    """Not for any method or credential, by gRPC or HTTP; unless the configuration allows it."""
    async with AsyncExitStack() as stack:
        peer, port = Overhearing(), free_ports(1)[0]
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((peer,))
        # Not a loopback address by its looks, so that it counts as another host's.
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        stack.push_async_callback(server.stop, 0)
        one = await stack.enter_async_context(running(_beside(port, is_allowed)))
        assert one.peers is not None
        while one.peers.missing():
            await one.peers.probe()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(str(one.address)))
        web = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{one.http_address}", trust_env=False, timeout=60)
        )
        target = Target("other", "live", "done", "schedule")
        for method, who in itertools.product(methods(), CREDENTIALS):
            await Grpc(Edge(one, channel)).call(method, who.token, target)
            if method in OFFERED:
                await ask(web, requests(target)[method], who.token)
        said = {metadata.get("authorization") for _, metadata in peer.calls}
        methods_called = {method.rpartition("/")[2] for method, _ in peer.calls}
        if is_allowed:
            assert f"Bearer {ADMIN.token}" in said
            assert {"Submit", "ListTasks", "Snapshot"} <= methods_called
        else:
            assert said == {None}
            assert methods_called == {"Check"}


def _beside(port: int, is_allowed: bool) -> str:
    return (
        "[server]\ngrpc_addr = '127.0.0.1:0'\nhttp_addr = '127.0.0.1:0'\nshutdown_grace_s = 0.1\n"
        f"shard = 'here'\ninsecure_peer_http = {str(is_allowed).lower()}\n{CONFIG}"
        "[[resources]]\nname = 'gpu'\npermits = 1\nshard = 'there'\n"
        "[[shards]]\nname = 'here'\nnumber = 1\npools = ['mine']\n"
        "endpoint = 'http://localhost:1'\n"
        "[[shards]]\nname = 'there'\nnumber = 2\npools = ['other']\n"
        f"endpoint = 'http://0.0.0.0:{port}'\n"
    )


async def test_servers_that_take_each_other_for_an_owner_end_the_call() -> None:
    """Each file gives the pool to the other shard: the second server refuses, and that is all."""
    ports = dict(zip(("one", "two"), free_ports(2), strict=True))
    async with AsyncExitStack() as stack:
        servers = {}
        for name, other in (("one", "two"), ("two", "one")):
            shards = "".join(
                f"[[shards]]\nname = '{shard}'\nnumber = {number}\n"
                f"pools = {['lost', shard] if shard == other else [shard]}\n"
                f"endpoint = 'http://127.0.0.1:{ports[shard]}'\n"
                for number, shard in enumerate(ports, 1)
            )
            pools = "".join(f"[[pools]]\nname = '{pool}'\n" for pool in ("one", "two", "lost"))
            text = (
                f"[server]\ngrpc_addr = '127.0.0.1:{ports[name]}'\nhttp_addr = '127.0.0.1:0'\n"
                f"shutdown_grace_s = 0.1\nshard = '{name}'\n{pools}{shards}"
            )
            servers[name] = await stack.enter_async_context(running(text))
        for server in servers.values():
            assert server.peers is not None
            while server.peers.missing():
                await server.peers.probe()
        target = str(servers["one"].address)
        edge = Edge(
            servers["one"], await stack.enter_async_context(grpc.aio.insecure_channel(target))
        )
        request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(pool="lost"))
        code, why, metadata = await refused(edge.tasks.Submit(request))
        assert (code, why) == (grpc.StatusCode.FAILED_PRECONDITION, "WRONG_SHARD")
        assert metadata["cronoq-shard"] == "one"


def test_every_operation_has_its_row() -> None:
    """The table that is printed and the matrix know the same operations."""
    assert set(ABOUT) == set(Operation)
    assert {OPERATIONS[method] for method in methods()} <= set(ABOUT)
