"""Credentials: who is let in as whom, and what tenants, labels and rates bound."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import grpc
import pytest

from cronoq_server import config
from cronoq_server._proto import admin_pb2, task_pb2, tasks_pb2, workers_pb2
from cronoq_server.api.auth import (
    ANONYMOUS,
    Authenticator,
    Operation,
    Principal,
    Role,
    may,
    require_labels,
)
from cronoq_server.engine import ErrorReason
from cronoq_server.runtime.refusals import Refused
from cronoq_server.telemetry import JsonFormatter
from tests.api.conftest import ANY_PORT, Edge, reason_of, serving

WEB = "web-token-0123456789"
OPS = "ops-token-0123456789"
ACME, GLOBEX = "acme-token-0123456789", "globex-token-0123456789"
GPU = "gpu-token-0123456789"


def token(text: str, role: str, more: str = "") -> str:
    """One table of the configuration."""
    return f"[[auth.tokens]]\ntoken = '{text}'\nrole = '{role}'\n{more}\n"


AWAITING = "[[pools]]\nname = 'default'\nawait_unknown_dependencies_s = 60\n"
PARTIES = (
    token(OPS, "admin", "name = 'ops'")
    + token(WEB, "client")
    + token(ACME, "client", "tenant = 'acme'")
    + token(GLOBEX, "client", "tenant = 'globex'")
    + token(GPU, "worker", "labels = { gpu = ['a100', 'h100'], zone = 'b' }")
)


def as_(text: str) -> dict[str, Any]:
    """Makes a call with a token."""
    return {"metadata": (("authorization", f"Bearer {text}"),)}


def authenticator(text: str) -> Authenticator:
    """One with these credentials."""
    return Authenticator(config.parse(text).auth)


def refused(known: Authenticator, *how: Any) -> bool:
    """Whether somebody is not let in."""
    try:
        known.identify(*how)
    except Refused as error:
        return error.refusal.reason is ErrorReason.UNAUTHENTICATED
    return False


async def reason(call: Any) -> str:
    """The reason of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return reason_of(caught.value)[0]


@pytest.fixture
async def edge() -> AsyncIterator[Edge]:
    """A server with some parties."""
    async with serving(AWAITING + PARTIES) as edge:
        yield edge


async def submit(edge: Edge, by: str, **fields: Any) -> int:
    """Submits a task as somebody."""
    request = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(**fields))
    return int((await edge.tasks.Submit(request, **as_(by))).id)


def test_nobody_is_asked_where_there_are_no_credentials() -> None:
    """Whoever calls such a server may do everything."""
    assert authenticator("").identify("Bearer whatever") == ANONYMOUS
    assert all(may(ANONYMOUS, operation, "any") for operation in Operation)


