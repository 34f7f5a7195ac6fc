"""How the server speaks to whoever runs it: one JSON object per line, with a named action.

Rules a change must keep:

1. The message is for people, the action for machines; every action is in `ACTIONS`.
2. INFO is for start, stop, changes of role and what operators change; single decisions are DEBUG.
3. No payload, no output, no token, no key ever enters a log line.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

ACTIONS = frozenset(
    {
        "call_failed",
        "change_made",
        "clock_set_back",
        "config_refused",
        "ends_read",
        "leadership_acquired",
        "leadership_lost",
        "leadership_released",
        "listener_changed",
        "memory_store_used",
        "old_session_remains",
        "peer_changed",
        "peer_unconnectable",
        "pooler_avoided",
        "recovery_finished",
        "row_quarantined",
        "scaler_failed",
        "reload_refused",
        "server_ready",
        "server_starting",
        "server_stopped",
        "server_stopping",
        "settings_reloaded",
        "store_late",
        "store_recovered",
        "store_rejected",
        "stream_refused",
        "stream_revoked",
        "test_clock_used",
        "tokens_unencrypted",
        "worker_cut_off",
        "worker_joined",
        "worker_lost",
    }
)
"""Everything that `extra={"action": …}` may say."""

LINES_MAX = 10_000
"""Lines kept for a sink that does not take them; beyond that they are dropped and counted."""

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}


class JsonFormatter(logging.Formatter):
    """Writes a record as one JSON object: time, level, logger, message, action, facts."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats one record."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "at": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _PLAIN)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class LineWriter(logging.Handler):
    """Formats records where they arise and writes them in a thread of its own.

    A sink that blocks, such as a pipe that nobody reads, costs lines and never stops the server.

    Attributes:
        dropped: Lines lost because the sink did not take them.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self.dropped = 0
        self._write = write
        self._lines: queue.Queue[bytes | None] = queue.Queue(LINES_MAX)
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queues a record's line, or counts it as dropped."""
        try:
            self._lines.put_nowait(self.format(record).encode(errors="replace") + b"\n")
        except queue.Full:
            self.dropped += 1

    def finish(self, timeout_s: float = 2.0) -> None:
        """Writes what is queued; gives up on a sink that takes longer than `timeout_s`."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._write(line)
            except OSError:  # the sink is gone: there is no place left to say so
                self.dropped += 1


def write_stderr(line: bytes) -> None:
    """Writes to standard error past Python's buffers, whose locks could hang at exit."""
    while line:
        line = line[os.write(2, line) :]


def configure(
    level: str, style: str, write: Callable[[bytes], object] = write_stderr
) -> LineWriter:
    """Sets logging up for the process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        style: `json` or `text`.
        write: Takes one line at a time; may block.

    Returns:
        The writer; the caller lets it finish last.
    """
    writer = LineWriter(write)
    if style == "json":
        writer.setFormatter(JsonFormatter())
    else:
        writer.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [writer]
    root.setLevel(level.upper())
    return writer
