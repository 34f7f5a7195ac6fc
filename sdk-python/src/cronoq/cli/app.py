"""Decides what the command line looks like as a whole, and what its exit code says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, TypeVar

import typer

from cronoq._version import __version__
from cronoq.client import Client
from cronoq.errors import (
    CronoqError,
    DeadlineError,
    InvalidRequestError,
    NotFoundError,
    PayloadError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
)

from .connection import Misconfigured, Target, choose
from .show import Output

T = TypeVar("T")

FAILED, WRONG, NOT_FOUND, DENIED, UNAVAILABLE, INTERRUPTED = 1, 2, 3, 4, 5, 130

UsageProblem: type[Exception] = typer.BadParameter.__mro__[2]
"""What is raised for a wrong command line; which package has it depends on typer's version."""

ANYWHERE = frozenset({"--endpoint", "--token", "--profile", "--deadline"})
"""Options with a value that may stand before the command's name or behind it, as `--json` may."""

CODES: tuple[tuple[type[BaseException], int], ...] = (
    (NotFoundError, NOT_FOUND),
    (UnauthenticatedError, DENIED),
    (PermissionDeniedError, DENIED),
    (UnavailableError, UNAVAILABLE),
    (DeadlineError, UNAVAILABLE),
    (InvalidRequestError, WRONG),
    (PayloadError, WRONG),
    (Misconfigured, WRONG),
    (OSError, WRONG),  # of a file that the command line or a profile names
    (CronoqError, FAILED),
)


class Session:
    """What all commands share.

    Attributes:
        target: Which server.
        output: Where answers go.
        deadline: Seconds that a call may take.
    """

    def __init__(self, target: Target, output: Output, deadline: float) -> None:
        self.target = target
        self.output = output
        self.deadline = deadline

    def run(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Does something with a client, and closes it."""

        async def within() -> T:
            async with self.target.client(deadline=self.deadline) as client:
                return await work(client)

        return asyncio.run(within())


app = typer.Typer(
    name="cronoq",
    help="Work with a cronoq task queue from a terminal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cronoq {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    context: typer.Context,
    endpoint: Annotated[
        str | None, typer.Option(help="host:port, http://… or https://… [CRONOQ_ENDPOINT]")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Bearer token [CRONOQ_TOKEN].")] = None,
    tls_ca: Annotated[str | None, typer.Option(help="Certificates to trust [CRONOQ_CA].")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Own certificate [CRONOQ_CERT].")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key [CRONOQ_KEY].")] = None,
    profile: Annotated[
        str | None, typer.Option(help="Table of the configuration file [CRONOQ_PROFILE].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds that a call may take.")] = 10.0,
    _version_wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Work with a cronoq task queue from a terminal."""
    given = {"endpoint": endpoint, "token": token, "ca": tls_ca, "cert": tls_cert, "key": tls_key}
    context.obj = Session(choose(given, profile), Output(as_json=as_json), deadline)


def session(context: typer.Context) -> Session:
    """What the options before the command's name made."""
    found: Session = context.obj
    return found


def hoisted(arguments: Sequence[str]) -> list[str]:
    """The arguments with what belongs to every command in front, wherever it was written."""
    first: list[str] = []
    rest: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            rest += [argument, *left]
        elif argument == "--json" or (argument.partition("=")[0] in ANYWHERE and "=" in argument):
            first.append(argument)
        elif argument in ANYWHERE:
            first += [argument, *(value for value in [next(left, None)] if value is not None)]
        else:
            rest.append(argument)
    return first + rest


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit codes are those of the package's docstring."""
    command = typer.main.get_command(app)
    given = hoisted(sys.argv[1:] if arguments is None else arguments)
    try:
        code: Any = command.main(args=given, prog_name="cronoq", standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    except UsageProblem as error:
        error.show()  # type: ignore[attr-defined]
        return WRONG
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has enough; flushing at exit would fail once more.
        sys.stdout = None
        return 0
    except (CronoqError, Misconfigured, OSError) as error:
        return _told(error)
    return code if isinstance(code, int) else 0


def _told(error: Exception) -> int:
    reason = getattr(error, "reason", None)
    named = f" ({reason.value})" if reason is not None else ""
    print(f"cronoq: {error}{named}", file=sys.stderr)
    return next(code for kind, code in CODES if isinstance(error, kind))


from . import dev, operating, tasks, top  # noqa: E402, F401 - they add their commands
