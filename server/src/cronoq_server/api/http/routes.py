"""What a route is: how it is called, what it serves, and how the documentation tells of it.

One table of these serves requests and makes the OpenAPI document, so that neither can say what
the other does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import inspect
from starlette.requests import Request
from starlette.responses import Response

from cronoq_server.api import texts
from cronoq_server.api.auth import Principal, require
from cronoq_server.api.http import answers, reading
from cronoq_server.api.http.front import BODY, HEADERS, HOLDING, WHO, Holding, Unreadable
from cronoq_server.api.http.requests import NoQuery
from cronoq_server.api.rpc import OPERATIONS
from cronoq_server.engine import ErrorReason
from cronoq_server.runtime.refusals import Refused

T = TypeVar("T")

QUERY_FIELDS_MAX: Final = 10_000

ID: Final = "72057594037927937"
"""An id, for examples."""

NOW: Final = "1767225600000000000"
"""An instant, for examples."""


class Call:
    """One request, as a route sees it.

    Attributes:
        who: The caller.
        holding: Keeps a stream for as long as their credential is good.
        headers: By name, in lower case.
        path: The variables of the path.
    """

    __slots__ = ("_scope", "headers", "holding", "path", "who")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self._scope = scope
        self.who: Principal = scope[WHO]
        self.holding: Holding = scope[HOLDING]
        self.headers: Mapping[str, str] = scope[HEADERS]
        self.path: Mapping[str, str] = scope["path_params"]

    @property
    def url(self) -> str:
        """The path as it was asked for."""
        path: str = self._scope["path"]
        return path

    def pairs(self) -> list[tuple[str, str]]:
        """The query, in order.

        Raises:
            Refused: It has too many parts.
        """
        raw: bytes = self._scope["query_string"]
        if not raw:
            return []
        try:
            return parse_qsl(
                raw.decode("latin-1"),
                keep_blank_values=True,
                max_num_fields=QUERY_FIELDS_MAX,
            )
        except ValueError as error:
            text = f"has more than {QUERY_FIELDS_MAX} parts"
            raise texts.invalid("query", text, QUERY_FIELDS_MAX) from error

    def query(self, shape: type[T]) -> T:
        """What the query says.

        Raises:
            Refused: It says something unknown, twice, or of another shape.
        """
        lists = _lists(shape)
        values: dict[str, Any] = {}
        for name, value in self.pairs():
            if name in lists:
                values.setdefault(name, []).append(value)
            elif name in values:
                raise texts.invalid(name, "must be given once")
            else:
                values[name] = value
        try:
            return msgspec.convert(values, shape, strict=False)
        except msgspec.ValidationError as error:
            raise reading.misshapen(error, "query") from error

    def body(self, shape: type[T]) -> T:
        """What the body says.

        Raises:
            Unreadable: It is not said to be JSON.
            Refused: It is none, or of another shape.
        """
        media = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media != "application/json":
            # Forms of foreign pages can send other types to this machine without being asked.
            shown = texts.shown(media) if media else "absent"
            text = f"content-type: must be application/json (curl: --json), is {shown}"
            raise Unreadable(415, ErrorReason.INVALID_FIELD, text, ("field", "content-type"))
        return reading.body(self._scope[BODY], shape)

    def optional_body(self, shape: type[T]) -> T:
        """What the body says; without one, what its defaults are."""
        return self.body(shape) if self._scope[BODY] else shape()


Handler: TypeAlias = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One way in which a route answers.

    Attributes:
        shape: Type of its JSON; None = there is no body, or one that is described by `media`.
        text: When it is given.
        media: Its media type, if it has a body.
        example: An answer, as JSON would have it.
    """

    shape: type | None = None
    text: str = "Done."
    media: str = "application/json"
    example: Any = None


def answered(shape: type, example: Any, text: str = "It is there.") -> dict[int, Answers]:
    """The one way in which most routes answer."""
    return {200: Answers(shape=shape, text=text, example=example)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path.

    Attributes:
        method: The HTTP method.
        path: With variables in braces.
        serve: What serves it.
        summary: What it does, in one sentence.
        group: Which chapter of the documentation it belongs to.
        answers: Ways in which it answers when nothing is refused, by status.
        refusals: Statuses of refusals beyond those that every route knows.
        query: What its query may say.
        body: What its body has to say; None = there is none.
        example: A body, as JSON would have it.
        headers: Request headers that it knows, with what they mean.
        mirrors: Methods of the gRPC contract that it offers.
        submits: Whether it submits tasks.
        body_is_optional: Whether the body may be left out.
    """

    method: str
    path: str
    serve: Handler
    summary: str
    group: str
    answers: Mapping[int, Answers]
    refusals: tuple[int, ...] = ()
    query: type = NoQuery
    body: type | None = None
    example: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    submits: bool = False
    body_is_optional: bool = False

    async def __call__(self, request: Request) -> Response:
        """Serves one request; refusals become answers here."""
        scope = request.scope
        try:
            call = Call(scope)
            if self.mirrors:
                require(call.who, OPERATIONS[self.mirrors[0]])
            response = await self.serve(call)
        except Refused as refused:
            refusal = reading.renamed(refused.refusal)
            response = answers.refusal(refusal, submitting=self.submits)
        except Unreadable as unreadable:
            response = answers.refusal(unreadable.refusal, code=unreadable.code)
        if isinstance(response, answers.Reply):
            accepts = "gzip" in scope[HEADERS].get("accept-encoding", "")
            return await answers.finish(response, accepts)
        return response


_LISTS: dict[type, frozenset[str]] = {}


def _lists(shape: type) -> frozenset[str]:
    """The parts of a query that may be repeated."""
    found = _LISTS.get(shape)
    if found is None:
        info = inspect.type_info(shape)
        assert isinstance(info, inspect.StructType)
        found = frozenset(
            part.encode_name
            for part in info.fields
            if isinstance(_plain(part.type), inspect.ListType)
        )
        _LISTS[shape] = found
    return found


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind
