"""What the command `cronoq` does against a real server, for people and for programs."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable

from cronoq.cli import app as cli
from cronoq.cli.connection import Misconfigured, Target, choose
from cronoq.cli.show import Output, plain
from cronoq.cli.top import Top
from tests.api.conftest import Edge, serving

RESOURCES = """
[[resources]]
name = "gpu"
permits = 3
"""


class Terminal:
    """A server, and a person who types.

    Attributes:
        edge: The server.
        code: Exit code of the last command.
        errors: What it wrote to standard error.
    """

    def __init__(self, edge: Edge, capsys: pytest.CaptureFixture[str]) -> None:
        self.edge = edge
        self.code = 0
        self.errors = ""
        self._capsys = capsys

    @property
    def endpoint(self) -> str:
        """Where the server is."""
        return str(self.edge.server.address)

    async def type(self, *words: str) -> str:
        """Runs a command and returns what it printed."""
        arguments = ["--endpoint", self.endpoint, *words]
        self._capsys.readouterr()
        self.code = await asyncio.to_thread(cli.run, arguments)
        out, self.errors = self._capsys.readouterr()
        return out

    async def ask(self, *words: str) -> Any:
        """Runs a command for a program and returns the one value that it printed."""
        return json.loads(await self.type(*words, "--json"))

    async def finish(self, *outputs: bytes, pool: str = "default") -> None:
        """Runs as many tasks as there are outputs."""
        worker = await self.edge.worker(pool=pool, slots=len(outputs))
        leases = await worker.leases(len(outputs))
        for number, (lease, output) in enumerate(zip(leases, outputs, strict=True), 1):
            await worker.complete(number, lease, output=output)
        await worker.receipt(len(outputs))
        await worker.close()


@pytest.fixture
async def terminal(capsys: pytest.CaptureFixture[str]) -> AsyncIterator[Terminal]:
    """A terminal beside a server."""
    async with AsyncExitStack() as stack:
        edge = await stack.enter_async_context(serving(RESOURCES))
        yield Terminal(edge, capsys)


async def test_a_task_is_submitted_looked_at_and_waited_for(terminal: Terminal) -> None:
    """What was said on the command line is what the server has."""
    made = await terminal.ask(
        "submit", "greet", '{"who": "Ann"}', "--key", "k", "--tag", "a=b", "--priority", "high",
        "--resource", "gpu=2", "--label", "zone=x", "--attempts", "7", "--timeout", "2.5",
    )  # fmt: skip
    assert isinstance(made["id"], str)
    assert (await terminal.ask("submit", "greet", "--key", "k"))["duplicate"] is True
    known = await terminal.ask("get", "key:k", "--detail")
    assert known["task"]["id"] == made["id"]
    spec = known["spec"]
    assert (spec["payload"], spec["priority"], spec["tags"]) == ({"who": "Ann"}, "high", {"a": "b"})
    assert (spec["resources"], spec["timeout"]) == ({"gpu": 2}, 2.5)
    assert spec["retry"]["max_attempts"] == 7
    text = await terminal.type("get", made["id"])
    assert "waits for" in text
    assert "zone" in text


async def test_waiting_and_outputs_tell_success_from_failure(terminal: Terminal) -> None:
    """By exit code, so that a script can go on or not."""
    first = (await terminal.ask("submit", "x"))["id"]
    await terminal.type("wait", first, "--timeout", "0.05")
    assert terminal.code == cli.UNAVAILABLE
    await terminal.type("output", first)
    assert (terminal.code, "has not ended" in terminal.errors) == (cli.FAILED, True)
    await terminal.finish(b'{"n": 1}')
    assert (await terminal.type("wait", first)).strip() == "succeeded"
    assert terminal.code == 0
    assert (await terminal.ask("output", first))["output"] == {"n": 1}
    second = (await terminal.ask("submit", "x"))["id"]
    assert "is cancelled" in await terminal.type("cancel", second)
    assert "cancelled" in await terminal.type("wait", second)
    assert terminal.code == cli.FAILED


async def test_many_tasks_come_as_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One object per line; what is refused is said, and the others go in."""
    lines = [
        {"kind": "a", "key": "1", "payload": {"n": 1}, "priority": "low"},
        {"kind": "b", "pool": "nowhere"},
        {"kind": "c", "deps": ["key:1"], "retry": {"max_attempts": 2}},
    ]
    text = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    said = await terminal.type("submit", "-")
    assert said.strip() == "2 submitted, 1 refused"
    assert terminal.code == cli.FAILED
    assert "nowhere" in terminal.errors
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"kind": "a"}\n{"kind": 7, "no": 1}\n'))
    await terminal.type("submit", "-")
    assert terminal.code == cli.WRONG
    assert "line 2" in terminal.errors


