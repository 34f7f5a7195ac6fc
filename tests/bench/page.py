"""Writes the tables of `docs/performance.md` from the results that lie beside it.

A table stands between two marks; what is between them is written anew, the rest is left alone. So
no figure on the page was ever typed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.bench import shards as sharding
from tests.bench.e2e import BY_BACKLOG, LIMITED_POOL, SWEEP, saved
from tests.bench.environment import RESULTS, ROOT
from tests.bench.peers import report as peers

PLAIN_FLOORS = {"memory": 20_000, "sqlite": 15_000, "postgres": 10_000}
"""What each store has to reach without limits, tasks/s."""

NAMES = {"memory": "memory", "sqlite": "SQLite", "postgres": "PostgreSQL"}
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
    results = [*saved("e2e"), backlog]

    def row(what: str, cell: Callable[[Result], str], floor: str = "") -> tuple[str, ...]:
        return (what, *map(cell, results), floor)

    waiting = f"memory, {_grouped(backlog['pending'])} other tasks wait"
    rows = [
        ("what", *(NAMES[result["store"]] for result in results[:-1]), waiting, "at least"),
        row(
            "tasks, submitted to result delivered, tasks/s",
            lambda result: _grouped(result["tasks_per_s"]),
            "20 000; SQLite 15 000; PostgreSQL 10 000",
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
        "latencies are p50 / p99. SQLite and PostgreSQL sync each commit to disk."
    )
    origins = "\n".join(
        f"- {name}: {_grouped(result['tasks'])} tasks. {_origin(result)}"
        for name, result in zip(rows[0][1:], results, strict=False)
    )
    return f"{_table(rows)}\n\n{setting}\n\n{origins}"


def _quantiles(name: str) -> Callable[[Result], str]:
    return lambda result: f"{result[f'{name}_p50_ms']:.1f} / {result[f'{name}_p99_ms']:.1f}"


def _processor_times(result: Result) -> str:
    processes = ("server", "workers", "client")
    return " / ".join(f"{result[f'{name}_cpu_s_per_1000'] * 1e3:.0f}" for name in processes)


def _sweep() -> str:
    results = saved(SWEEP)
    rows: list[tuple[object, ...]] = [
        ("tasks in one request", *(row["batch"] for row in results[0]["rows"])),
        *(
            (
                f"{NAMES[result['store']]}, tasks/s",
                *(_grouped(row["tasks_per_s"]) for row in result["rows"]),
            )
            for result in results
        ),
    ]
    return f"{_table(rows)}\n\n{_origins(results)}"


def _backlog() -> str:
    results = saved(BY_BACKLOG)
    if not results:
        return "Nobody has measured it yet."
    rows: list[tuple[object, ...]] = [
        ("other tasks that wait", *(_grouped(row["pending"]) for row in results[0]["rows"]))
    ]
    for result in results:
        name, found = NAMES[result["store"]], result["rows"]
        rows.append((f"{name}, tasks/s", *(_grouped(row["tasks_per_s"]) for row in found)))
        rows.append(
            (f"{name}, server's µs for a task", *(row["server_us_per_task"] for row in found))
        )
    return f"{_table(rows)}\n\n{_origins(results)}"


def _limited() -> str:
    results = saved(LIMITED_POOL)
    if not results:
        return "Nobody has measured it yet."
    rows: list[tuple[object, ...]] = [("what", *(NAMES[result["store"]] for result in results))]
    for what, name in (
        ("tasks_per_s", "plain, tasks/s"),
        ("limited_tasks_per_s", "with fair share, semaphore and token bucket, tasks/s"),
    ):
        rows.append((name, *(_grouped(result[what]) for result in results)))
    rows.append(("with them to plain", *(result["limited_to_plain"] for result in results)))
    floors = (_grouped(0.7 * PLAIN_FLOORS[result["store"]]) for result in results)
    rows.append(("at least, tasks/s: 0.7 of what plain has to reach", *floors))
    for what, name in (
        ("server_us_per_task", "plain, server's µs for a task"),
        ("limited_server_us_per_task", "with them"),
    ):
        rows.append((name, *(result[what] for result in results)))
    return f"{_table(rows)}\n\n{_origins(results)}"


def _flat() -> str:
    result = _load("flat")
    rows: list[tuple[object, ...]] = [("what grows", "to", "µs for a task", "to the first")]
    rows += [
        (row["grows"], _grouped(row["count"]), row["us_per_life"], row["to_first"])
        for row in result["rows"]
    ]
    return f"{_table(rows)}\n\n{_origin(result)}"


def _recovery() -> str:
    results = saved("recovery")
    names = [NAMES[result["store"]] for result in results]
    # The quietest round: others ask for the processor as well.
    best = [min(result["rounds"], key=lambda row: float(row["recovered_s"])) for result in results]
    rows = [
        ("what", *names, "at most"),
        (
            f"{_grouped(results[0]['pending'])} waiting tasks, until calls are taken, s",
            *(row["recovered_s"] for row in best),
            "20; PostgreSQL 30",
        ),
        ("processor time of the server, s", *(row["processor_s"] for row in best), ""),
        ("memory of the server after it, MB", *(row["rss_mb"] for row in best), ""),
        ("most memory on the way, MB", *(row["peak_mb"] for row in best), ""),
        (
            "bytes for a waiting task beside its payload",
            *(row["bytes_per_pending_task_beyond_payload"] for row in best),
            "1024",
        ),
    ]
    return f"{_table(rows)}\n\n{_origins(results)}"


def _churn() -> str:
    results = saved("churn")
    names = [NAMES[result["store"]] for result in results]
    rows: list[tuple[object, ...]] = [
        ("", *(f"{name}, {when}" for name in names for when in ("second report", "last report")))
    ]
    for what, name in (
        ("mb", "tables and indexes, MB"),
        ("index_mb", "of which indexes, MB"),
        ("dead_rows", "dead rows"),
        ("own_us_per_life", "processor time of a life in the server, µs"),
        ("server_us_per_life", "in the database, µs"),
        ("lives_per_s", "lives/s"),
        ("load", "load of the machine"),
    ):
        cells = [result["churn"][at].get(what) for result in results for at in (1, -1)]
        rows.append((name, *(_cell(cell) for cell in cells)))
    lives = "; ".join(
        f"{NAMES[result['store']]} {_grouped(result['churned'])} lives" for result in results
    )
    return f"{_table(rows)}\n\n{lives}.\n\n{_origins(results)}"


def _cell(figure: float | None) -> str:
    """A figure as it is, with its thousands apart if it is a whole one; nothing for none."""
    if not figure:
        return ""
    return _grouped(figure) if isinstance(figure, int) else str(figure)


def _origins(results: Sequence[Result]) -> str:
    return "\n".join(f"- {NAMES[result['store']]}: {_origin(result)}" for result in results)


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


def _placement() -> str:
    result = _load("placement")
    cost = {(row["mix"], row["waiting"]): row["us_per_start"] for row in result["rows"]}
    mixes = dict.fromkeys(mix for mix, _ in cost)
    sizes = sorted({size for _, size in cost})
    head = ("mix", *(f"µs per start, {_grouped(size)} wait" for size in sizes), "ratio", "at most")
    rows = [
        (
            mix,
            *(f"{cost[mix, size]:.1f}" for size in sizes),
            f"{cost[mix, sizes[-1]] / cost[mix, sizes[0]]:.1f}",
            "6",
        )
        for mix in mixes
    ]
    return f"{_table([head, *rows])}\n\n{_origin(result)}"


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


def _console() -> str:
    if not (RESULTS / "console.json").exists():
        return "Nobody has measured it yet."
    result = _load("console")
    spent = result["server_core_percent"]
    rows = [
        ("what", "measured", "at most"),
        ("the server without viewers", f"{spent['0']:.1f} % of a core", ""),
        ("with one tab", f"{spent['1']:.1f} %", ""),
        ("with five tabs", f"{spent['5']:.1f} %", ""),
        ("a tab of five", f"{result['percent_per_tab']:.2f} % of a core", "5 %"),
        ("`cronoq top`", f"{result['percent_of_top']:.2f} % of a core", "3 %"),
        ("first paint of a fresh tab", f"{result['first_paint_s']:.2f} s", "1 s"),
        ("tasks on the screen", f"{result['list_shown_s']:.2f} s", ""),
    ]
    return f"{_table(rows)}\n\n{_origin(result)}"


def _faults() -> str:
    result = _load("faults")
    rows: list[tuple[object, ...]] = [
        (
            "fault",
            "store",
            "times",
            "tasks acknowledged",
            "occurrences",
            "leaderships",
            "silence, s: median / longest",
        )
    ]
    for row in result["rows"]:
        silence = f"{row['silence_median_s']:.1f} / {row['silence_longest_s']:.1f}"
        name, tasks = row["fault"].replace("-", " "), _grouped(row["tasks"])
        rows.append(
            (
                name,
                NAMES[row["store"]],
                row["strikes"],
                tasks,
                row["occurrences"],
                row["terms"],
                silence,
            )
        )
    tasks = _grouped(sum(row["tasks"] for row in result["rows"]))
    strikes = sum(row["strikes"] for row in result["rows"])
    note = f"{strikes} strikes, {tasks} acknowledged tasks: none lost, none ended or begun twice."
    return f"{_table(rows)}\n\n{note}\n\n{_origin(result)}"


def _shards() -> str:
    result = _load("shards")
    rows: list[tuple[object, ...]] = [
        (
            "store",
            "troubles",
            "tasks acknowledged",
            "answers over all shards",
            "undisturbed, ms: p50 / p99",
            "others in trouble, ms: p50 / p99",
        )
    ]
    notes = []
    for store, of in result["stores"].items():
        for row in of["rows"]:
            quiet, others = row["undisturbed_ms"], row["others_in_trouble_ms"]
            rows.append(
                (
                    NAMES[store],
                    sum(row["troubles"].values()),
                    _grouped(row["acknowledged"]),
                    _grouped(row["answers_over_all"]),
                    f"{quiet['p50']:.0f} / {quiet['p99']:.0f}",
                    f"{others['p50']:.0f} / {others['p99']:.0f}",
                )
            )
        verdict = of["verdict"]
        notes.append(
            f"{NAMES[store]}, {verdict['runs']} runs of {of['minutes']:g} minutes: the middle p99 "
            f"is {verdict['others_in_trouble_p99_ms']:.0f} ms, at most "
            f"{verdict['at_most_ms']:.0f} ms. "
            + _origin(of | {name: result[name] for name in ("python", "cpu_count")})
        )
    return "\n\n".join([_table(rows), *notes])


def _sharding() -> str:
    if not (RESULTS / f"{sharding.NAME}.json").exists():
        return "Nobody has measured it yet."
    result = _load(sharding.NAME)
    rows: list[tuple[object, ...]] = [
        ("who serves", "store", "tasks/s", "to one server", "servers' µs for a task")
    ]
    for store, ways in result["throughput"].items():
        for way, found in ways.items():
            rate, spent = _grouped(found["tasks_per_s"]), found["servers_us_per_task"]
            rows.append((way, NAMES[store], rate, f"{found['to_one_server']:.2f}", spent))
    counts = sorted({row["shards"] for row in result["reads"]})
    reads: list[tuple[object, ...]] = [("a call, ms: p50 / processor time of all servers", *counts)]
    for name in sharding.READS:
        cells = (
            f"{row['p50_ms']:.1f} / {row['asked_ms_per_call'] + row['others_ms_per_call']:.1f}"
            for row in result["reads"]
            if row["read"] == name
        )
        reads.append((name, *cells))
    modelled: list[tuple[object, ...]] = [
        ("modelled, a core for each shard's server", *counts),
        (
            "share of a core for reads of all",
            *(f"{r['share_for_reads']:.3f}" for r in result["model"]),
        ),
    ]
    for value, name in (
        ("tasks_per_s_right_server", "tasks/s, callers go to their shard"),
        ("tasks_per_s_any_server", "tasks/s, callers go to any server"),
    ):
        modelled.append((name, *(_grouped(row[value]) for row in result["model"])))
    note = f"{_grouped(result['tasks'])} tasks in each of {result['rounds']} rounds, medians."
    return "\n\n".join(map(_table, (rows, reads, modelled))) + f"\n\n{note} {_origin(result)}"


def _failover() -> str:
    result = _load("failover")
    rows: list[tuple[object, ...]] = [
        (
            "the leader was",
            "store",
            "next one ready, s",
            "submit acknowledged, s",
            "quietest round",
            "longest",
            "at most",
        )
    ]
    for store, ways in result["stores"].items():
        for how, way in ways.items():
            at_most = {"stopped": "ready: 1", "killed": "acknowledged: 2"}[how]
            submits = sorted(row["submit_s"] for row in way["rounds"])
            seconds = (way["ready_median_s"], way["submit_median_s"], submits[0], submits[-1])
            rows.append((how, NAMES[store], *(f"{figure:.2f}" for figure in seconds), at_most))
    pending, finished = _grouped(result["pending"]), _grouped(result["finished"])
    rounds = len(next(iter(result["stores"].values()))["killed"]["rounds"])
    note = (
        f"Medians of {rounds} rounds; {pending} tasks pending, {finished} finished within the "
        "hour. What it takes is a dozen short steps in turn in three processes: on a busy machine "
        "each of them waits for its turn, so look at the load average."
    )
    return f"{_table(rows)}\n\n{note}\n\n{_origin(result)}"


def _peers() -> str:
    if not (RESULTS / "peers.json").exists():
        return "Nobody has measured it yet."
    result = _load("peers")
    brokers = "; ".join(result["brokers"].values())
    rounds = f"medians of {result['rounds']} rounds" if result["rounds"] > 1 else "one round"
    parts = [
        _table(peers.rows(result)),
        f"Tasks/s; starts p50 / p99: {rounds}. {brokers}. {_origin(result)}",
        *(f"{name} could not be measured: {error}" for name, error in peers.failed(result)),
        _table(peers.how(result)),
    ]
    tried = peers.settings(result)
    if len(tried) > 1:
        parts += ["What settings of workers do, tried once before the rounds:", _table(tried)]
    return "\n\n".join(parts)


TABLES = {
    "e2e": _e2e,
    "engine": _engine,
    "idle": _idle,
    "console": _console,
    "placement": _placement,
    "sweep": _sweep,
    "backlog": _backlog,
    "flat": _flat,
    "limited": _limited,
    "recovery": _recovery,
    "churn": _churn,
    "failover": _failover,
    "faults": _faults,
    "shards": _shards,
    "sharding": _sharding,
    "peers": _peers,
}


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
