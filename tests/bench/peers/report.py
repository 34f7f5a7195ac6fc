"""What is shown of a comparison: the tables of the documentation, and the picture."""

from __future__ import annotations

from typing import Any

from tests.bench import picture
from tests.bench.environment import RESULTS

Result = dict[str, Any]
COLUMNS = (
    ("end to end, bulk", "through_bulk_per_s"),
    ("end to end, single", "through_single_per_s"),
    ("submit, bulk", "submit_bulk_per_s"),
    ("submit, single", "submit_single_per_s"),
    ("drain", "drain_per_s"),
    ("limits, priorities", "through_mixed_per_s"),
)


def measured(result: Result) -> list[Result]:
    """The peers that have figures, the quickest first."""
    there = [peer for peer in result["peers"] if "error" not in peer]
    return sorted(there, key=lambda peer: -float(peer["through_bulk_per_s"]))


def grouped(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,.0f}".replace(",", " ")


def rows(result: Result) -> list[tuple[str, ...]]:
    """One row for each peer, with a head."""
    head = ("peer", *(title for title, _ in COLUMNS), "start idle, ms", "start at half load, ms")
    return [
        (*head, "memory, MB", "CPU s per 1 000", "cronoq is × as fast"),
        *(
            (
                peer["title"],
                *(grouped(peer[name]) if name in peer else "–" for _, name in COLUMNS),
                *(_latency(peer, name) for name in ("start_idle", "start_half_load")),
                grouped(peer["memory_mb"]),
                f"{peer['cpu_s_per_1000']:.3f}",
                _factor(peer, result),
            )
            for peer in measured(result)
        ),
    ]


def _factor(peer: Result, result: Result) -> str:
    """How much quicker ours is end to end: on PostgreSQL beside PostgreSQL, else with SQLite."""
    store = "postgres" if "postgres" in peer["broker"] else "sqlite"
    ours = [each for each in measured(result) if each["name"] == f"cronoq-{store}"]
    if not ours or peer["broker"].startswith("ours:"):
        return "–"
    return f"{ours[0]['through_bulk_per_s'] / peer['through_bulk_per_s']:.1f}"


def settings(result: Result) -> list[tuple[str, str]]:
    """What each setting of workers did end to end, with a head."""
    tried = ((peer["title"], peer["settings"]) for peer in measured(result))
    return [
        ("peer", "workers: end to end, tasks/s"),
        *(
            (title, "; ".join(f"{text}: {grouped(rate)}" for text, rate in rates.items()))
            for title, rates in tried
            if rates
        ),
    ]


def _latency(peer: Result, name: str) -> str:
    return f"{peer[f'{name}_p50_ms']:.1f} / {peer[f'{name}_p99_ms']:.1f}"


def how(result: Result) -> list[tuple[str, ...]]:
    """How each peer was run, with a head."""
    head = (
        "peer",
        "versions",
        "workers",
        "bulk call",
        "stored",
        "durable by",
        "limits, priorities",
    )
    return [
        head,
        *(
            (
                peer["title"],
                ", ".join(f"{name} {number}" for name, number in peer["versions"].items()) or "–",
                *(peer[name] for name in ("workers", "bulk", "keeps", "durable")),
                peer["mix"] or "–",
            )
            for peer in measured(result)
        ),
    ]


def failed(result: Result) -> list[tuple[str, str]]:
    """Titles and errors of peers without figures."""
    there = (peer for peer in result["peers"] if "error" in peer)
    return [(peer["title"], " ".join(peer["error"].split())) for peer in there]


def draw(result: Result) -> None:
    """Draws end-to-end rates."""
    peers = measured(result)
    bars = {
        title: [float(peer[name]) for peer in peers] for title, name in (COLUMNS[0], COLUMNS[1])
    }
    names = [peer["title"] for peer in peers]
    path = RESULTS / "peers.png"
    picture.draw_bars("The same tasks through task systems", "tasks/s", names, bars, path)
