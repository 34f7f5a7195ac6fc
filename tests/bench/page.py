"""Writes the tables of `docs/performance.md` from the results that lie beside it.

A table stands between two marks; what is between them is written anew, the rest is left alone. So
no figure on the page was ever typed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
    backlog = _load("e2e-memory-with-backlog")
    results = [_load("e2e-memory"), _load("e2e-sqlite"), backlog]

    def row(what: str, cell: Callable[[Result], str], floor: str = "") -> tuple[str, ...]:
        return (what, *map(cell, results), floor)

    waiting = f"memory, {_grouped(backlog['pending'])} other tasks wait"
    rows = [
        ("what", "memory", "SQLite", waiting, "at least"),
        row(
            f"{_grouped(backlog['tasks'])} tasks, submitted to result delivered, tasks/s",
            lambda result: _grouped(result["tasks_per_s"]),
            "15 000",
        ),
        row(
            "single submits by 64 callers at once, submits/s",
            lambda result: _grouped(result["submits_per_s"]),
            "8 000; SQLite 10 000",
        ),
        row(
            "the same, and workers run the tasks",
            lambda result: _grouped(result["submits_while_served_per_s"]),
        ),
        row("one task at a time: submit acknowledged, ms", _quantiles("submit")),
        row(
            "one task at a time: submit until the handler starts, ms",
            _quantiles("start_latency"),
            "3 / 10",
        ),
        row("processor time per task, µs: server / workers / client", _processor_times),
        row("memory of the server after it, MB", lambda result: f"{result['rss_mb']:.0f}"),
    ]
    setting = (
        f"{backlog['workers']} workers with {backlog['slots']} slots each, payload of "
        f"{backlog['payload']} bytes. Tasks/s is the median of {backlog['rounds']} rounds, "
        "latencies are p50 / p99. SQLite syncs each commit to disk."
    )
    origins = "\n".join(
        f"- {name}: {_origin(result)}" for name, result in zip(rows[0][1:], results, strict=False)
    )
    return f"{_table(rows)}\n\n{setting}\n\n{origins}"


def _quantiles(name: str) -> Callable[[Result], str]:
    return lambda result: f"{result[f'{name}_p50_ms']:.1f} / {result[f'{name}_p99_ms']:.1f}"


def _processor_times(result: Result) -> str:
    processes = ("server", "workers", "client")
    return " / ".join(f"{result[f'{name}_cpu_s_per_1000'] * 1e3:.0f}" for name in processes)


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
    mixed = " and ".join(
        f"{_grouped(row['lives_per_s'])} with {_grouped(row['pending'])} pending"
        for row in result["realistic"]
    )
    memory = result["bytes_per_pending_task_beyond_payload"]
    note = (
        f"The last two columns are those of the long backlog. A pending task takes {memory} bytes"
    )
    mix = (
        "In the realistic mix (ten label sets, fifty tenants by weight, three semaphores that are "
        f"used up, deadlines on a tenth; at least 25 000) it does {mixed}, in steps of 100."
    )
    return f"{_table(rows)}\n\n{note} beside its payload. {mix}\n\n{_origin(result)}"


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
