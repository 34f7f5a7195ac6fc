"""What containers and services are started with: no root, nothing writable, time to stop."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from cronoq_server import cli
from cronoq_server.config import Config, parse
from tests.api.conftest import serving
from tools.check_text import ROOT

DEPLOY = ROOT / "server/deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVERS = {name: one for name, one in COMPOSE["services"].items() if name != "database"}
TOKENS = {
    "DATABASE_URL": "postgresql://cronoq@database/cronoq",
    "CRONOQ_ADMIN_TOKEN": "a" * 16,
    "CRONOQ_WORKER_TOKEN": "w" * 16,
}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, each on one line."""
    whole = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
    pairs = [line.partition(" ") for line in whole.splitlines() if line]
    return [(name, rest.strip()) for name, _, rest in pairs]


def last(name: str) -> str:
    """What the last instruction of this name says."""
    return [rest for found, rest in instructions() if found == name][-1]


def seconds(text: str) -> float:
    """A duration of seconds as the files write it."""
    return float(text.removesuffix("s"))


def compose_config() -> Config:
    """What the servers of the compose file are told."""
    text = (DEPLOY / "compose.toml").read_text(encoding="utf-8")
    return parse(text, "compose.toml")


@pytest.fixture(autouse=True)
def tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that the compose file passes."""
    for name, value in TOKENS.items():
        monkeypatch.setenv(name, value)


class Unit(configparser.RawConfigParser):
    """A unit of systemd, of which the last value of a repeated key counts."""

    def __init__(self) -> None:
        super().__init__(strict=False, interpolation=None)
        self.read_string((DEPLOY / "cronoq-server.service").read_text(encoding="utf-8"))

    def optionxform(self, optionstr: str) -> str:
        """Keys keep their capitals."""
        return optionstr


def test_image_has_known_instructions_only() -> None:
    """A mistyped instruction, or a line that belongs to none, would be one more."""
    known = {"FROM", "ENV", "RUN", "COPY", "LABEL", "USER", "WORKDIR", "VOLUME", "EXPOSE"}
    known |= {"HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in instructions()} == known
    assert all("slim" in rest for name, rest in instructions() if name == "FROM")


def test_image_runs_as_a_user_without_rights() -> None:
    """By number, so that an orchestrator can tell that it is not root."""
    user, group = last("USER").split(":")
    assert int(user) > 1000
    assert int(group) > 1000
    names = [name for name, _ in instructions()]
    assert "RUN" not in names[names.index("USER") :]


def test_image_holds_no_sources_but_the_servers() -> None:
    """What is copied is there, and nothing else is sent to the build."""
    source, _ = next(rest.split() for name, rest in instructions() if name == "COPY")
    assert (ROOT / source / "pyproject.toml").is_file()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    assert [line for line in ignored if not line.startswith("#")][:2] == ["*", "!server"]


async def test_health_check_asks_whether_the_process_lives() -> None:
    """The very command of the image, sent to a server; and it fails when nobody is there."""
    check = json.loads(last("HEALTHCHECK").split("CMD ", 1)[1])
    assert check[0] == "python"
    assert "/healthz" in check[2]
    assert "/readyz" not in DOCKERFILE

    def outcome(port: int) -> int:
        program = check[2].replace(":7072/", f":{port}/")
        assert program != check[2]
        done = subprocess.run([sys.executable, "-c", program], capture_output=True)
        return done.returncode

    async with serving() as edge:
        port = edge.server.http_address.port
        assert await asyncio.to_thread(outcome, port) == 0
    assert await asyncio.to_thread(outcome, port) != 0


def test_health_check_and_ports_are_those_of_the_configuration() -> None:
    """The check asks where the compose file's servers tell their health."""
    server = compose_config().server
    assert server.metrics_addr is not None
    addresses = (server.grpc_addr, server.http_addr, server.metrics_addr)
    assert last("EXPOSE").split() == [str(address.port) for address in addresses]
    assert f"127.0.0.1:{server.metrics_addr.port}/healthz" in last("HEALTHCHECK")


def test_compose_configuration_is_right() -> None:
    """With the variables that the compose file passes, and no other."""
    assert cli.main(["--config", str(DEPLOY / "compose.toml"), "--check"]) == cli.OK
    for one in SERVERS.values():
        assert set(one["environment"]) == set(TOKENS)


@pytest.mark.parametrize("service", SERVERS.values(), ids=SERVERS.keys())
def test_compose_servers_are_locked_down(service: dict[str, Any]) -> None:
    """Root is read-only, no capability is left, nothing is published beyond this machine."""
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert not any(port.endswith(":7072") for port in service["ports"])
    assert service["depends_on"]["database"]["condition"] == "service_healthy"
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    source = service["volumes"][0].split(":")
    assert (DEPLOY / source[0]).is_file()
    assert source[1:] == [json.loads(last("CMD"))[1], "ro"]


def test_compose_has_two_servers_on_one_database() -> None:
    """One leads and one stands by; what they publish differs."""
    assert len(SERVERS) == 2
    published = [port for one in SERVERS.values() for port in one["ports"]]
    assert len({port.rpartition(":")[0] for port in published}) == len(published) == 4
    assert COMPOSE["services"]["database"]["volumes"][0].split(":")[0] in COMPOSE["volumes"]


def test_compose_holds_no_secret() -> None:
    """Passwords and tokens come from the environment, and starting without them fails."""
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    secrets = re.findall(r"\$\{(\w+)(:\?)?", text)
    assert {name for name, _ in secrets} == {
        "POSTGRES_PASSWORD",
        "CRONOQ_ADMIN_TOKEN",
        "CRONOQ_WORKER_TOKEN",
    }
    assert all(is_required for _, is_required in secrets)


def test_there_is_time_to_stop_in_order() -> None:
    """Whoever stops a server waits longer than attempts may take to report."""
    grace = compose_config().server.shutdown_grace_s
    unit = Unit()["Service"]
    assert seconds(unit["TimeoutStopSec"]) > grace
    for one in SERVERS.values():
        assert seconds(one["stop_grace_period"]) > grace


def test_unit_is_hardened() -> None:
    """Every option is one that the guide of systemd calls for with a network service."""
    unit = Unit()["Service"]
    for name in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "DynamicUser"):
        assert unit[name] == "yes", name
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    assert unit["StateDirectory"] in unit["WorkingDirectory"]


def test_unit_does_not_repeat_what_cannot_succeed() -> None:
    """A wrong configuration is not tried again, a failure is; the file is checked first."""
    unit = Unit()["Service"]
    assert unit["Restart"] == "on-failure"
    assert unit["RestartPreventExitStatus"] == str(cli.WRONG_CONFIG)
    assert unit["ExecStartPre"] == f"{unit['ExecStart']} --check"
    assert "-HUP" in unit["ExecReload"]
