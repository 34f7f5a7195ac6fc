"""Who is let in over HTTP, and in what dress: hosts, credentials, types, compression."""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from cronoq_server import config
from cronoq_server.api.http import answers, front
from tests.api.certificates import Place
from tests.api.conftest import ANY_PORT, Edge, serving
from tests.api.web import Line, browsing, refused, submission

Serve = Callable[[str], Awaitable[Edge]]

TOKEN = "a-token-of-sixteen-or-more"
FIGURES = "figures-of-sixteen-or-more"
CREDENTIALS = f"""
[[auth.tokens]]
token = "{TOKEN}"
role = "client"
pools = ["default"]
[[auth.tokens]]
token = "{FIGURES}"
role = "metrics"
[[pools]]
name = "default"
[[pools]]
name = "secret"
"""


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        ("localhost", True),
        ("LOCALHOST:7071", True),
        ("127.0.0.1:1", True),
        ("127.9.9.9", True),
        ("[::1]:7071", True),
        ("[::1]", True),
        ("::1", False),
        ("example.com", False),
        ("127.0.0.1.example.com", False),
        ("localhost.example.com:80", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
async def test_foreign_hosts_are_refused(edge: Edge, host: str, is_let_in: bool) -> None:
    """Without credentials a page in a browser can't reach the server under a name of its own."""
    async with browsing(edge, host=host) as web:
        answer = await web.get("/v1/pools")
        if is_let_in:
            assert answer.status_code == 200
        else:
            assert refused(answer) == (400, "invalid_field", "host")
            assert answer.headers["connection"] == "close"
        assert (await web.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("origin", "is_let_in"),
    [("http://localhost:3000", True), ("https://example.com", False), ("null", False)],
)
async def test_foreign_pages_change_nothing(
    web: httpx.AsyncClient, origin: str, is_let_in: bool
) -> None:
    """A page from elsewhere can't even pause a pool, which takes no body."""
    answer = await web.post("/v1/pools/default/pause", headers={"origin": origin})
    if is_let_in:
        assert answer.status_code == 204
    else:
        assert refused(answer) == (400, "invalid_field", "origin")
    assert (await web.get("/v1/pools", headers={"origin": origin})).status_code == 200


@pytest.mark.parametrize(
    "authorization", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer x", f"Bearer {TOKEN}x"]
)
async def test_unknown_callers_hear_all_the_same(serve: Serve, authorization: str | None) -> None:
    """Whatever is wrong with a credential, the answer is one, byte for byte, whatever is asked."""
    edge = await serve(CREDENTIALS)
    headers = {} if authorization is None else {"authorization": authorization}
    async with browsing(edge, **headers) as web:
        told = set()
        for path in ("/v1/tasks/1", "/v1/pools", "/openapi.json", "/metrics", "/nowhere"):
            answer = await web.get(path)
            assert refused(answer)[:2] == (401, "unauthenticated")
            assert answer.headers["www-authenticate"].startswith("Bearer")
            told.add(answer.content)
        assert len(told) == 1
        assert (await web.get("/readyz")).status_code == 200


async def test_body_of_an_unknown_caller_is_not_read(serve: Serve) -> None:
    """The refusal comes before the body, and before it is even asked for."""
    edge = await serve(CREDENTIALS)
    line = await Line.open(edge.server.http_address)
    line.send("POST", "/v1/tasks", None, content_length="1000", expect="100-continue")
    answer = await line.answer()
    assert (answer.status, answer.reason) == (401, "unauthenticated")
    assert await line.ended() == b""


async def test_roles_and_pools_hold_over_http(serve: Serve) -> None:
    """A role that is not enough and a pool that is not theirs are refused, existing or not."""
    edge = await serve(CREDENTIALS)
    async with browsing(edge, authorization=f"Bearer {TOKEN}", host="any.example") as web:
        mine = (await web.post("/v1/tasks", json={"pool": "default"})).json()["id"]
        assert (await web.get(f"/v1/tasks/{mine}")).status_code == 200
        for pool in ("secret", "none"):
            answer = await web.post("/v1/tasks", json={"pool": pool})
            assert refused(answer)[:2] == (403, "pool_not_allowed")
        for path in ("/v1/pools", "/v1/snapshot", "/metrics"):
            assert refused(await web.get(path))[:2] == (403, "role_not_allowed")
        answer = await web.put("/v1/schedules/s", content=b"not even read")
        assert refused(answer)[:2] == (403, "role_not_allowed")
        assert (await web.get("/openapi.json")).status_code == 200
    async with browsing(edge, authorization=f"bearer  {FIGURES}") as web:
        assert (await web.get("/metrics")).status_code == 200
        assert (await web.get("/v1/pools")).status_code == 200
        assert refused(await web.get("/v1/tasks"))[:2] == (403, "role_not_allowed")


async def test_task_in_a_foreign_pool_is_like_none(serve: Serve) -> None:
    """Byte for byte: a task that is hidden looks as one that is not there."""
    edge = await serve(
        CREDENTIALS + '[[auth.tokens]]\ntoken = "all-pools-of-sixteen"\nrole = "admin"\n'
    )
    async with (
        browsing(edge, authorization="Bearer all-pools-of-sixteen") as admin,
        browsing(edge, authorization=f"Bearer {TOKEN}") as web,
    ):
        hidden = (await admin.post("/v1/tasks", json={"pool": "secret", "key": "k"})).json()["id"]
        for verb in ("", "/detail", "/output", "/wait"):
            there = await web.get(f"/v1/tasks/{hidden}{verb}")
            missing = await web.get(f"/v1/tasks/12345{verb}")
            assert there.status_code == missing.status_code == 404
            assert there.content.replace(hidden.encode(), b"12345") == missing.content
            assert there.headers.keys() == missing.headers.keys()
        answer = await web.post("/v1/tasks", json={"pool": "default", "key": "k"})
        assert refused(answer)[:2] == (403, "key_in_use")


@pytest.mark.parametrize(
    "media", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_body_must_say_that_it_is_json(web: httpx.AsyncClient, media: str | None) -> None:
    """Types that a form of a foreign page could send are not read."""
    headers = {} if media is None else {"content-type": media}
    answer = await web.post("/v1/tasks", content=b"{}", headers=headers)
    assert refused(answer) == (415, "invalid_field", "content-type")


async def test_large_answers_are_compressed_if_wanted(web: httpx.AsyncClient) -> None:
    """Gzip comes when it is accepted and pays; the content is the same."""
    for size in (10, 2_000, 200_000):
        body = {"key": f"k{size}", "payload": "x" * size}
        await web.post("/v1/tasks", json=body)
        path = f"/v1/task-by-key/detail?key=k{size}"
        packed = await web.get(path, headers={"accept-encoding": "br, gzip"})
        plain = await web.get(path, headers={"accept-encoding": "identity"})
        is_packed = packed.headers.get("content-encoding") == "gzip"
        assert is_packed == (len(plain.content) >= answers.GZIP_MIN)
        assert packed.json() == plain.json()
        assert "content-encoding" not in plain.headers
        if is_packed:
            assert int(packed.headers["content-length"]) < len(plain.content)


@pytest.mark.parametrize("size", [10, 100_000])
async def test_compressed_bodies_are_read(web: httpx.AsyncClient, size: int) -> None:
    """A body may come compressed, small or large."""
    body = gzip.compress(submission(key="k", payload="x" * size))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert (await web.post("/v1/tasks", content=body, headers=headers)).status_code == 201
    spec = (await web.get("/v1/task-by-key/detail?key=k")).json()["spec"]
    assert spec["payload"] == "x" * size


@pytest.mark.parametrize(
    ("body", "encoding", "status", "reason"),
    [
        (b"no gzip", "gzip", 400, "invalid_field"),
        (gzip.compress(b"{}")[:-1], "gzip", 400, "invalid_field"),
        (gzip.compress(b"{}") + b"x", "gzip", 400, "invalid_field"),
        (gzip.compress(b" " * 50_000_000), "gzip", 413, "too_large"),
        (b"{}", "br", 415, "invalid_field"),
        (b"{}", "gzip, gzip", 415, "invalid_field"),
    ],
    ids=["plain", "cut short", "followed", "endless", "unknown", "twice"],
)
async def test_body_that_unpacks_to_nonsense_is_refused(
    web: httpx.AsyncClient, body: bytes, encoding: str, status: int, reason: str
) -> None:
    """Damaged, endless and unknown encodings are refused; nothing large is ever made of them."""
    headers = {"content-type": "application/json", "content-encoding": encoding}
    answer = await web.post("/v1/tasks", content=body, headers=headers)
    assert refused(answer)[:2] == (status, reason)


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_unpacked_body_has_a_largest_size(extra: int) -> None:
    """A body of the limit is unpacked, one more byte is too much."""
    body = gzip.compress(b"x" * (1000 + extra))
    if extra < 1:
        assert front.unpack(body, 1000) == b"x" * (1000 + extra)
    else:
        with pytest.raises(front.Unreadable):
            front.unpack(body, 1000)


@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_body_limit_is_that_of_the_configuration(serve: Serve, extra: int) -> None:
    """A body of `max_http_body_bytes` passes, a larger one has its own status."""
    edge = await serve("[limits]\nmax_http_body_bytes = 1000\n")
    body = submission(payload="")
    body = submission(payload="x" * (1000 + extra - len(body)))
    assert len(body) == 1000 + extra
    async with browsing(edge) as web:
        answer = await web.post(
            "/v1/tasks", content=body, headers={"content-type": "application/json"}
        )
        if extra < 1:
            assert answer.status_code == 201
        else:
            assert refused(answer) == (413, "too_large", "body")


async def test_task_larger_than_a_message_is_refused(serve: Serve) -> None:
    """A body may be larger than one task may be; then the task is what is too large."""
    edge = await serve("[limits]\nmax_message_bytes = 262144\n")
    async with browsing(edge) as web:
        most = 262_144 - 65_536
        for size, status in ((most - 100, 201), (most + 1, 400)):
            answer = await web.post("/v1/tasks", json={"payload_text": "x" * size})
            assert answer.status_code == status
        assert refused(answer)[1] == "too_large"


async def test_unknown_paths_and_methods_have_reasons(web: httpx.AsyncClient) -> None:
    """What is not served is refused in the form of all refusals."""
    for path in ("/v1", "/v2/tasks", "/v1/tasks/", "/docs", "/v1/tasks/1/x"):
        answer = await web.get(path)
        assert refused(answer)[:2] == (404, "unsupported")
    for path, allowed in (("/v1/snapshot", "GET, HEAD"), ("/v1/tasks", "GET, HEAD, POST")):
        answer = await web.patch(path)
        assert refused(answer)[:2] == (405, "unsupported")
        assert answer.headers["allow"] == allowed


async def test_head_is_get_without_a_body(web: httpx.AsyncClient) -> None:
    """The headers are those of the answer; the connection goes on; a stream has no head alone."""
    for _ in range(2):
        head, answer = await web.head("/v1/snapshot"), await web.get("/v1/snapshot")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == answer.headers["content-type"]
        assert int(head.headers["content-length"]) > 0
    assert (await web.head("/v1/watch")).status_code == 405


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"timeout_s": "1"}, "timeout_s: expected a number, got a text"),
        ({"deps": {}}, "deps: expected a list, got an object"),
        ({"key": 1}, "key: expected a text, got a whole number"),
        ({"delay_s": True}, "delay_s: expected a number, got true or false"),
        ({"nothing": 1}, "nothing: is not known"),
    ],
)
async def test_refusals_speak_of_json(
    web: httpx.AsyncClient, body: dict[str, object], said: str
) -> None:
    """Types are told in words, whatever the server is written in."""
    answer = await web.post("/v1/tasks", json=body)
    assert answer.json()["error"]["message"] == said