def test_token_is_known_by_text_variable_or_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The three ways to give a token are one."""
    monkeypatch.setenv("WEB_TOKEN", WEB)
    digest = hashlib.sha256(WEB.encode()).hexdigest()
    found = {
        authenticator(f"[[auth.tokens]]\n{way}\nrole = 'client'").identify(f"Bearer {WEB}")
        for way in (f"token = '{WEB}'", "token_env = 'WEB_TOKEN'", f"token_sha256 = '{digest}'")
    }
    (who,) = found
    assert who.role is Role.CLIENT
    assert WEB not in who.name
    assert digest[:12] not in who.name


def test_only_the_whole_token_counts() -> None:
    """Scheme in any case, one token, no more and no less."""
    known = authenticator(PARTIES)
    for right in (f"Bearer {WEB}", f"bearer {WEB}", f"BEARER  {WEB} "):
        assert known.identify(right).role is Role.CLIENT
    for wrong in (None, "", "Bearer", "Bearer ", f"Basic {WEB}", WEB, f"Bearer {WEB}x"):
        assert refused(known, wrong)
    assert refused(known, f"Bearer {WEB}\udcff")


def test_time_tells_nothing_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token is compared, as a digest and in constant time, wherever the right one stands."""
    known = authenticator(PARTIES)
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def count(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return compare(first, second)

    monkeypatch.setattr(hmac, "compare_digest", count)
    for text in (OPS, GPU, "x", "x" * 10_000):
        compared.clear()
        with suppress(Refused):
            known.identify(f"Bearer {text}")
        assert compared == [(32, 32)] * PARTIES.count("token =")


def test_wrong_token_is_not_made_up_for_by_a_certificate() -> None:
    """A certificate says who calls only where no token does."""
    known = Authenticator(
        config.AuthConfig(
            tokens=(config.TokenConfig(token=WEB, role="client"),),
            certs=(config.CertConfig(dns_name="w.example", role="worker"),),
        )
    )
    who = known.identify(None, ["other.example", "W.example"])
    assert (who.role, who.by_certificate, who.name) == (Role.WORKER, True, "cert-w.example")
    assert known.identify(f"Bearer {WEB}", ["w.example"]).role is Role.CLIENT
    assert refused(known, "Bearer wrong", ["w.example"])
    assert refused(known, None, ["other.example"])


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        (token("short", "client"), "auth.tokens[0].token", "16 characters"),
        (token("with space in the middle", "client"), "auth.tokens[0].token", "without spaces"),
        (token(WEB, "root"), "auth.tokens[0].role", "client, worker, metrics, admin"),
        (token(WEB, "client", "pools = ['nowhere']"), "auth.tokens[0].pools", "'nowhere'"),
        (token(WEB, "client", "pools = []"), "auth.tokens[0].pools", "at least one"),
        (token(WEB, "client", "labels = { a = 'b' }"), "auth.tokens[0].labels", "role worker"),
        (token(WEB, "admin", "tenant = 'a'"), "auth.tokens[0].tenant", "role client"),
        (token(WEB, "client", "token_env = 'PATH'"), "auth.tokens[0].token_env", "PATH"),
        ("[[auth.tokens]]\nrole = 'client'", "auth.tokens[0].token", "must be given"),
        (
            "[[auth.tokens]]\ntoken_sha256 = 'abc'\nrole = 'client'",
            "auth.tokens[0].token_sha256",
            "64",
        ),
        (token(WEB, "client") * 2, "auth.tokens[1]", "also that of auth.tokens[0]"),
        ("[[auth.certs]]\ndns_name = 'a.b'\nrole = 'client'", "server.tls.client_ca", "auth.certs"),
        ("[[auth.certs]]\ndns_name = 'a b'\nrole = 'client'", "auth.certs[0].dns_name", "DNS name"),
        (
            token(WEB, "client", "name = 'x'") + token(OPS, "admin", "name = 'x'"),
            "auth.tokens[1].name",
            "something else",
        ),
    ],
)
def test_wrong_credential_is_a_mistake_that_tells_no_token(
    text: str, path: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its path and rule; the token itself is in no message."""
    monkeypatch.setenv("PATH", "too short")
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text)
    found = {problem.path: problem.message for problem in caught.value.problems}
    assert word in found[path]
    for secret in (WEB, OPS, "short ", "space in"):
        assert secret not in str(caught.value)


def test_labels_are_held_against_the_credential() -> None:
    """A worker may claim some of what its credential has, and nothing else."""
    who = Principal("w", Role.WORKER, labels={"gpu": frozenset({"a100", "h100"})})
    require_labels(who, ())
    require_labels(who, (("gpu", "h100"),))
    require_labels(ANONYMOUS, (("any", "thing"),))
    for label in (("gpu", "t4"), ("zone", "b"), ("gpu", "")):
        with pytest.raises(Refused) as caught:
            require_labels(who, (label,))
        assert caught.value.refusal.reason is ErrorReason.LABEL_NOT_ALLOWED


async def test_worker_claims_only_its_labels(edge: Edge) -> None:
    """Register is refused for a label that the credential does not have."""
    for labels, ends in (({"gpu": "a100"}, False), ({"gpu": "t4"}, True)):
        stream = edge.workers.Work(**as_(GPU))
        register = workers_pb2.Register(labels=labels, protocol_version=4, slots=1)
        await stream.write(workers_pb2.WorkerMessage(register=register))
        if ends:
            assert await reason(stream.read()) == "LABEL_NOT_ALLOWED"
        else:
            assert (await stream.read()).HasField("registered")
            stream.cancel()


async def test_client_of_a_tenant_has_that_tenant_only(edge: Edge) -> None:
    """Its tasks get the tenant; another tenant's are not there, by whatever way it looks."""
    own = await submit(edge, ACME, key="k-acme")
    other = await submit(edge, GLOBEX, key="k-globex")
    await submit(edge, WEB, key="k-none")
    get = tasks_pb2.GetRequest(task=task_pb2.TaskRef(id=own))
    assert (await edge.tasks.Get(get, **as_(ACME))).tenant == "acme"
    assert (
        await reason(
            edge.tasks.Submit(
                tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(tenant="globex")), **as_(ACME)
            )
        )
        == "TENANT_NOT_ALLOWED"
    )
    for ref in (
        task_pb2.TaskRef(id=other),
        task_pb2.TaskRef(key="k-globex"),
        task_pb2.TaskRef(key="k-none"),
    ):
        calls = [
            edge.tasks.Get(tasks_pb2.GetRequest(task=ref), **as_(ACME)),
            edge.tasks.Describe(tasks_pb2.GetRequest(task=ref), **as_(ACME)),
            edge.tasks.Cancel(tasks_pb2.CancelRequest(task=ref), **as_(ACME)),
            edge.tasks.Retry(tasks_pb2.RetryRequest(task=ref), **as_(ACME)),
            edge.tasks.Delete(tasks_pb2.DeleteRequest(task=ref), **as_(ACME)),
            edge.tasks.Wait(tasks_pb2.WaitRequest(task=ref), **as_(ACME)),
        ]
        assert {await reason(call) for call in calls} == {"TASK_UNKNOWN"}
    listed = await edge.tasks.ListTasks(tasks_pb2.ListTasksRequest(), **as_(ACME))
    assert [info.id for info in listed.tasks] == [own]
    request = tasks_pb2.ListTasksRequest(tenants=["globex"])
    assert await reason(edge.tasks.ListTasks(request, **as_(ACME))) == "TENANT_NOT_ALLOWED"
    bulk = tasks_pb2.BulkRequest(action=tasks_pb2.BULK_ACTION_CANCEL)
    assert (await edge.tasks.Bulk(bulk, **as_(ACME))).changed == 1
    ends = edge.tasks.WaitMany(
        tasks_pb2.WaitManyRequest(ids=[own, other], keys=["k-none"]), **as_(ACME)
    )
    told = [message async for message in ends]
    assert [result.id for message in told for result in message.results] == [own]
    assert [error.task for message in told for error in message.errors] == [
        task_pb2.TaskRef(id=other),
        task_pb2.TaskRef(key="k-none"),
    ]


