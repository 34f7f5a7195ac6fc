"""How the gateway is put together: routes into an application, the front before it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.routing import Route as StarletteRoute

from cronoq_server.api import errors
from cronoq_server.api.admin_service import AdminService
from cronoq_server.api.auth import Authenticator, Operation, require
from cronoq_server.api.http import answers
from cronoq_server.api.http.answers import Reply
from cronoq_server.api.http.front import (
    HEADERS,
    METRICS,
    PROBES,
    WHO,
    Front,
    Receive,
    Role,
    Scope,
    Send,
    answer,
    by_name,
    closing,
    probe,
)
from cronoq_server.api.http.listener import HttpListener
from cronoq_server.api.http.openapi import document
from cronoq_server.api.http.profiling import PROFILE, Profiler, read_seconds
from cronoq_server.api.http.table import WATCH, all_routes
from cronoq_server.api.service import Service
from cronoq_server.api.specs import SpecReader
from cronoq_server.config import Address, Config, LimitsConfig
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

Render = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Makes a scrape from the `Accept` header: the media type and the body."""

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]

OPENAPI: Final = "/openapi.json"

log = logging.getLogger(__name__)


class _Direct(APIRoute):
    """A route that parses for itself: its endpoint takes the request and returns the answer.

    What the framework would do around it (bodies, dependencies, their clean-up) costs as much as
    admitting a task, and there is nothing of it to do.
    """

    def __init__(self, path: str, endpoint: Endpoint, method: str) -> None:
        # Without its body a stream would have no end that anybody could see.
        also = ["HEAD"] if method == "GET" and path != WATCH else []
        super().__init__(path, endpoint, methods=[method, *also], response_model=None)
        self.app = self._serve
        self._endpoint = endpoint

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        response = await self._endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class _Application(FastAPI):
    """The routes with nothing around them but what turns errors into answers."""

    def build_middleware_stack(self) -> Any:
        return ExceptionMiddleware(self.router, self.exception_handlers)


