"""What is shown of a comparison: the tables of the documentation, and the picture."""

from __future__ import annotations

from collections.abc import Sequence
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
    if "peers" not in result:
        return [
            ("peer", "workers", "tasks/s"),
            *(
                (name, text, str(rate))
                for name, rates in result["settings"].items()
                for text, rate in rates.items()
            ),
        ]
    head = ("peer", *(title for title, _ in COLUMNS), "start idle, ms", "start at half load, ms")
    return [
        (*head, "memory, MB", "CPU s per 1 000"),
        *(
            (
                peer["title"],
                *(grouped(peer[name]) if name in peer else "–" for _, name in COLUMNS),
                *(_latency(peer, name) for name in ("start_idle", "start_half_load")),
                grouped(peer["memory_mb"]),
                f"{peer['cpu_s_per_1000']:.3f}",
            )
            for peer in measured(result)
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
                ", ".join(f"{name} {number}" for name, number in peer["versions"].items()),
                *(peer[name] for name in ("workers", "bulk", "keeps", "durable")),
                peer["mix"] or "–",
            )
            for peer in measured(result)
        ),
    ]


def table(lines: Sequence[Sequence[str]]) -> str:
    """Rows as Markdown."""
    cells = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([cells[0], "| --- " * len(lines[0]) + "|", *cells[1:]])


def draw(result: Result) -> None:
    """Draws end-to-end rates; a tuning has no picture."""
    if "peers" not in result:
        return
    peers = measured(result)
    bars = {
        title: [float(peer[name]) for peer in peers] for title, name in (COLUMNS[0], COLUMNS[1])
    }
    names = [peer["title"] for peer in peers]
    path = RESULTS / "peers.png"
    picture.draw_bars("The same jobs through job systems", "tasks/s", names, bars, path)