async def test_keys_and_parents_of_other_tenants_can_not_be_used(edge: Edge) -> None:
    """A foreign key is in use, a foreign parent is not there, whether alone or among others."""
    other = await submit(edge, GLOBEX, key="theirs")
    taken = tasks_pb2.SubmitRequest(task=task_pb2.TaskSpec(key="theirs"))
    assert await reason(edge.tasks.Submit(taken, **as_(ACME))) == "KEY_IN_USE"
    many = tasks_pb2.SubmitManyRequest(tasks=[{"key": "a"}, {"key": "theirs"}, {"key": "b"}])  # type: ignore[list-item]
    outcomes = (await edge.tasks.SubmitMany(many, **as_(ACME))).outcomes
    assert [bool(outcome.response.id) for outcome in outcomes] == [True, False, True]
    for ref in (
        task_pb2.TaskRef(id=other),
        task_pb2.TaskRef(key="theirs"),
        task_pb2.TaskRef(key="nobody's"),
    ):
        spec = task_pb2.TaskSpec(deps=[task_pb2.Dep(target=ref)])
        call = edge.tasks.Submit(tasks_pb2.SubmitRequest(task=spec), **as_(ACME))
        assert await reason(call) == "DEPENDENCY_UNKNOWN"
    batch = tasks_pb2.SubmitBatchRequest()
    batch.tasks.add(key="parent")
    batch.tasks.add().deps.add(target=task_pb2.TaskRef(key="parent"))
    assert len((await edge.tasks.SubmitBatch(batch, **as_(ACME))).tasks) == 2


async def test_tenant_watches_tasks_that_it_names(edge: Edge) -> None:
    """Whole pools have other tenants' tasks in them, so that it has to name its own."""
    own, other = await submit(edge, ACME), await submit(edge, GLOBEX)
    assert await reason(edge.tasks.Watch(tasks_pb2.WatchRequest(), **as_(ACME)).read()) == (
        "TENANT_NOT_ALLOWED"
    )
    foreign = tasks_pb2.WatchRequest(ids=[own, other])
    assert await reason(edge.tasks.Watch(foreign, **as_(ACME)).read()) == "TASK_UNKNOWN"
    watch = edge.tasks.Watch(tasks_pb2.WatchRequest(ids=[own]), **as_(ACME))
    await watch.initial_metadata()
    cancel = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=own))
    await edge.tasks.Cancel(cancel, **as_(ACME))
    assert (await watch.read()).id == own
    watch.cancel()


async def test_revoked_credential_ends_its_streams_and_no_others() -> None:
    """After a reload the old token is nobody's; streams of tokens that stay go on."""
    async with serving(PARTIES) as edge:
        request = tasks_pb2.WatchRequest(bookmarks=True)
        gone = edge.tasks.Watch(request, **as_(WEB))
        kept = edge.tasks.Watch(request, **as_(OPS))
        for watch in (gone, kept):
            assert await watch.read() is not grpc.aio.EOF
        waiting = edge.server.reload(config.parse(ANY_PORT + token(OPS, "admin", "name = 'ops'")))
        assert waiting == ()
        assert await reason(gone.read()) == "UNAUTHENTICATED"
        assert await reason(edge.tasks.Watch(request, **as_(WEB)).read()) == "UNAUTHENTICATED"
        task_id = await submit(edge, OPS)
        cancel = tasks_pb2.CancelRequest(task=task_pb2.TaskRef(id=task_id))
        await edge.tasks.Cancel(cancel, **as_(OPS))
        event = await kept.read()
        while not event.id:
            event = await kept.read()
        assert event.id == task_id
        kept.cancel()


