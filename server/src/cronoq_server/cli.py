"""What the command line says: what to do, with which configuration, and what the exit code means.

    cronoq-server [serve]     serves
    cronoq-server config      prints the configuration that holds in the end, without secrets
    cronoq-server shards      prints which shard owns what, and who leads it
    cronoq-server raise-epoch makes a store that was restored from a back-up fit to be served
    cronoq-server dev-certs   makes certificates for trying TLS out

Exit codes:

    0   served and stopped in order, or there was only something to print or check
    1   the server failed, and the log says why; or what was asked for could not be done
    2   the command line or the configuration is wrong
    3   an address is in use, or can't be bound
    130 a second signal ended a shutdown that was under way

The server itself is imported only when it is to run, so that `--version` answers at once.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cronoq_server import __version__
from cronoq_server.config import (
    Address,
    Config,
    ConfigError,
    Problem,
    StoreConfig,
    load,
    parse,
    parse_address,
    sharding_problems,
    to_toml,
)

OK = 0
FAILED = 1
WRONG_CONFIG = 2
ADDRESS_IN_USE = 3

EPOCH_ABOVE_MAX = 1 << 40
"""Highest epoch that `--above` takes."""

FOR_ONE_SHARD = ("serve", "raise-epoch")
"""Commands that concern one store, and so need a shard's name where there are shards."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code.

    Args:
        arguments: Without the program's name; those of the process if not given.
    """
    given = read_arguments(arguments)
    if given.command == "dev-certs":
        return _dev_certs(given.folder, given.name)
    try:
        config = configured(given)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_CONFIG
    if given.check:
        print(f"{given.config or 'the default configuration'} is right")
        return OK
    if given.command == "config":
        print(to_toml(config), end="")
        return OK
    if given.command == "shards":
        return _shards(config)
    if given.command == "raise-epoch":
        return _raise_epoch(config, given.above)
    return _serve(config, lambda: configured(given), test_clock=given.test_clock)


def read_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line; those of the process if not given. Ends it if they are wrong."""
    parser = argparse.ArgumentParser(
        prog="cronoq-server", description="A durable task queue server.", allow_abbrev=False
    )
    parser.add_argument(
        "command",
        nargs="?",
        choices=["serve", "config", "shards", "raise-epoch", "dev-certs"],
        default="serve",
    )
    parser.add_argument("folder", nargs="?", type=Path, help="dev-certs: where to write them")
    parser.add_argument(
        "--name", action="append", default=[], help="dev-certs: a further name of the server"
    )
    parser.add_argument(
        "--above",
        type=_epoch,
        metavar="EPOCH",
        default=0,
        help="raise-epoch: the highest epoch that the log has shown since the back-up",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a cronoq.toml")
    parser.add_argument("--shard", metavar="NAME", help="which of [[shards]] this server is for")
    parser.add_argument("--check", action="store_true", help="check the configuration and exit")
    parser.add_argument("--store", metavar="STORE", help="memory, sqlite:PATH or postgres://…")
    parser.add_argument(
        "--grpc-addr", type=_address, metavar="HOST:PORT", help="where to serve gRPC; port 0 = any"
    )
    parser.add_argument(
        "--http-addr", type=_address, metavar="HOST:PORT", help="where to serve HTTP; port 0 = any"
    )
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="listen beyond this machine although nobody is asked who they are",
    )
    parser.add_argument(
        "--test-clock",
        action="store_true",
        help="time stands still until a test moves it; with the memory store only",
    )
    parser.add_argument("--version", action="version", version=f"cronoq-server {__version__}")
    given = parser.parse_args(arguments)
    if (given.folder is not None) != (given.command == "dev-certs"):
        parser.error("dev-certs, and nothing else, takes the folder to write to")
    if given.above and given.command != "raise-epoch":
        parser.error("raise-epoch, and nothing else, takes --above")
    return given


def _address(text: str) -> Address:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _epoch(text: str) -> int:
    if not text.isdecimal() or int(text) > EPOCH_ABOVE_MAX:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {EPOCH_ABOVE_MAX}")
    return int(text)


