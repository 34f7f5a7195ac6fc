"""What the configuration accepts, and how precisely it says what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from cronoq_server import cli, config

EXAMPLE = Path(__file__).parents[1] / "server" / "deploy" / "cronoq.example.toml"


def problems_of(text: str) -> dict[str, str]:
    """Parses a configuration that has mistakes and returns them by path."""
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text)
    return {problem.path: problem.message for problem in caught.value.problems}


def keys_of(section: dataclasses.Field[object]) -> Iterator[str]:
    """The keys of a section and of the tables in it."""
    table = section.metadata.get("table") or section.metadata["tables"]
    for entry in dataclasses.fields(table):
        yield entry.name
        if "rule" not in entry.metadata:
            yield from keys_of(entry)


def test_nothing_said_means_one_pool_on_loopback() -> None:
    """An empty file is the configuration that the server has without one."""
    parsed = config.parse("")
    assert parsed == config.Config()
    assert [pool.name for pool in parsed.pools] == ["default"]
    assert parsed.server.grpc_addr == config.Address("127.0.0.1", 7070)
    assert parsed.store.kind == "memory"


def test_example_says_the_defaults() -> None:
    """The example file names every key that has a default, with that default."""
    text = EXAMPLE.read_text()
    assert config.parse(text) == config.Config()
    for section in dataclasses.fields(config.Config):
        for name in keys_of(section):
            assert name in text, f"{section.name}.{name} is not in the example"


def test_values_reach_the_config() -> None:
    """Tables, lists of tables and nested tables are read."""
    parsed = config.parse(
        """
        [server]
        grpc_addr = "[::1]:0"
        [[pools]]
        name = "llm"
        max = 8
        retry = { max_attempts = 9 }
        tenant_weights = { b = 2, a = 1.5 }
        [[resources]]
        name = "api"
        kind = "token_bucket"
        rate = 2.5
        burst = 10
        """
    )
    assert parsed.server.grpc_addr == config.Address("::1", 0)
    assert str(parsed.server.grpc_addr) == "[::1]:0"
    (pool,) = parsed.pools
    assert (pool.name, pool.max, pool.retry.max_attempts) == ("llm", 8, 9)
    assert pool.retry.initial_backoff_s == 1.0
    assert pool.tenant_weights == (("a", 1.5), ("b", 2.0))
    assert parsed.resources[0].rate == 2.5


def test_every_mistake_is_reported_at_once() -> None:
    """One run shows all that is to be mended, each with its path."""
    found = problems_of(
        """
        [server]
        grpc_adr = "127.0.0.1:1"
        shutdown_grace_s = -1
        [limits]
        max_list = "many"
        [[pools]]
        name = "a"
        [[pools]]
        name = "b c"
        retry = { max_attempts = 0 }
        """
    )
    assert set(found) == {
        "server.grpc_adr",
        "server.shutdown_grace_s",
        "limits.max_list",
        "pools[1].name",
        "pools[1].retry.max_attempts",
    }


def test_unknown_key_names_the_nearest_known_one() -> None:
    """A slip of the pen is an error that shows what was probably meant."""
    assert "'grpc_addr'" in problems_of("[server]\ngrpc_adr = ''")["server.grpc_adr"]
    assert "'pools'" in problems_of("[[pool]]\nname = 'a'")["pool"]
    nested = problems_of("[[pools]]\nname = 'a'\nretry = { max_attempt = 3 }")
    assert "'max_attempts'" in nested["pools[0].retry.max_attempt"]


def test_malformed_toml_names_the_line() -> None:
    """What is no TOML is reported with line and column."""
    assert list(problems_of("[server]\ngrpc_addr = \n")) == ["line 2, column 13"]


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("[store]\nkind = 'oracle'", "store.kind", "memory, sqlite"),
        ("[store]\nkind = 'sqlite'", "store.path", "must be given"),
        ("[store]\npath = 'q.db'", "store.path", "memory"),
        ("[store]\nkind = 'sqlite'\npath = ''", "store.path", "path of a file"),
        ("[store]\nkeep_finished_s = 60", "store.keep_finished_s", "at least retention_s"),
        ("[store]\nlease_ttl_s = 3", "store.lease_renew_s", "at most half"),
        ("[server]\ngrpc_addr = '7070'", "server.grpc_addr", "host:port"),
        ("[server]\ngrpc_addr = 'a:70000'", "server.grpc_addr", "65535"),
        ("[server]\ngrpc_addr = '::1:7070'", "server.grpc_addr", "brackets"),
        ("[server]\nlog_level = 'loud'", "server.log_level", "debug"),
        ("[limits]\nmax_wait_s = nan", "limits.max_wait_s", "above 0"),
        ("[limits]\nmax_wait_s = true", "limits.max_wait_s", "boolean"),
        ("[limits]\nmax_message_bytes = 1000", "limits.max_message_bytes", "262144"),
        ("[limits]\nrequest_timeout_s = 10", "limits.request_timeout_s", "commit_timeout_s"),
        ("[store]\nretention_s = 10", "store.retention_s", "key_retention_s"),
        ("pools = []", "pools", "at least one"),
        ("pools = 3", "pools", "[[pools]]"),
        ("[[pools]]\nmax = 3", "pools[0].name", "must be given"),
        ("[[pools]]\nname = 'a'\n[[pools]]\nname = 'a'", "pools[1].name", "pools[0]"),
        ("[[pools]]\nname = 'a'\noverflow = 'drop'", "pools[0].overflow", "shed_lowest"),
        ("[[pools]]\nname = 'a'\ntenant_weights = { x = 0 }", "pools[0].tenant_weights", "above 0"),
        ("[[resources]]\nname = 'r'", "resources[0].permits", "semaphore"),
        (
            "[[resources]]\nname = 'r'\npermits = 1\nrate = 1.0",
            "resources[0].rate",
            "does not belong",
        ),
        ("[server]\ntls = { crt = 'x' }", "server.tls.crt", "'cert'"),
        ("server = 3", "server", "must be a table"),
    ],
)
def test_wrong_value_is_named_with_its_rule(text: str, path: str, word: str) -> None:
    """Each mistake has its path and says what would be right."""
    found = problems_of(text)
    assert list(found) == [path]
    assert word in found[path]
    assert "tiger" not in found[path]


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error of a missing or unreadable file names the file."""
    with pytest.raises(config.ConfigError, match=r"nothing\.toml: file: No such file"):
        config.load(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(config.ConfigError, match="UTF-8"):
        config.load(tmp_path / "latin.toml")


def test_check_answers_by_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` says whether a file is right and serves nothing."""
    right, wrong = tmp_path / "right.toml", tmp_path / "wrong.toml"
    right.write_text("[server]\ngrpc_addr = '127.0.0.1:0'\n")
    wrong.write_text("[servr]\n")
    assert cli.main(["--check", "--config", str(right)]) == cli.OK
    assert "is right" in capsys.readouterr().out
    assert cli.main(["serve", "--check", "--config", str(wrong)]) == cli.WRONG_CONFIG
    assert "servr: unknown key; the nearest one is 'server'" in capsys.readouterr().err


def test_listening_beyond_loopback_needs_to_be_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An open server without authentication is refused unless it is said to be wanted."""
    assert cli.main(["--check", "--grpc-addr", "0.0.0.0:7070"]) == cli.WRONG_CONFIG
    assert "--insecure-no-auth" in capsys.readouterr().err
    asked = ["--check", "--grpc-addr", "0.0.0.0:7070", "--insecure-no-auth"]
    assert cli.main(asked) == cli.OK


def test_other_stores_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that this version does not have is an error, not a fallback."""
    for text in ("sqlite:", "sqlite", "oracle://scott:tiger@host", "postgres:x"):
        assert cli.main(["--check", "--store", text]) == cli.WRONG_CONFIG
        told = capsys.readouterr().err
        assert "--store: must be memory" in told
        assert "tiger" not in told


def test_store_of_the_command_line_wins(tmp_path: Path) -> None:
    """`--store` replaces where state is kept, and nothing else of the section."""
    right = tmp_path / "right.toml"
    right.write_text("[store]\nkind = 'sqlite'\npath = 'a.db'\nlease_ttl_s = 20\n")
    for text, kind, path in (("sqlite:b.db", "sqlite", "b.db"), ("memory", "memory", None)):
        given = cli.read_arguments(["--config", str(right), "--store", text])
        store = cli.configured(given).store
        assert (store.kind, store.path, store.lease_ttl_s) == (kind, path, 20)


def test_database_is_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address may hold a password: it is used, and no text of ours shows it."""
    secret = "postgres://scott:tiger@db/q"
    given = cli.read_arguments(["--store", secret])
    named = cli.configured(given)
    monkeypatch.setenv("QUEUE_DB", secret)
    hidden = config.parse("[store]\nkind = 'postgres'\nurl_env = 'QUEUE_DB'\n")
    for one in (named, hidden):
        assert one.store.database() == secret
        assert "tiger" not in repr(one)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("[server]\nshutdown_grace_s = -1", {"server.shutdown_grace_s": 2}),
        ("\n\n[servr]", {"servr": 3}),
        ("[[pools]]\nname = 'a'\n\n[[pools]]\nmax = 0", {"pools[1].max": 5, "pools[1].name": 4}),
        ("pools = [\n  { name = 'a' },\n  { name = 'a b' },\n]", {"pools[1].name": 1}),
        (
            "[[pools]]\nname = 'a'\n[pools.retry]\njitter = true\nmax_attempts = 0",
            {"pools[0].retry.max_attempts": 5},
        ),
        ("server.shutdown_grace_s = -1", {"server.shutdown_grace_s": 1}),
        (
            "[[auth.tokens]]\nrole = 'x'\n# token\n"
            'token = """\n[[pools]]\n"""\n[limits]\nmax_list = 0',
            {"auth.tokens[0].role": 2, "auth.tokens[0].token": 4, "limits.max_list": 8},
        ),
        ("[limits]\nrequest_timeout_s = 1", {"limits.request_timeout_s": 2}),
        ("[store]\nkind = 'sqlite'", {"store.path": 1}),
    ],
)
def test_mistake_is_found_on_its_line(text: str, lines: dict[str, int]) -> None:
    """What a value is set by is named with its line, and a missing one with its table's."""
    with pytest.raises(config.ConfigError) as caught:
        config.parse(text, "cronoq.toml")
    places = {problem.path: problem.place for problem in caught.value.problems}
    assert {path: places[path] for path in lines} == {
        path: f"cronoq.toml:{line}" for path, line in lines.items()
    }
    for path, line in lines.items():
        assert f"cronoq.toml:{line}: {path}: " in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "path", "is_now"),
    [
        ("CRONOQ_SERVER__GRPC_ADDR", "0.0.0.0:1", "server.grpc_addr", config.Address("0.0.0.0", 1)),
        ("CRONOQ_SERVER__SHUTDOWN_GRACE_S", "1.5", "server.shutdown_grace_s", 1.5),
        ("CRONOQ_STORE__FULL_SYNC", "false", "store.full_sync", False),
        ("CRONOQ_STORE__SCHEMA", "true", "store.schema", "true"),
        ("CRONOQ_LIMITS__MAX_LIST", "7", "limits.max_list", 7),
        ("CRONOQ_POOLS__0__MAX", "8", "pools.0.max", 8),
        ("CRONOQ_POOLS__1__NAME", "new", "pools.1.name", "new"),
        ("CRONOQ_POOLS", '[{ name = "x" }]', "pools.0.name", "x"),
        ("CRONOQ_POOLS__0__RETRY__MAX_ATTEMPTS", "9", "pools.0.retry.max_attempts", 9),
        ("CRONOQ_AUTH__TOKENS__0__ROLE", "metrics", "auth.tokens.0.role", "metrics"),
        ("CRONOQ_AUTH__TOKENS__0__TOKEN", "1" * 20, "auth.tokens.0.token", "1" * 20),
        ("CRONOQ_AUTH__TOKENS__0__POOLS", '["a"]', "auth.tokens.0.pools", frozenset("a")),
    ],
)
def test_variable_sets_its_value(variable: str, value: str, path: str, is_now: object) -> None:
    """Whatever its place and type, over what the file says; texts need no quotes."""
    text = (
        "[[pools]]\nname = 'a'\nmax = 1\n"
        "[[auth.tokens]]\ntoken = '0123456789abcdef'\nrole = 'admin'\n"
    )
    found: object = config.parse(text, environment={variable: value})
    for part in path.split("."):
        found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
    assert found == is_now


def test_variables_make_a_list_from_nothing() -> None:
    """A table of a list needs no file."""
    environment = {
        "CRONOQ_AUTH__TOKENS__0__TOKEN": "0123456789abcdef",
        "CRONOQ_AUTH__TOKENS__0__ROLE": "admin",
        "CRONOQ_ENDPOINT": "https://elsewhere",
        "OTHER__NAME": "x",
    }
    (token,) = config.parse("", environment=environment).auth.tokens
    assert token.role == "admin"


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("CRONOQ_SERVER__GRPC_ADR", "x", "nearest one is 'grpc_addr'"),
        ("CRONOQ_SERVR__GRPC_ADDR", "x", "nearest one is 'server'"),
        ("CRONOQ_LIMITS__MAX_LIST", "many", "whole number"),
        ("CRONOQ_LIMITS__MAX_LIST", "0", "from 1"),
        ("CRONOQ_POOLS__5__MAX", "1", "has 1 entries"),
        ("CRONOQ_POOLS__A__MAX", "1", "by its number"),
        ("CRONOQ_POOLS", "[", "neither"),
        ("CRONOQ_STORE__KIND__X", "1", "has no parts"),
    ],
)
def test_wrong_variable_is_named(variable: str, value: str, word: str) -> None:
    """The mistake says which variable it is in."""
    text = "[store]\nkind = 'memory'\n[[pools]]\nname = 'a'"
    with pytest.raises(config.ConfigError, match=variable) as caught:
        config.parse(text, environment={variable: value})
    assert word in str(caught.value)


def test_shown_configuration_makes_the_same_again() -> None:
    """What `config` prints is a whole file; only secrets are missing, and are said to be."""
    text = """
        [server]
        metrics_addr = "[::1]:9"
        [[pools]]
        name = "a"
        tenant_weights = { x = 2, "y-z" = 0.5 }
        [[pools]]
        name = "b"
        max = 3
        [[auth.tokens]]
        token = "0123456789abcdef"
        role = "worker"
        pools = ["b", "a"]
        labels = { gpu = ["t4", "a100"], "zone" = "x\\"y" }
        [[resources]]
        name = "r"
        kind = "token_bucket"
        rate = 2.5
        burst = 3
        """
    parsed = config.parse(text)
    shown = config.to_toml(parsed)
    assert "0123456789abcdef" not in shown
    again = shown.replace("# token: set, not shown", 'token = "0123456789abcdef"')
    assert config.parse(again) == parsed


def test_effective_configuration_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """File, environment and command line together, the later over the earlier."""
    path = tmp_path / "cronoq.toml"
    path.write_text("[limits]\nmax_list = 5\nmax_tags = 6\n")
    monkeypatch.setenv("CRONOQ_LIMITS__MAX_LIST", "8")
    monkeypatch.setenv("CRONOQ_SERVER__HTTP_ADDR", "127.0.0.1:8")
    assert cli.main(["config", "--config", str(path), "--http-addr", "127.0.0.1:9"]) == cli.OK
    shown = capsys.readouterr().out.splitlines()
    assert {"max_list = 8", "max_tags = 6", 'http_addr = "127.0.0.1:9"'} <= set(shown)


def test_credentials_make_listening_beyond_loopback_right(tmp_path: Path) -> None:
    """Where everybody is asked who they are, nothing else needs to be said."""
    path = tmp_path / "cronoq.toml"
    path.write_text("[[auth.tokens]]\ntoken = '0123456789abcdef'\nrole = 'admin'\n")
    assert cli.main(["--check", "--grpc-addr", "0.0.0.0:7070", "--config", str(path)]) == cli.OK


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` answers without anything else being set up."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("cronoq-server 0.")
