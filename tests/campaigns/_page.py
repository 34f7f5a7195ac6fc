"""Writes the tables of `docs/spec/faults-across-hosts.md` from the results of the campaigns.

A table stands between two marks; the rest of the page is left alone. Results and page come from
the same commit, so that no figure was ever typed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from tests.bench.environment import RESULTS, ROOT, quantile
from tests.bench.page import NAMES, Result
from tests.campaigns._hosts_faults import FAULTS

PAGE = ROOT / "docs" / "spec" / "faults-across-hosts.md"


def write() -> None:
    """Writes the page anew."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(ROOT), flush=True)


def render(page: str) -> str:
    """Returns the page with its tables written anew.

    Raises:
        ValueError: It has no place for one.
    """
    for name, table in TABLES.items():
        mark, end = f"<!-- results: {name} -->", "<!-- end of results -->"
        before, found, rest = page.partition(mark)
        _, ended, after = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{PAGE.name} has no place for the results of {name}")
        page = f"{before}{mark}\n\n{table()}\n\n{end}{after}"
    return page


def _load(name: str) -> Result:
    result: Result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def _table(rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]])


def _grouped(number: float) -> str:
    return f"{number:,.0f}".replace(",", " ")


def _commits(parts: Sequence[Result]) -> str:
    """Where and when the parts were played."""
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(part["commit"] for part in parts))
    loads = [part["load_average"] for part in parts]
    days = sorted({part["at"][:10] for part in parts})
    return (
        f"Commits {commits}; {len(parts)} sets of hosts, seeds "
        f"{', '.join(part['seed'] for part in parts)}; load average {min(loads)} to {max(loads)} "
        f"on two cores; {' and '.join(days)}."
    )


def _hosts() -> str:
    parts = [part for part in _load("hosts")["parts"] if part["hosts"] == "namespaces"]
    seconds: dict[tuple[str, str], list[float]] = {}
    sums: Counter[str] = Counter()
    for part in parts:
        sums["episodes"] += len(part["episodes"])
        for name in ("operations", "tasks", "acknowledged", "terms"):
            sums[name] += part[name]
        for episode in part["episodes"]:
            which = (part["store"], episode["fault"])
            seconds.setdefault(which, []).append(episode["recovered_s"])
    rows = [("fault", "store", "times", "calls go on after, s: median / longest")] + [
        (
            fault.name.replace("-", " "),
            NAMES[store],
            str(len(found)),
            f"{quantile(sorted(found), 0.5):.1f} / {max(found):.1f}",
        )
        for store in ("postgres", "sqlite")
        for fault in FAULTS
        if (found := seconds.get((store, fault.name)))
    ]
    told = (
        f"{sums['episodes']} episodes under {sums['terms']} leaderships, "
        f"{_grouped(sums['operations'])} operations on {_grouped(sums['tasks'])} tasks, "
        f"{_grouped(sums['acknowledged'])} of them acknowledged: none lost, no stale write "
        "accepted, every history explained."
    )
    return f"{_table(rows)}\n\n{told}\n\n{_commits(parts)}"


def _soak(name: str) -> str:
    result = _load(name)
    rows: list[tuple[object, ...]] = [
        (
            "process",
            "memory, MiB",
            "slope, MiB/h",
            "grown, MiB",
            "noise, MiB",
            "files, most: 1st / 2nd half",
        )
    ]
    for process, seen in result["growth"].items():
        files = f"{seen['files_before']} / {seen['files_after']}"
        figures = (seen["mib"], seen["mib_per_hour"], seen["grown_mib"], seen["noise_mib"])
        rows.append((process, *figures, files))
    after: dict[str, list[float | None]] = {}
    for struck in result["struck"]:
        after.setdefault(struck["fault"], []).append(struck["recovered_s"])
    faults: list[tuple[object, ...]] = [
        ("fault", "times", "p99 as before after, s: median / longest")
    ]
    faults += [(name.replace("-", " "), len(each), _times(each)) for name, each in after.items()]
    told = (
        f"{result['minutes']:g} minutes at {result['rate']:g} tasks/s, seed {result['seed']}: "
        f"{_grouped(result['tasks'])} tasks, {len(result['struck'])} faults, {result['terms']} "
        f"leaderships; none stuck, the longest took {result['longest_s']:.1f} s. "
        f"{_problems(result['problems'])}"
    )
    origin = (
        f"Commit `{result['commit']}`, CPython {result['python']}, {result['cpu_count']} cores, "
        f"load average {result['load_average']} as it began, {result['at'][:10]}."
    )
    return "\n\n".join((_table(rows), _table(faults), told, origin))


def _times(found: Sequence[float | None]) -> str:
    known = sorted(each for each in found if each is not None)
    never = len(found) - len(known)
    text = f"{quantile(known, 0.5):.1f} / {known[-1]:.1f}" if known else "–"
    return f"{text}; {never} not before the next fault" if never else text


def _problems(problems: Sequence[str]) -> str:
    if not problems:
        return "Everything stayed as it was."
    return f"What did not stay as it was, {len(problems)} in all: {'; '.join(problems)}."


TABLES: dict[str, Callable[[], str]] = {
    "hosts": _hosts,
    "soak": partial(_soak, "soak"),
}
