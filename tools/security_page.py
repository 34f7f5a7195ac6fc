"""Decides what the page on security says; its table is the server's own matrix."""

from __future__ import annotations

from collections.abc import Iterator

from cronoq_server.api.auth import PERMISSIONS, SHARED, Operation, Role
from tools import passing_table

BEFORE = """\
A server without credentials serves its own machine only: it refuses to listen on an address that
others can reach, unless `--insecure-no-auth` says that this is wanted. With credentials every
call but health checks and reflection needs one.

<!-- config -->
```toml
[server]
grpc_addr = "0.0.0.0:7070"
http_addr = "0.0.0.0:7071"

[server.tls]
cert = "/etc/cronoq/server.pem"
key = "/etc/cronoq/server-key.pem"
client_ca = "/etc/cronoq/ca.pem"   # every caller then shows a certificate

[[pools]]
name = "default"
[[pools]]
name = "mail"
[[pools]]
name = "llm"

[[auth.tokens]]
name = "web"
token_env = "CRONOQ_WEB_TOKEN"
role = "client"
pools = ["default", "mail"]

[[auth.certs]]
dns_name = "gpu-worker.example"         # a DNS name in the certificate
role = "worker"
pools = ["llm"]
labels = { gpu = ["a100", "h100"] }
```

`cronoq-server dev-certs DIR` makes a CA and certificates to try this out, and prints the lines
that belong into the file.

## Credentials

A **token** has at least 16 characters and travels as `authorization: Bearer TOKEN`, over gRPC as
metadata. The file may hold it, name a variable that does, or hold no more than its SHA-256
(`printf %s "$TOKEN" | sha256sum`). The server keeps the SHA-256 alone and compares in constant
time. Tokens should travel encrypted; a server that takes them beyond loopback without TLS says so
in its log.

A **certificate** counts by its DNS names, once it has been verified against `client_ca`. A token
that is sent along wins, and a wrong one is not made up for by a certificate. A caller by
certificate has no token that could be passed on, so that calls for another shard are answered
with its endpoint.

`name` is what the audit log calls a credential; without one it is a word made from the token's
digest, or the DNS name. Two credentials of one name are one party, which is how a token is
exchanged: add the new one, reload, change the callers, remove the old one, reload. A worker's
session is bound to the name, so that its leases survive the exchange.

## Roles
"""

AFTER = """
Without authentication everybody has the role admin. A role says what may be asked; three limits
say about what:

- **pools**: the only pools that the credential may use. To name another one is refused with
  `pool_not_allowed`, whether it exists or not. Lists, snapshots and watches show nothing of other
  pools, and their tasks, keys and schedules are not there: the answer is, byte for byte, the one
  for what does not exist. So a limited caller can't wait for keys that are still to come, nor
  depend on tasks that nobody remembers: both would tell. What concerns all pools at once
  ({shared}) needs a credential without the limit.
- **tenant** (role client): tasks that are submitted get the tenant, and only its tasks are there.
  A watch has to name tasks, since whole pools have those of others in them.
- **labels** (role worker): the labels, and their values, that a worker may claim. Tasks that ask
  for a label then reach only workers that were given it.

One exception is left: a submit whose key belongs to a task that the caller may not see is refused
with `key_in_use`, and so is a schedule whose name is taken in such a pool. Nothing else would be
true, since keys and names are there once per shard. Give each party a prefix of its own where
even that is too much.

Who has no valid credential hears the same in every case: `unauthenticated`, whatever was wrong
and whatever was asked.

## Among shards

{passing}

## Changing credentials and certificates

SIGHUP reads the configuration again. Tokens, certificates, most limits and the figures of
resources hold from then on; keys that need a restart are named in the log and stay as they were.
A configuration with a mistake changes nothing. New certificates are shown to new connections, and
those that stand go on. Streams whose credential is gone, or good for something else now, end with
`unauthenticated`.

## Audit

Each change by an operator leaves one line in the log, action `change_made`: retries, deletes and
bulk calls, schedules, pools, resources. It says who (the credential's name and role), what, on
what, and from which address. Submits and cancels of single tasks are daily work and leave none.
No line holds a payload, an output, a key or a token.

## Limits

All of `[limits]` is in the [configuration](../reference/configuration.md). For servers that
others can reach: `submits_per_second_per_token` bounds what one credential may submit, in tasks.
A submit passes while anything is left of its second's worth, and a large batch is paid for
afterwards; whoever has run out hears `rate_limited` with the time to wait in `retry_after_s`.
Connections that say nothing are closed after `idle_connection_timeout_s`; peers that do not
answer a ping within `keepalive_timeout_s` are gone; who pings more often than every 5 seconds
loses the connection. Watchers and workers that do not read lose their stream, not the server its
memory.

## Other interfaces

gRPC health checks need no credential either. Where there are shards, a leader's answer names its
epoch and the address at which that replica listens, for `cronoq-server shards`.

`/healthz` and `/readyz` need no credential, nor do the files of the console, which asks for all it
shows with the token that its user gives it; nor does anything on `server.metrics_addr`, which is
meant for an address that only the monitoring reaches. Without authentication HTTP answers only
requests whose `Host` is this machine, so that a web page can't reach it by a name of its own.
"""


def _table() -> Iterator[str]:
    yield f"| | {' | '.join(Role)} |"
    yield f"| --- |{' --- |' * len(Role)}"
    for operation in Operation:
        cells = ("yes" if operation in PERMISSIONS[role] else "" for role in Role)
        yield f"| {operation} | {' | '.join(cells)} |"


PASSING = """\
A server passes a call on with its caller's own token, and the owning shard judges that anew by the
table above: to ask elsewhere opens nothing. What can't be lent stays behind. So this is what a
caller hears of another shard's things from a server that is not their owner, beyond what its role
and its limits refuse it in either place:
"""

PASSED = """
A call that carries the mark of being passed on is answered from the server's own shard or refused,
whoever wrote the mark: no credential is good for more with it, and the other shards are out of its
reach. For the same reason two servers that take each other for an owner do not send a call in
circles; it is refused by the second one. HTTP knows no such mark, and passes on as gRPC does.
Servers ask each other whether they serve without any credential.
"""


def page(mark: str) -> str:
    """Return the page."""
    shared = ", ".join(sorted(SHARED))
    passing = "\n".join((PASSING, *passing_table.page_lines(), PASSED.rstrip()))
    after = AFTER.format(shared=shared, passing=passing)
    return "\n".join(["# Security", "", mark, "", BEFORE.rstrip(), "", *_table(), after])