async def test_submits_of_one_credential_are_counted_on_their_own() -> None:
    """Who has used up a second's worth hears when to come back; others are served."""
    limit = "[limits]\nsubmits_per_second_per_token = 2\n"
    async with serving(limit + PARTIES) as edge:
        batch = tasks_pb2.SubmitBatchRequest(tasks=[task_pb2.TaskSpec()] * 50)
        await edge.tasks.SubmitBatch(batch, **as_(WEB))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await submit(edge, WEB)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        named, facts = reason_of(caught.value)
        assert named == "RATE_LIMITED"
        assert 20 < float(facts["retry_after_s"]) < 25
        assert await submit(edge, ACME)


async def test_changes_by_operators_leave_a_line(
    edge: Edge, caplog: pytest.LogCaptureFixture
) -> None:
    """Who, what, to what and from where; reads and daily work leave none, payloads nowhere."""
    caplog.set_level(logging.INFO, "cronoq_server.api.audit")
    task_id = await submit(edge, WEB, key="secret-key", payload=b"secret-payload")
    ref = task_pb2.TaskRef(key="secret-key")
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=ref), **as_(WEB))
    await edge.tasks.Get(tasks_pb2.GetRequest(task=ref), **as_(WEB))
    assert not caplog.records
    await edge.tasks.Retry(tasks_pb2.RetryRequest(task=ref), **as_(WEB))
    await edge.tasks.Cancel(tasks_pb2.CancelRequest(task=ref), **as_(WEB))
    await edge.tasks.Delete(tasks_pb2.DeleteRequest(task=ref), **as_(OPS))
    await edge.tasks.Bulk(tasks_pb2.BulkRequest(action=tasks_pb2.BULK_ACTION_CANCEL), **as_(OPS))
    await edge.admin.PausePool(admin_pb2.PausePoolRequest(pool="default"), **as_(OPS))
    schedule = admin_pb2.RecurringRequest(
        name="nightly", cron="0 0 * * *", template=task_pb2.TaskSpec(payload=b"secret-payload")
    )
    await edge.admin.AddRecurring(schedule, **as_(OPS))
    trigger = admin_pb2.TriggerRecurringRequest(name="nightly")
    await edge.admin.TriggerRecurring(trigger, **as_(OPS))
    await edge.admin.RemoveRecurring(admin_pb2.RemoveRecurringRequest(name="nightly"), **as_(OPS))
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert [line["operation"] for line in lines] == [
        *("retry", "delete", "bulk", "pause_pool"),
        *("put_schedule", "trigger_schedule", "remove_schedule"),
    ]
    assert {line["action"] for line in lines} == {"change_made"}
    assert [line["who"] for line in lines[1:]] == ["ops"] * 6
    assert all(line["from"].startswith("ipv4:127.0.0.1:") for line in lines)
    assert (lines[1]["on_task"], lines[3]["on_pool"]) == (task_id, "default")
    assert "secret" not in json.dumps(lines)


async def test_exchange_of_a_token_keeps_its_worker_s_leases() -> None:
    """Two tokens of one name are one party: what one held, the other goes on with."""
    old, new = "the-old-token-of-w", "the-new-token-of-w"
    both = token(old, "worker", "name = 'w'") + token(new, "worker", "name = 'w'")
    async with serving(token(OPS, "admin") + both) as edge:
        stream = edge.workers.Work(**as_(old))
        register = workers_pb2.Register(slots=1, protocol_version=4)
        await stream.write(workers_pb2.WorkerMessage(register=register))
        session = (await stream.read()).registered
        await submit(edge, OPS)
        (lease,) = (await stream.read()).leases.leases
        resume = workers_pb2.Resume(session_token=session.session_token, leases=[lease.lease])
        for by, adopted in (("stranger", []), (new, [lease.lease])):
            credential = OPS if by == "stranger" else by
            again = edge.workers.Work(**as_(credential))
            register = workers_pb2.Register(slots=1, protocol_version=4, resume=resume)
            await again.write(workers_pb2.WorkerMessage(register=register))
            assert list((await again.read()).registered.adopted) == adopted
            again.cancel()
        stream.cancel()