def configured(given: argparse.Namespace) -> Config:
    """The configuration with what the command line says on top.

    Raises:
        ConfigError: It has mistakes.
    """
    if given.config is not None:
        config = load(given.config, os.environ)
    else:
        config = parse("", "default configuration", os.environ)
    server = config.server
    if given.grpc_addr is not None:
        server = dataclasses.replace(server, grpc_addr=given.grpc_addr)
    if given.http_addr is not None:
        server = dataclasses.replace(server, http_addr=given.http_addr)
    if given.shard is not None:
        server = dataclasses.replace(server, shard=given.shard)
    if given.insecure_no_auth:
        server = dataclasses.replace(server, insecure_no_auth=True)
    store = config.store if given.store is None else _store(config.store, given.store)
    problems = [
        Problem(
            f"server.{name}",
            f"{address} can be reached from other machines and there is no authentication; "
            "listen on 127.0.0.1, give credentials in [auth], or say --insecure-no-auth",
        )
        for name, address in (("grpc_addr", server.grpc_addr), ("http_addr", server.http_addr))
        if not (server.insecure_no_auth or address.is_loopback or config.auth.is_on)
    ]
    if given.test_clock and store.kind != "memory":
        # Leases and locks of shared stores pass by the time of the machine.
        problems.append(Problem("--test-clock", f"does not go with a {store.kind} store"))
    config = dataclasses.replace(config, server=server, store=store)
    if given.shard is not None or given.store is not None:
        problems += sharding_problems(config)
    is_for_one = given.command in FOR_ONE_SHARD and not given.check
    if config.shards and server.shard is None and is_for_one:
        names = ", ".join(shard.name for shard in config.shards)
        problems.append(Problem("--shard", f"must be given, since there are [[shards]]: {names}"))
    if problems:
        raise ConfigError(str(given.config or "command line"), problems)
    return config


def _store(store: StoreConfig, text: str) -> StoreConfig:
    """The store that `--store` names, with everything else as it was configured.

    Raises:
        ConfigError: It names none.
    """
    kind, colon, rest = text.partition(":")
    named: dict[str, str | None] = {"path": None, "url": None, "lock_url": None}
    if text == "memory":
        named["kind"] = "memory"
    elif kind == "sqlite" and rest:
        named |= {"kind": "sqlite", "path": rest}
    elif kind in ("postgres", "postgresql") and rest.startswith("//"):
        named |= {"kind": "postgres", "url": text, "lock_url": store.lock_url}
    else:
        # What follows the colon may hold a password.
        shown = f"{kind}{colon}{'…' if rest else ''}"
        message = f"must be memory, sqlite:PATH or postgres://…, not {shown}"
        raise ConfigError("command line", [Problem("--store", message)])
    return dataclasses.replace(store, **named)  # type: ignore[arg-type]


def _serve(config: Config, reread: Callable[[], Config], *, test_clock: bool) -> int:
    from cronoq_server import app
    from cronoq_server.api.listener import AddressInUse
    from cronoq_server.stores.base import Unusable

    try:
        return app.run(
            config,
            _announce,
            reread=reread,
            test_clock=test_clock,
        )
    except AddressInUse as error:
        print(f"cronoq-server: {error}", file=sys.stderr)
        return ADDRESS_IN_USE
    except Unusable as error:
        print(f"cronoq-server: the store can't be used: {error}", file=sys.stderr)
        return FAILED


def _announce(address: Address) -> None:
    # With its end in one write: unbuffered, `print` writes the end by itself, and where output and
    # log share a pipe, a line of the log may come between.
    print(f"serving gRPC on {address}\n", end="", flush=True)


def _shards(config: Config) -> int:
    if not config.shards:
        print("there are no [[shards]]: one server leads all pools")
        return OK
    import asyncio

    from cronoq_server import shard_table

    print(asyncio.run(shard_table.table(config)))
    return OK


def _raise_epoch(config: Config, above: int) -> int:
    import asyncio

    from cronoq_server.assembly import store_settings
    from cronoq_server.stores.base import StoreError
    from cronoq_server.stores.raising import raise_store

    try:
        before, after = asyncio.run(raise_store(store_settings(config), above))
    except StoreError as error:
        print(f"cronoq-server: nothing was changed: {error}", file=sys.stderr)
        return FAILED
    print(f"epoch {before.epoch} -> {after.epoch}")
    print(f"position {before.position} -> {after.position}")
    print(f"highest id {before.high_water} -> {after.high_water}")
    return OK


def _dev_certs(folder: Path, names: Sequence[str]) -> int:
    from cronoq_server import dev_certs

    try:
        made = dev_certs.make(folder, names)
    except OSError as error:
        print(f"cronoq-server: {error}", file=sys.stderr)
        return FAILED
    print("\n".join(str(file) for file in made))
    print(f"\nFor trying out only: the CA's key lies beside them.\n\n{SNIPPET.format(folder)}")
    return OK


SNIPPET = """\
[server.tls]
cert = "{0}/server.pem"
key = "{0}/server-key.pem"
client_ca = "{0}/ca.pem"       # leave it out to let callers in without a certificate

[[auth.certs]]
dns_name = "client.cronoq.test"
role = "admin\""""
