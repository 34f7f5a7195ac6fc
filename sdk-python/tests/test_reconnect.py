"""Holds the reconnect policy to the vectors that all languages share, and to its rules."""

from __future__ import annotations

import json
import random
import tomllib
from pathlib import Path
from typing import Any

import pytest

from cronoq import _reconnect, _session
from cronoq._coalesce import IN_FLIGHT_MAX
from cronoq._endpoint import EndpointError, parse_configured
from cronoq._reconnect import (
    Connect,
    Decision,
    Elapsed,
    Ended,
    Event,
    GiveUp,
    ReconnectPolicy,
    ReconnectSettings,
    Redirected,
    Registered,
    Started,
    Stay,
    Wait,
)
from cronoq.options import (
    KEEPALIVE_MIN_S,
    MESSAGE_ROOM,
    Backoff,
    ClientOptions,
    ConnectOptions,
    Keepalive,
    WorkerOptions,
)

CONFORMANCE = Path(__file__).parents[2] / "conformance"
VECTORS = json.loads((CONFORMANCE / "vectors" / "reconnect.json").read_text())
DEFAULTS = tomllib.loads((CONFORMANCE / "defaults.toml").read_text())


def _policy_of(vector: dict[str, Any]) -> ReconnectPolicy:
    config = VECTORS["defaults"] | vector["config"]
    fractions = iter(vector["chance"])
    settings = ReconnectSettings(
        endpoint=parse_configured(config["endpoint"], tls=config["tls"]),
        has_token=config["has_token"],
        insecure_redirect_http=config["insecure_redirect_http"],
        backoff_initial=config["backoff_initial_ms"] / 1000,
        backoff_max=config["backoff_max_ms"] / 1000,
        session_reset=config["session_reset_ms"] / 1000,
    )
    return ReconnectPolicy(settings, lambda: next(fractions))


def _event_of(event: dict[str, Any]) -> Event:
    match event["type"]:
        case "started":
            return Started()
        case "registered":
            return Registered()
        case "redirected":
            return Redirected(event["endpoint"])
        case "elapsed":
            return Elapsed()
        case _:
            return Ended(event["code"], event["not_leader"])


def _described(decision: Decision) -> dict[str, Any]:
    match decision:
        case Connect(endpoint, may_send_token, refused):
            return {
                "type": "connect",
                "endpoint": str(endpoint),
                "may_send_token": may_send_token,
                "refused": bool(refused),
            }
        case Wait(until, refused):
            ms = pytest.approx(until * 1000, abs=0.001)
            return {"type": "wait", "until_ms": ms, "refused": bool(refused)}
        case GiveUp(code):
            return {"type": "give_up", "code": code}
        case Stay():
            return {"type": "stay"}


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_policy_decides_as_the_vector_says(vector: dict[str, Any]) -> None:
    """Every event of a vector leads to the decision that all languages must make."""
    policy = _policy_of(vector)
    for number, step in enumerate(vector["steps"]):
        decision = policy.decide(_event_of(step["event"]), step["at_ms"] / 1000)
        assert step["expect"] == _described(decision), f"step {number}"


def test_delays_cover_the_whole_bound() -> None:
    """Twenty delays of one bound are spread from its lower to its upper end."""
    fractions = [number / 20 for number in range(20)]
    delays = []
    for fraction in fractions:
        vector = {"config": {"endpoint": "127.0.0.1:1"}, "chance": [fraction]}
        policy = _policy_of(vector)
        policy.decide(Started(), 100.0)
        decision = policy.decide(Ended("UNAVAILABLE"), 100.0)
        delays.append(decision.until - 100.0 if isinstance(decision, Wait) else 0.0)
    assert pytest.approx([0.1 * fraction for fraction in fractions]) == delays


@pytest.mark.regression("R16")
@pytest.mark.parametrize("outage", [0.5, 3.0, 180.0])
def test_many_workers_come_back_soon_and_in_no_storm(outage: float) -> None:
    """Four tries in any second at most, all there within six seconds, evenly spread."""
    back = []
    for seed in range(500):
        settings = ReconnectSettings(endpoint=parse_configured("127.0.0.1:1", tls=False))
        policy = ReconnectPolicy(settings, random.Random(seed).random)
        policy.decide(Started(), 0.0)
        policy.decide(Registered(), 0.0)
        now, tries = 1.0, [0.0]
        decision = policy.decide(Ended("UNAVAILABLE"), now)
        while True:
            if isinstance(decision, Wait):
                now = decision.until
                decision = policy.decide(Elapsed(), now)
            assert isinstance(decision, Connect)
            tries.append(now)
            if now >= 1.0 + outage:
                break
            decision = policy.decide(Ended("UNAVAILABLE"), now)
        spans = [tries[n + 4] - tries[n] for n in range(len(tries) - 4)]
        assert min(spans, default=1.0) >= 1.0 - 1e-9
        back.append(now - 1.0 - outage)
    assert max(back) < 6.0
    busiest = max(sum(at <= other < at + 0.1 for other in back) for at in back)
    assert busiest < 250


