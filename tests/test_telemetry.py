"""How the server logs, and that logging never stands in its way."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from cronoq_server import telemetry


def record(message: str, **facts: object) -> logging.LogRecord:
    """A log record with some facts."""
    return logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": message, **facts})


def test_line_is_one_json_object() -> None:
    """Message for people, action and facts for machines, all in one line."""
    line = telemetry.JsonFormatter().format(record("two\nlines", action="server_ready", port=1))
    assert "\n" not in line
    parsed = json.loads(line)
    assert (parsed["message"], parsed["action"], parsed["port"]) == (
        "two\nlines",
        "server_ready",
        1,
    )
    assert parsed["at"].endswith("Z")


def test_lines_are_written_in_order() -> None:
    """What was logged before the end is written, one line after the other."""
    lines: list[bytes] = []
    writer = telemetry.LineWriter(lines.append)
    for number in range(100):
        writer.emit(record(str(number)))
    writer.finish()
    assert lines == [b"%d\n" % number for number in range(100)]


@pytest.mark.regression("R28")
def test_blocked_sink_costs_lines_and_nothing_else() -> None:
    """A pipe that nobody reads fills a bounded queue; more is dropped and counted."""
    unblock = threading.Event()
    writer = telemetry.LineWriter(lambda _: unblock.wait())
    for number in range(telemetry.LINES_MAX + 500):
        writer.emit(record(str(number)))
    assert writer.dropped >= 499
    writer.finish(timeout_s=0.01)
    unblock.set()
    writer.finish()