async def test_queries_know_what_they_may_say(web: httpx.AsyncClient) -> None:
    """A part that no route knows is refused on each of them."""
    for path in ("/v1/pools", "/v1/schedules", "/v1/snapshot", "/v1/tasks/1", "/v1/workers"):
        assert refused(await web.get(f"{path}?verbose=1")) == (400, "invalid_field", "verbose")


async def test_every_answer_says_who_answers(web: httpx.AsyncClient) -> None:
    """Protocol, no caching, no guessing of types: on answers and refusals."""
    for path in ("/v1/pools", "/v1/tasks/1", "/nowhere"):
        headers = (await web.get(path)).headers
        assert headers["cronoq-protocol"] == "4"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers
        assert headers["date"]


async def test_defect_tells_nothing(
    edge: Edge,
    web: httpx.AsyncClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A caller of what fails hears no more than that; the cause is in the log."""

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("the cause")

    monkeypatch.setattr(edge.server.service, "get", fail)
    answer = await web.get("/v1/tasks/1")
    assert refused(answer)[:2] == (500, "internal")
    assert "cause" not in answer.text.replace("its log has the cause", "")
    (record,) = (record for record in caplog.records if record.levelname == "ERROR")
    assert "ZeroDivisionError" in str(record.exc_info)
    assert vars(record)["action"] == "call_failed"
    assert json.loads((await web.get("/v1/pools")).content)


async def test_certificate_is_a_credential_over_http(tmp_path: Path) -> None:
    """The client's certificate says who calls; probes need one to connect, and nothing more."""
    place = Place(tmp_path)
    place.issue("server", ["localhost", "127.0.0.1"], for_server=True)
    place.issue("client", ["worker.example"])
    place.issue("unknown", ["nobody.example"])
    certs = "[[auth.certs]]\ndns_name = 'worker.example'\nrole = 'client'\n"
    async with serving(place.tls(client_ca=True) + certs) as edge:
        for name, status in (("client", 200), ("unknown", 401)):
            context = ssl.create_default_context(cafile=str(place.ca))
            pair = tmp_path / f"{name}.pem", tmp_path / f"{name}-key.pem"
            context.load_cert_chain(*map(str, pair))
            url = f"https://{edge.server.http_address}"
            async with httpx.AsyncClient(base_url=url, verify=context, trust_env=False) as web:
                assert (await web.get("/v1/tasks")).status_code == status
                assert (await web.get("/readyz")).status_code == 200
        async with browsing(edge) as web:
            with pytest.raises(httpx.TransportError):
                await web.get("/readyz")


async def test_new_certificate_is_shown_to_new_connections(tmp_path: Path) -> None:
    """A connection that stood goes on after a reload; the next one meets the new certificate."""
    old, new = Place(tmp_path / "old"), Place(tmp_path / "new")
    for place in (old, new):
        place.issue("server", ["127.0.0.1"], for_server=True)
    async with serving(old.tls(client_ca=False)) as edge:
        url = f"https://{edge.server.http_address}"
        contexts = [ssl.create_default_context(cafile=str(place.ca)) for place in (old, new)]
        async with (
            httpx.AsyncClient(base_url=url, verify=contexts[0], trust_env=False) as before,
            httpx.AsyncClient(base_url=url, verify=contexts[1], trust_env=False) as after,
        ):
            assert (await before.get("/v1/pools")).status_code == 200
            edge.server.reload(config.parse(ANY_PORT + new.tls(client_ca=False)))
            assert (await before.get("/v1/pools")).status_code == 200
            assert (await after.get("/v1/pools")).status_code == 200