def application(
    version: str,
    service: Service,
    admins: AdminService,
    reader: SpecReader,
    metrics: Render,
    further: Sequence[BaseRoute] = (),
    profiler: Profiler | None = None,
) -> FastAPI:
    """The routes, for callers that are known.

    Args:
        version: Of the server.
        service: What they ask about tasks.
        admins: What they ask about everything else.
        reader: Reads task specs.
        metrics: Makes a scrape.
        further: Routes of others, such as pages; they find the caller in the request's scope.
        profiler: Takes profiles for operators; None = there is no such route.
    """
    app = _Application(
        title="cronoq",
        version=version,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    routes = all_routes(service, admins, reader)
    for route in routes:
        _add(app, route.path, route.method, route.__call__)
    described = document(version, routes)

    async def openapi(request: Request) -> Response:
        return await _finish(answers.json(described), request)

    async def scrape(request: Request) -> Response:
        try:
            require(request.scope[WHO], Operation.METRICS)
        except Refused as refused:
            return await _finish(answers.refusal(refused.refusal), request)
        media, body = await metrics(request.scope[HEADERS].get("accept", ""))
        reply = Reply(body, headers=[(b"content-type", media.encode())])
        return await _finish(reply, request)

    _add(app, OPENAPI, "GET", openapi)
    _add(app, METRICS, "GET", scrape)
    if profiler is not None:
        _add(app, PROFILE, "GET", _profiling(profiler))
    app.openapi = lambda: described  # type: ignore[method-assign]
    app.router.routes.extend(further)
    app.add_exception_handler(HTTPException, _not_served)
    app.add_exception_handler(Exception, _failed)
    return app


def _profiling(profiler: Profiler) -> Endpoint:
    """Serves profiles."""

    async def serve(request: Request) -> Response:
        try:
            require(request.scope[WHO], Operation.PROFILE)
            text = await profiler.take(read_seconds(request.scope["query_string"]))
        except Refused as refused:
            return await _finish(answers.refusal(refused.refusal), request)
        media = (b"content-type", b"text/plain; charset=utf-8")
        return await _finish(Reply(text.encode(), headers=[media]), request)

    return serve


def _add(app: FastAPI, path: str, method: str, serve: Endpoint) -> None:
    app.router.routes.append(_Direct(path, serve, method))


async def _finish(reply: Reply, request: Request) -> Response:
    return await answers.finish(reply, "gzip" in request.scope[HEADERS].get("accept-encoding", ""))


async def _not_served(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    method, path = request.scope["method"], request.scope["path"]
    text = (
        f"{path} knows no {method}"
        if error.status_code == 405
        else f"there is no {path}; /openapi.json lists what there is"
    )
    reply = answers.refusal(Refusal(ErrorReason.UNSUPPORTED, text), code=error.status_code)
    if error.status_code == 405:
        reply.add(b"allow", ", ".join(_methods(request.app, path)).encode())
    return await _finish(reply, request)


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods that a path knows."""
    found: set[str] = set()
    for route in app.routes:
        if isinstance(route, StarletteRoute) and route.path_regex.match(path):
            found |= route.methods or set()
    return sorted(found)


async def _failed(request: Request, error: Exception) -> Response:
    """A defect: its cause is in the log alone."""
    log.error(
        "%s %s failed",
        request.scope["method"],
        request.scope["path"],
        exc_info=error,
        extra={"action": "call_failed"},
    )
    return await answers.finish(answers.refusal(errors.DEFECT), accepts_gzip=False)


class Probes:
    """What is served at `metrics_addr`: figures and probes, for whoever can reach it."""

    def __init__(self, role: Role, metrics: Render) -> None:
        self._role = role
        self._metrics = metrics

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Serves one request."""
        path, method = scope["path"], scope["method"]
        if path in PROBES:
            reply = probe(self._role, path, method)
        elif path == METRICS and method in ("GET", "HEAD"):
            headers = by_name(scope["headers"])
            media, body = await self._metrics(headers.get("accept", ""))
            reply = Reply(body, headers=[(b"content-type", media.encode())])
        else:
            text = f"only {METRICS}, {' and '.join(PROBES)} are served here"
            reply = answers.refusal(Refusal(ErrorReason.UNSUPPORTED, text), code=404)
        await answer(closing(reply), scope, send)


class HttpServer:
    """HTTP of one process: the gateway at `http_addr`, and figures at `metrics_addr` if given."""

    def __init__(
        self,
        config: Config,
        app: FastAPI,
        role: Role,
        authenticator: Authenticator,
        metrics: Render,
        tls: ssl.SSLContext | None = None,
        is_public: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Prepares to listen.

        Args:
            config: Addresses and limits.
            app: As `application` makes it.
            role: What the process is.
            authenticator: Tells who calls.
            metrics: Makes a scrape.
            tls: How connections to the gateway are encrypted; None = they are not.
            is_public: Whether a path is served without a credential.
        """
        server, limits = config.server, config.limits
        self._front = Front(app, role, authenticator.identify, is_open=frozenset({METRICS}))
        self._front.is_public = is_public
        self._front.holding = authenticator.holding
        self._front.body_bytes_max = limits.max_http_body_bytes
        is_local = server.http_addr.is_loopback
        self._front.only_local = lambda: is_local and not authenticator.is_on
        self._gateway = HttpListener(server.http_addr, limits, self._front, tls)
        self._listeners = [self._gateway]
        if server.metrics_addr is not None:
            self._listeners.append(HttpListener(server.metrics_addr, limits, Probes(role, metrics)))

    @property
    def address(self) -> Address:
        """Where the gateway is; with the real port once it has started."""
        return self._gateway.address

    @property
    def connections(self) -> int:
        """How many connections the gateway has."""
        return self._gateway.connections

    @property
    def metrics_address(self) -> Address | None:
        """Where figures are served without a credential, if they are."""
        return self._listeners[1].address if len(self._listeners) > 1 else None

    def replace_limits(self, limits: LimitsConfig) -> None:
        """Takes other bounds on bodies and connections from now on."""
        self._front.body_bytes_max = limits.max_http_body_bytes
        for listener in self._listeners:
            listener.bound(limits.max_concurrent_streams)

    async def start(self) -> None:
        """Begins to listen, as a standby.

        Raises:
            AddressInUse: Somebody else listens there.
        """
        for listener in self._listeners:
            await listener.start()

    def lead(self) -> None:
        """Serves calls from now on."""
        for listener in self._listeners:
            listener.lead()

    def stand_by(self) -> None:
        """Refuses calls from now on and closes connections soon."""
        for listener in self._listeners:
            listener.stand_by()

    async def close(self, grace_s: float) -> None:
        """Takes no requests any more; those under way get `grace_s` seconds."""
        await asyncio.gather(*(listener.close(grace_s) for listener in self._listeners))