async def test_listings_filter_and_page(terminal: Terminal) -> None:
    """Newest first, up to a limit; every line of the JSON form is one task."""
    for kind in ("a", "b", "a", "a"):
        await terminal.ask("submit", kind)
    lines = (await terminal.type("list", "--kind", "a", "--json")).splitlines()
    ids = [int(json.loads(line)["id"]) for line in lines]
    assert len(ids) == 3
    assert ids == sorted(ids, reverse=True)
    few = (await terminal.type("list", "--limit", "2", "--oldest", "--json")).splitlines()
    assert len(few) == 2
    table = await terminal.type("list", "--status", "ready")
    assert str(ids[0]) in table  # nothing is cut where no person looks


async def test_bulk_changes_ask_first(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a person to ask, `--yes` has to say it."""
    for _ in range(3):
        await terminal.ask("submit", "old")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    await terminal.type("cancel", "--kind", "old")
    assert terminal.code == cli.WRONG
    assert "3 tasks were found" in terminal.errors
    assert await terminal.ask("cancel", "--kind", "old", "--yes") == {"matched": 3, "changed": 3}
    assert await terminal.ask("retry", "--status", "cancelled", "-y") == {
        "matched": 3, "changed": 3,
    }  # fmt: skip
    await terminal.type("cancel")
    assert terminal.code == cli.WRONG
    await terminal.type("cancel", "17", "--kind", "old")
    assert terminal.code == cli.WRONG


async def test_schedules_pools_and_resources(terminal: Terminal) -> None:
    """All that operators do, in the words of the console."""
    await terminal.type(
        "schedules", "put", "nightly", "30 2 * * *", "report", '{"deep": true}',
        "--tz", "Europe/Berlin", "--overlap", "queue",
    )  # fmt: skip
    assert terminal.code == 0
    shown = await terminal.ask("schedules", "show", "nightly")
    assert shown["schedule"]["overlap"] == "queue"
    assert shown["spec"]["template"]["payload"] == {"deep": True}
    assert len(await terminal.ask("schedules", "next", "nightly", "--count", "3")) == 3
    made = await terminal.ask("schedules", "trigger", "nightly")
    assert (await terminal.ask("get", made["task_id"]))["schedule"] == "nightly"
    created = await terminal.ask(
        "schedules", "backfill", "nightly", "2026-01-01", "2026-01-11", "--dry-run"
    )
    assert created == {"created": 10}
    await terminal.type("schedules", "pause", "nightly")
    (listed,) = await terminal.ask("schedules", "list")
    assert listed["paused"] is True
    await terminal.type("schedules", "remove", "nightly")
    assert terminal.code == 0
    await terminal.type("schedules", "remove", "nightly")
    assert terminal.code == cli.FAILED
    assert (await terminal.ask("resources", "set", "gpu", "--permits", "5"))["permits"] == 5
    await terminal.type("pools", "pause", "default")
    (pool,) = await terminal.ask("pools", "list")
    assert pool["paused"] is True
    await terminal.type("pools", "resume", "default")
    assert "pending" in await terminal.type("snapshot")
    assert (await terminal.ask("workers")) == []


async def test_watching_tells_ends(terminal: Terminal) -> None:
    """One line per event, until there were as many as asked for; past ends come at once."""
    first = (await terminal.ask("submit", "x"))["id"]
    await terminal.finish(b"")
    event = json.loads(await terminal.type("watch", first, "--count", "1", "--json"))
    assert (event["id"], event["status"]) == (first, "succeeded")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("get", "17"), cli.NOT_FOUND, "task_unknown"),
        (("get", "what"), cli.WRONG, "key:"),
        (("list", "--status", "nope"), cli.WRONG, "dead_lettered"),
        (("list", "--tag", "nope"), cli.WRONG, "NAME=VALUE"),
        (("submit", "x", "--priority", "urgent"), cli.WRONG, "critical"),
        (("submit", "x", "--timeout", "-1"), cli.WRONG, "timeout_s"),
        (("schedules", "put", "s", "61 * * * *", "x"), cli.WRONG, "cron"),
        (("schedules", "show", "none"), cli.NOT_FOUND, "none"),
        (("pools", "pause", "none"), cli.NOT_FOUND, "none"),
        (("resources", "set", "gpu"), cli.WRONG, "--permits"),
        (("nothing",), cli.WRONG, "nothing"),
    ],
)
async def test_mistakes_have_codes_and_reasons(
    terminal: Terminal, words: tuple[str, ...], code: int, said: str
) -> None:
    """Scripts go by the code, people by the text."""
    await terminal.type(*words)
    assert terminal.code == code
    assert said in terminal.errors


async def test_a_server_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Within the deadline, with a code of its own."""
    words = ["--endpoint", "127.0.0.1:1", "--deadline", "0.3", "snapshot"]
    assert await asyncio.to_thread(cli.run, words) == cli.UNAVAILABLE
    assert capsys.readouterr().err.startswith("cronoq: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--endpoint", "ftp://x", "snapshot"), "neither http nor https"),
        (("--token", "two words", "snapshot"), "token: "),
        (("--tls-cert", "cert.pem", "snapshot"), "cert and key go together"),
        (("--endpoint", "https://127.0.0.1:1", "--tls-ca", "/no.pem", "snapshot"), "/no.pem"),
        (("list", "--limit", "-1"), "--limit"),
        (("schedules", "next", "s", "--count", "0"), "--count"),
        (("schedules", "next", "s", "--count", "101"), "--count"),
        (("schedules", "backfill", "s", "1500-01-01", "2000-01-01"), "1500"),
        (("resources", "set", "gpu", "--permits", "-1"), "--permits"),
        (("resources", "set", "gpu", "--burst", "-1"), "--burst"),
    ],
)
async def test_what_no_server_can_be_asked_is_said_so(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    """In a line for people, not in a trace for programmers."""
    assert await asyncio.to_thread(cli.run, words) == cli.WRONG
    assert said in capsys.readouterr().err


async def test_the_screen_of_top_fills_with_what_the_server_has(terminal: Terminal) -> None:
    """Pools, workers and failures; texts of users stay texts."""
    await terminal.edge.submit(kind="[red]x[/red]")
    worker = await terminal.edge.worker(worker_name="[bold]w", slots=4)
    (lease,) = await worker.leases(1)
    failed = {"lease": lease.lease, "message": "[link=x]no[/link]", "permanent": True}
    await worker.say(reports={"reports": {"number": 1, "reports": [{"fail": failed}]}}["reports"])
    await worker.receipt(1)
    here = cli.Session(Target(endpoint=terminal.endpoint), Output(as_json=False), 5.0)
    screen = Top(here)
    async with screen.run_test(size=(120, 40)) as pilot:
        while not screen.query_one("#failures", DataTable).row_count:
            await pilot.pause()
        pools = screen.query_one("#pools", DataTable)
        workers = screen.query_one("#workers", DataTable)
        failures = screen.query_one("#failures", DataTable)
        assert str(pools.get_row_at(0)[0]) == "default"
        assert str(workers.get_row_at(0)[0]) == "[bold]w"
        assert str(failures.get_row_at(0)[3]) == "[link=x]no[/link]"
        await pilot.press("q")
    await worker.close()


def test_a_profile_gives_way_to_the_environment_and_that_to_the_command_line(
    tmp_path: Path,
) -> None:
    """The nearest word counts; files of a profile lie beside it."""
    file = tmp_path / "config.toml"
    file.write_text(
        '[profiles.default]\nendpoint = "https://a:1"\ntoken_env = "T"\nca = "ca.pem"\n'
        '[profiles.b]\nendpoint = "b:2"\ntoken = "token-of-profile-b"\n'
    )
    base = {"CRONOQ_CONFIG": str(file), "T": "token-of-default"}
    default = choose({}, None, base)
    assert (default.endpoint, default.token) == ("https://a:1", "token-of-default")
    assert default.ca == str(tmp_path / "ca.pem")
    assert choose({}, "b", base).token == "token-of-profile-b"
    assert choose({}, None, {**base, "CRONOQ_PROFILE": "b"}).endpoint == "b:2"
    assert choose({}, "b", {**base, "CRONOQ_ENDPOINT": "c:3"}).endpoint == "c:3"
    assert choose({"endpoint": "d:4"}, "b", {**base, "CRONOQ_ENDPOINT": "c:3"}).endpoint == "d:4"
    assert "token-of" not in repr(default)


@pytest.mark.parametrize(
    ("text", "profile", "said"),
    [
        ("[profiles.x]\n", "y", "no profile 'y'; there is x"),
        ("[profiles.y]\nendpont = 'a'\n", "y", "endpont: unknown key"),
        ("[profiles.y]\nendpoint = 7\n", "y", "endpoint must be a text"),
        ("[profiles.y]\ntoken = 'a'\ntoken_env = 'b'\n", "y", "exclude each other"),
        ("[profiles", "y", "can't be read"),
        ("[profiles]\ny = 1\n", "y", "must be a table"),
    ],
)
def test_a_wrong_profile_is_explained(tmp_path: Path, text: str, profile: str, said: str) -> None:
    """With the file and the key."""
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=said.split("'", maxsplit=1)[0]):
        choose({}, profile, {"CRONOQ_CONFIG": str(file)})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.123456, "0.123"),
        (12.0, "12"),
        (999.6, "1000"),
        (1234.5, "1234"),
        (1e7, "10000000"),
    ],
)
def test_figures_have_no_exponent(value: float, text: str) -> None:
    """Whoever reads a rate of a thousand a second sees a thousand."""
    assert plain(value) == text