def test_constants_are_those_of_all_languages() -> None:
    """What this SDK has built in equals the shared file, key for key."""
    worker, client = WorkerOptions(), ClientOptions()
    assert {
        "worker": {
            **_connection(worker),
            "drain_timeout": worker.drain_timeout,
            "insecure_redirect_http": worker.insecure_redirect_http,
            "keepalive_interval_min": KEEPALIVE_MIN_S,
            "session_reset": worker.session_reset,
            "slots": worker.slots,
        },
        "reconnect": {
            "fatal_codes": sorted(_reconnect.FATAL_CODES),
            "redirects_max": _reconnect.REDIRECTS_MAX,
            "tries_max": _reconnect.TRIES_MAX,
            "tries_window_backoffs": _reconnect.TRIES_WINDOW_BACKOFFS,
        },
        "session": {
            "beats_per_ttl": _session.BEATS_PER_TTL,
            "lease_ttl_default": _session.LEASE_TTL_S,
            "message_room_bytes": MESSAGE_ROOM,
            "progress_bytes_max": _session.PROGRESS_BYTES_MAX,
            "progress_interval": _session.PROGRESS_EVERY_S,
            "protocol_version": _session.PROTOCOL_VERSION,
            "receipts_since": _session.RECEIPTS_SINCE,
            "reports_per_message_max": _session.REPORTS_PER_MESSAGE,
        },
        "client": {
            **_connection(client),
            "deadline": client.deadline,
            "max_message_bytes": client.max_message_bytes,
            "max_tasks_per_batch": client.max_tasks_per_batch,
            "max_wait": client.max_wait,
            "submits_in_flight": IN_FLIGHT_MAX,
        },
    } == DEFAULTS


def _connection(options: ConnectOptions) -> dict[str, Any]:
    return {
        "backoff_initial": options.backoff.initial,
        "backoff_max": options.backoff.maximum,
        "connect_timeout": options.connect_timeout,
        "keepalive_interval": options.keepalive.interval,
        "keepalive_timeout": options.keepalive.timeout,
    }


@pytest.mark.parametrize(
    ("text", "tls", "url"),
    [
        ("127.0.0.1:7070", False, "http://127.0.0.1:7070"),
        ("localhost", False, "http://localhost:7070"),
        ("[::1]:7070", False, "http://[::1]:7070"),
        ("http://host.internal", False, "http://host.internal:7070"),
        ("https://host.internal:1", False, "https://host.internal:1"),
        ("host.internal:1", True, "https://host.internal:1"),
    ],
)
def test_configured_endpoints_have_a_scheme_and_a_port(text: str, tls: bool, url: str) -> None:
    """What is left out of a configured endpoint is filled in."""
    assert url == str(parse_configured(text, tls=tls))


@pytest.mark.parametrize("text", ["", "a b", "http://u@h:1", "ftp://h:1", "h:0", "h:x", "h/p"])
def test_configured_endpoints_that_mean_nothing_are_refused(text: str) -> None:
    """A mistake in an endpoint shows when the client or worker is made."""
    with pytest.raises(EndpointError):
        parse_configured(text, tls=False)


def test_plain_http_with_tls_settings_is_refused() -> None:
    """TLS settings that would not be used are a mistake."""
    with pytest.raises(EndpointError, match="http, but TLS"):
        parse_configured("http://h:1", tls=True)


@pytest.mark.regression("R13")
def test_keepalive_below_ten_seconds_is_refused() -> None:
    """Servers close connections that ping too often."""
    with pytest.raises(ValueError, match="below 10 s"):
        Keepalive(interval=9.9)


@pytest.mark.parametrize(("initial", "maximum"), [(0, 1), (2, 1), (-1, 1)])
def test_a_backoff_without_sense_is_refused(initial: float, maximum: float) -> None:
    """Bounds must be positive and in order."""
    with pytest.raises(ValueError, match="backoff"):
        Backoff(initial=initial, maximum=maximum)
