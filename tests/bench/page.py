"""Writes the tables of `docs/performance.md` from the results that lie beside it.

A table stands between two marks; what is between them is written anew, the rest is left alone. So
no figure on the page was ever typed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.bench.environment import RESULTS, ROOT

PAGE = ROOT / "docs" / "performance.md"
Result = dict[str, Any]


def _load(name: str) -> Result:
    result: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _table(rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]])


def _grouped(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,.0f}".replace(",", " ")


def _origin(result: Result) -> str:
    return (
        f"Commit `{result['commit']}`, CPython {result['python']}, {result['cpu_count']} cores, "
        f"load average {result['load_average']} as it began, {result['at'][:10]}."
    )


def _e2e() -> str:
    result, backlog = _load("e2e"), _load("e2e-with-backlog")
    processes = ("server", "workers", "client")
    cpu = [f"{result[f'{process}_cpu_s_per_1000'] * 1e3:.0f}" for process in processes]
    rows = [
        ("what", "measured", "at least"),
        (
            f"{_grouped(result['tasks'])} tasks, submitted to result delivered",
            f"{_grouped(result['tasks_per_s'])} tasks/s",
            "15 000 tasks/s",
        ),
        (
            f"the same while {_grouped(backlog['pending'])} other tasks wait",
            f"{_grouped(backlog['tasks_per_s'])} tasks/s",
            "0.8 of that",
        ),
        ("single submits, 64 callers", f"{_grouped(result['submits_per_s'])} /s", "8 000 /s"),
        (
            "the same, and workers run the tasks",
            f"{_grouped(result['submits_while_served_per_s'])} /s",
            "",
        ),
        (
            "idle system: submit until it is acknowledged, p50 / p99",
            f"{result['submit_p50_ms']:.1f} / {result['submit_p99_ms']:.1f} ms",
            "",
        ),
        (
            "idle system: submit until the handler starts, p50 / p99",
            f"{result['start_latency_p50_ms']:.1f} / {result['start_latency_p99_ms']:.1f} ms",
            "3 / 10 ms",
        ),
        ("processor time per task: server / workers / client", f"{' / '.join(cpu)} µs", ""),
        ("memory of the server after it, results kept", f"{result['rss_mb']:.0f} MB", ""),
    ]
    setting = (
        f"{result['store'].capitalize()} store, {result['workers']} workers with "
        f"{result['slots']} slots each, payload of {result['payload']} bytes."
    )
    beside = f"The row with the backlog is of its own run: commit `{backlog['commit']}`, "
    beside += f"load average {backlog['load_average']}."
    return f"{_table(rows)}\n\n{setting} {_origin(result)} {beside}"


def _sweep() -> str:
    result = _load("throughput-by-batch")
    rows = [
        ("tasks in one request", *(row["batch"] for row in result["rows"])),
        ("tasks/s", *(_grouped(row["tasks_per_s"]) for row in result["rows"])),
    ]
    return f"{_table(rows)}\n\n{_origin(result)}"


def _engine() -> str:
    result = _load("engine")
    by_place = {(row["pending"], row["step"]): row for row in result["rows"]}
    backlogs, steps = (sorted({place[at] for place in by_place}) for at in (0, 1))
    short, long = backlogs[0], backlogs[-1]
    rows: list[tuple[object, ...]] = [
        (
            "tasks in a step",
            f"lives/s, {_grouped(short)} pending",
            f"lives/s, {_grouped(long)} pending",
            "ratio",
            "µs per life",
            "slowest step, ms",
        )
    ]
    for step in steps:
        row = by_place[long, step]
        rows.append(
            (
                step,
                _grouped(by_place[short, step]["lives_per_s"]),
                _grouped(row["lives_per_s"]),
                f"{result['long_to_short'][str(step)]:.2f}",
                f"{row['us_per_life']:.1f}",
                f"{row['worst_step_ms']:.1f}",
            )
        )
    memory = result["bytes_per_pending_task_beyond_payload"]
    note = (
        f"The last two columns are those of the long backlog. A pending task takes {memory} bytes"
    )
    return f"{_table(rows)}\n\n{note} beside its payload. {_origin(result)}"


def _idle() -> str:
    result = _load("idle")
    rows = [
        ("what", "measured", "at most"),
        (
            f"{_grouped(result['workers'])} workers with {result['slots']} slots each, idle",
            f"{result['server_core_percent']:.1f} % of a core",
            "10 %",
        ),
        ("memory of the server for each", f"{result['kb_per_worker']:.0f} kB", ""),
        ("all connected within", f"{result['connected_in_s']:.1f} s", ""),
    ]
    return f"{_table(rows)}\n\n{_origin(result)}"


TABLES = {"e2e": _e2e, "engine": _engine, "idle": _idle, "sweep": _sweep}


def render(page: str) -> str:
    """Returns a page with its tables written anew."""
    for name, table in TABLES.items():
        mark, end = f"<!-- results: {name} -->", "<!-- end of results -->"
        before, found, rest = page.partition(mark)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{PAGE.name} has no place for the results of {name}")
        page = f"{before}{mark}\n\n{table()}\n\n{end}{after}"
    return page


def main(_: Sequence[str]) -> int:
    """Writes the page."""
    PAGE.write_text(render(PAGE.read_text()))
    print(PAGE.relative_to(ROOT))
    return 0
