"""Who calls, and what they may do: the one set of rules for every transport.

A transport hands `Authenticator.identify` what the connection says of its caller, and gets a
`Principal` or a refusal. What a principal may do is decided by `require` and its neighbours, which
the services call before they look at anything else. Rules a change must keep:

1. Credentials are checked before anything that depends on pools, shards, tasks or leadership.
2. Whoever has no valid credential hears the same, whatever was wrong with it.
3. A named pool that the caller may not use is refused before anybody looks whether it exists.
   Tasks, keys and schedules in such pools are looked up within `Principal.pools`, so that they are
   not there.
4. Tokens are kept as SHA-256 and compared in constant time; no text here ever holds one.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

import msgspec

from cronoq_server.config import AuthConfig, CertConfig, TokenConfig, token_digest
from cronoq_server.engine import ErrorReason, Refusal
from cronoq_server.runtime.refusals import Refused

SCHEME: Final = "bearer"


class Role(StrEnum):
    """What a credential is good for."""

    CLIENT = "client"
    WORKER = "worker"
    METRICS = "metrics"
    ADMIN = "admin"


class Operation(StrEnum):
    """What can be asked of the server; the value is what people read."""

    SUBMIT = "submit tasks"
    CANCEL = "cancel a task"
    RETRY = "retry a task"
    DELETE = "delete a task"
    BULK = "cancel or retry many tasks"
    GET = "look at a task"
    DESCRIBE = "look at a task with its payload"
    LIST_TASKS = "list tasks"
    WAIT = "wait for results"
    WATCH = "watch statuses"
    WORK = "run tasks as a worker"
    GET_OUTPUT = "read a parent's output as a worker"
    SNAPSHOT = "take a snapshot"
    METRICS = "read metrics"
    LIST_WORKERS = "list workers"
    LIST_POOLS = "list pools"
    LIST_RESOURCES = "list resources"
    LIST_SCHEDULES = "list schedules"
    GET_SCHEDULE = "look at a schedule with its template"
    PREVIEW_SCHEDULE = "preview a schedule"
    PUT_SCHEDULE = "put a schedule"
    REMOVE_SCHEDULE = "remove a schedule"
    PAUSE_SCHEDULE = "pause or resume a schedule"
    TRIGGER_SCHEDULE = "trigger a schedule"
    BACKFILL_SCHEDULE = "backfill a schedule"
    PAUSE_POOL = "pause or resume a pool"
    SET_RESOURCE = "resize a resource"
    PROFILE = "take a profile of the process"
    MOVE_CLOCK = "move the test clock"


TASK_OPERATIONS: Final = frozenset(
    {
        Operation.SUBMIT,
        Operation.CANCEL,
        Operation.RETRY,
        Operation.DELETE,
        Operation.BULK,
        Operation.GET,
        Operation.DESCRIBE,
        Operation.LIST_TASKS,
        Operation.WAIT,
        Operation.WATCH,
    }
)
PERMISSIONS: Final[Mapping[Role, frozenset[Operation]]] = {
    Role.CLIENT: TASK_OPERATIONS,
    Role.WORKER: frozenset({Operation.WORK, Operation.GET_OUTPUT}),
    Role.METRICS: frozenset(
        {
            Operation.SNAPSHOT,
            Operation.METRICS,
            Operation.LIST_WORKERS,
            Operation.LIST_POOLS,
            Operation.LIST_RESOURCES,
            Operation.LIST_SCHEDULES,
        }
    ),
    Role.ADMIN: frozenset(Operation),
}
"""THE permission matrix: the documentation's table and the test's cells are drawn from it."""

SHARED: Final = frozenset({Operation.SET_RESOURCE})
"""What concerns all pools at once, so that a credential for some pools is not enough."""


class Principal(msgspec.Struct, frozen=True):
    """Who calls, and what they may see.

    Attributes:
        name: What the credential is called; worker sessions are bound to it, and the audit log
            names it.
        role: What it is good for.
        pools: Pools it may use; None = all.
        labels: Labels that its workers may claim, each with its values; None = any.
        tenant: The tenant whose tasks it is limited to; None = none.
        by_certificate: Whether a certificate said so: such a caller has no token to pass on.
    """

    name: str
    role: Role = Role.ADMIN
    pools: frozenset[str] | None = None
    labels: Mapping[str, frozenset[str]] | None = None
    tenant: str | None = None
    by_certificate: bool = False


ANONYMOUS: Final = Principal("anonymous")
"""Everybody, on a server without authentication."""

UNAUTHENTICATED: Final = Refusal(
    ErrorReason.UNAUTHENTICATED,
    "no valid credential: send 'authorization: Bearer TOKEN', or a client certificate",
)


class Hold:
    """A stream that stands as long as its caller's credential is good.

    Attributes:
        who: Whose it is.
        is_revoked: Whether the credential is no longer good for it.
    """

    def __init__(self, who: Principal, end: Callable[[], object]) -> None:
        self.who = who
        self.is_revoked = False
        self._end = end

    def revoke(self) -> None:
        """Ends the stream, once."""
        if not self.is_revoked:
            self.is_revoked = True
            self._end()


class Authenticator:
    """Knows the credentials of this moment; `replace` exchanges them all at once."""

    def __init__(self, config: AuthConfig) -> None:
        self._tokens: tuple[tuple[bytes, Principal], ...] = ()
        self._certificates: dict[str, Principal] = {}
        self._is_on = False
        self._held: set[Hold] = set()
        self.replace(config)

    @property
    def is_on(self) -> bool:
        """Whether callers are asked who they are."""
        return self._is_on

    def replace(self, config: AuthConfig) -> None:
        """Takes other credentials from now on.

        Short calls under way go on; what is held by a credential that is gone, or is good for
        something else now, is revoked.
        """
        tokens = []
        for token in config.tokens:
            digest = token_digest(token)
            assert digest is not None, "the configuration has been checked"
            tokens.append((digest, _principal(token, _token_name(digest))))
        self._tokens = tuple(tokens)
        self._certificates = {
            cert.dns_name: _principal(cert, f"cert-{cert.dns_name}") for cert in config.certs
        }
        self._is_on = config.is_on
        known = [principal for _, principal in self._tokens]
        known += self._certificates.values()
        for hold in self._held:
            if hold.who not in (known if self._is_on else [ANONYMOUS]):
                hold.revoke()

    @contextmanager
    def holding(self, who: Principal, end: Callable[[], object]) -> Iterator[Hold]:
        """For as long as a stream stands: it ends when its credential is revoked.

        Args:
            who: Whose stream.
            end: Ends it; called at most once.
        """
        hold = Hold(who, end)
        self._held.add(hold)
        try:
            yield hold
        finally:
            self._held.discard(hold)

    def identify(
        self, authorization: str | None, certificate_names: Iterable[str] = ()
    ) -> Principal:
        """Tells who calls.

        Args:
            authorization: The header or metadata of that name; None = there is none.
            certificate_names: The DNS names in a client certificate that has been verified.

        Raises:
            Refused: Whoever it is has no valid credential. A token that is wrong is not made up
                for by a certificate.
        """
        if not self._is_on:
            return ANONYMOUS
        if authorization is not None:
            found = self._by_token(authorization)
        else:
            found = self._by_certificate(certificate_names)
        if found is None:
            raise Refused(UNAUTHENTICATED)
        return found

    def _by_token(self, authorization: str) -> Principal | None:
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != SCHEME:
            return None
        given = hashlib.sha256(token.strip().encode(errors="surrogateescape")).digest()
        found = None
        for digest, principal in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(digest, given):
                found = principal
        return found

    def _by_certificate(self, names: Iterable[str]) -> Principal | None:
        for name in names:
            found = self._certificates.get(name.lower())
            if found is not None:
                return found
        return None


def _token_name(digest: bytes) -> str:
    """What a token is called that was given no name: always the same, and no way back to it."""
    return f"token-{hashlib.sha256(digest).hexdigest()[:12]}"


def _principal(credential: TokenConfig | CertConfig, name: str) -> Principal:
    labels = credential.labels
    return Principal(
        credential.name or name,
        Role(credential.role),
        credential.pools,
        None if labels is None else {label: frozenset(values) for label, values in labels},
        credential.tenant,
        by_certificate=isinstance(credential, CertConfig),
    )


def may(who: Principal, operation: Operation, pool: str | None = None) -> bool:
    """Whether somebody may do something, at all or in one pool."""
    return denial(who, operation, pool) is None


def require(who: Principal, operation: Operation, *pools: str) -> None:
    """Makes sure that somebody may do something, in every pool that is named.

    Raises:
        Refused: The role is not enough, or one of the pools is not theirs.
    """
    for pool in pools or (None,):
        refusal = denial(who, operation, pool)
        if refusal is not None:
            raise Refused(refusal)


def denial(who: Principal, operation: Operation, pool: str | None = None) -> Refusal | None:
    """Why somebody may not do something; None = they may.

    Whether the pool exists does not matter here, and must not.
    """
    if operation not in PERMISSIONS[who.role]:
        text = f"the role {who.role} may not {operation}"
        return Refusal(ErrorReason.ROLE_NOT_ALLOWED, text, (("role", str(who.role)),))
    if who.pools is None:
        return None
    if pool is not None and pool not in who.pools:
        text = f"pool: this credential may not use pool {pool!r}"
        return Refusal(ErrorReason.POOL_NOT_ALLOWED, text, (("pool", pool),))
    if operation in SHARED:
        text = f"this credential is limited to some pools, and may not {operation} of all"
        return Refusal(ErrorReason.POOL_NOT_ALLOWED, text)
    return None


def require_labels(who: Principal, labels: Sequence[tuple[str, str]]) -> None:
    """Makes sure that a worker may claim what it claims.

    Raises:
        Refused: One of the labels, or its value, is not among those of its credential.
    """
    if who.labels is None:
        return
    for label, value in labels:
        if value not in who.labels.get(label, ()):
            text = f"register.labels: this credential may not claim {label}={value}"
            raise Refused(Refusal(ErrorReason.LABEL_NOT_ALLOWED, text, (("label", label),)))
