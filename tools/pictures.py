"""Decides what the pictures of the documentation show, and draws them as SVG.

They are text that is generated and compared like the other generated pages: no drawing program, no
script in the browser. The picture of a task's life is drawn from the engine's table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from cronoq_server.engine import lifecycle
from cronoq_server.engine.model import Status

INK, PAPER, FILL, ACCENT, QUIET = "#1d2733", "#ffffff", "#eef3f8", "#0f766e", "#5b6b7b"
LINE = 16  # from one line of text to the next
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
    ' font-family="system-ui, sans-serif" font-size="13" fill="{ink}">'
    '<title>{title}</title><defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4"'
    ' markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="{ink}"/>'
    '</marker></defs><rect width="{width}" height="{height}" rx="8" fill="{paper}"/>'
)


class Box(NamedTuple):
    """A rectangle with lines of text, the first in bold."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    is_quiet: bool = False


def svg(title: str, width: int, height: int, parts: Iterator[str]) -> str:
    """Return a whole picture, one element a line."""
    head = HEAD.format(width=width, height=height, title=escape(title), ink=INK, paper=PAPER)
    return "\n".join([head, *parts, "</svg>", ""])


def box(one: Box) -> Iterator[str]:
    """Draw a box."""
    style = f'fill="{PAPER if one.is_quiet else FILL}" stroke="{QUIET if one.is_quiet else ACCENT}"'
    yield (
        f'<rect x="{one.x}" y="{one.y}" width="{one.width}" height="{one.height}" rx="6" {style}/>'
    )
    top = one.y + one.height / 2 - LINE * (len(one.lines) - 1) / 2 + 4
    for number, line in enumerate(one.lines):
        weight = "600" if number == 0 else "400"
        yield text(one.x + one.width / 2, top + LINE * number, line, f'font-weight="{weight}"')


def text(x: float, y: float, words: str, style: str = "", anchor: str = "middle") -> str:
    """Write a line of text."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {style}>{escape(words)}</text>'


def arrow(
    x1: float, y1: float, x2: float, y2: float, words: str = "", lift: int = 6
) -> Iterator[str]:
    """Draw an arrow, with words above its middle."""
    yield (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{INK}"'
        ' stroke-width="1.3" marker-end="url(#tip)"/>'
    )
    if words:
        yield text((x1 + x2) / 2, (y1 + y2) / 2 - lift, words, f'fill="{QUIET}" font-size="12"')


def sequence(title: str, actors: Sequence[str], said: Sequence[tuple[int, int, str]]) -> str:
    """Return a picture of who says what to whom, from top to bottom.

    Args:
        title: What it is about.
        actors: Who there is, from left to right.
        said: From whom, to whom, what; to oneself is a note.
    """
    step, row = 190, 34
    width, height = step * len(actors), 70 + row * len(said)

    def parts() -> Iterator[str]:
        for index, name in enumerate(actors):
            x = step * index + step // 2
            yield from box(Box(x - 70, 12, 140, 30, (name,)))
            yield f'<line x1="{x}" y1="42" x2="{x}" y2="{height - 10}" stroke="{QUIET}"' + (
                ' stroke-dasharray="3 4"/>'
            )
        for number, (source, target, words) in enumerate(said):
            y, here, there = 76 + row * number, *(step * i + step // 2 for i in (source, target))
            if source == target:
                yield from box(Box(here - 85, y - 14, 170, 24, (words,), True))
            else:
                yield from arrow(here, y, there, y, words)

    return svg(title, width, height, parts())


def attempt() -> str:
    """Return the way of one task, from its submit to its result."""
    return sequence(
        "One task, from submit to result",
        ("client", "server", "store", "worker"),
        (
            (0, 1, "submit"),
            (1, 2, "commit: task, attempt 1"),
            (1, 0, "acknowledged"),
            (1, 3, "lease"),
            (3, 1, "heartbeat"),
            (3, 3, "the handler runs"),
            (3, 1, "heartbeat"),
            (3, 1, "report: succeeded"),
            (1, 2, "commit: end, output"),
            (1, 3, "receipt"),
            (1, 0, "result"),
        ),
    )


def failover() -> str:
    """Return what happens when a leader is gone, or seems to be."""
    return sequence(
        "A leader is cut off, and a standby takes over",
        ("worker", "leader", "store", "standby"),
        (
            (1, 0, "lease of attempt 1"),
            (3, 2, "may I lead? no"),
            (1, 1, "is cut off"),
            (3, 2, "may I lead? yes, epoch 2"),
            (2, 3, "recover what lives"),
            (0, 3, "connects again"),
            (3, 2, "commit: attempt 1 is used up"),
            (1, 2, "late write of epoch 1: refused"),
            (3, 0, "lease of attempt 2"),
        ),
    )


def overview() -> str:
    """Return what there is, and who talks to whom."""
    boxes = {
        "sdk": Box(15, 30, 215, 56, ("clients", "Python, Go, TypeScript, Rust")),
        "http": Box(15, 116, 215, 56, ("everything else", "HTTP and JSON, cronoq, console")),
        "leader": Box(320, 60, 220, 70, ("leader", "decides, writes, then answers")),
        "standby": Box(420, 170, 150, 50, ("standby", "waits for its turn"), True),
        "store": Box(320, 262, 220, 50, ("store", "SQLite file or PostgreSQL")),
        "pool1": Box(640, 30, 200, 56, ("workers of one pool", "any number, any host")),
        "pool2": Box(640, 116, 200, 56, ("workers of another pool", "with labels of their own")),
    }

    def parts() -> Iterator[str]:
        for one in boxes.values():
            yield from box(one)
        yield from arrow(230, 58, 320, 80, "gRPC", 10)
        yield from arrow(230, 144, 320, 112, "HTTP", 12)
        yield from arrow(540, 80, 640, 58, "leases", 12)
        yield from arrow(640, 144, 540, 112, "reports", 12)
        yield from arrow(370, 130, 370, 262)
        yield from arrow(495, 220, 495, 262)
        yield text(362, 200, "commits", f'fill="{QUIET}" font-size="12"', "end")

    return svg("Clients, servers, workers and a store", 855, 330, parts())


# Where the statuses stand that a task can leave; the rest are ends.
PLACES = {
    Status.BLOCKED: (20, 20),
    Status.SCHEDULED: (20, 200),
    Status.READY: (280, 110),
    Status.RUNNING: (520, 110),
    Status.RETRYING: (400, 250),
}
ENDS_X, BOX_WIDTH = 800, 180


def task_lifecycle() -> str:
    """Return the statuses and how they follow, drawn from the engine's table."""
    pairs = {(before, after) for (before, _), after in lifecycle.TRANSITIONS.items() if before}
    ends = [status for status in Status if status not in {before for before, _ in pairs}]
    if set(PLACES) | set(ends) != set(Status):
        raise LookupError("a status has no place in the picture")

    def words(status: Status) -> tuple[str, ...]:
        name = status.name.lower()
        if status is Status.RUNNING:
            return (name,)
        exits = [end.name.lower() for end in ends if (status, end) in pairs]
        halves = [exits[i : i + 2] for i in range(0, len(exits), 2)]
        return (name, *(("or: " if not n else "") + ", ".join(h) for n, h in enumerate(halves)))

    def parts() -> Iterator[str]:
        boxes = {
            status: Box(x, y, BOX_WIDTH, 28 + LINE * (len(words(status)) - 1), words(status))
            for status, (x, y) in PLACES.items()
        }
        for number, end in enumerate(ends):
            boxes[end] = Box(ENDS_X, 20 + 44 * number, 130, 30, (end.name.lower(),), True)
        for one in boxes.values():
            yield from box(one)
        for before, after in sorted(pairs):
            if after in PLACES or before is Status.RUNNING:
                aside = 8 if (after, before) in pairs else 0
                yield from arrow(*_between(boxes[before], boxes[after], aside))

    return svg("The life of a task", 950, 350, parts())


def _between(one: Box, other: Box, aside: int) -> tuple[float, float, float, float]:
    """From the border of a box to that of another, along the line through their middles.

    There and back are two lines, each `aside` of the middle.
    """
    (x1, y1), (x2, y2) = ((b.x + b.width / 2, b.y + b.height / 2) for b in (one, other))
    aside = aside if (x1, y1) < (x2, y2) else -aside
    out, into = _cut(one, x2 - x1, y2 - y1), _cut(other, x1 - x2, y1 - y2)
    if abs(y2 - y1) < abs(x2 - x1):
        return x1 + out[0], y1 + out[1] + aside, x2 + into[0], y2 + into[1] + aside
    return x1 + out[0] + aside, y1 + out[1], x2 + into[0] + aside, y2 + into[1]


def _cut(one: Box, dx: float, dy: float) -> tuple[float, float]:
    scale = min(
        one.width / 2 / abs(dx) if dx else float("inf"),
        one.height / 2 / abs(dy) if dy else float("inf"),
    )
    return dx * scale, dy * scale


PICTURES = {
    "docs/pictures/attempt.svg": attempt,
    "docs/pictures/failover.svg": failover,
    "docs/pictures/lifecycle.svg": task_lifecycle,
    "docs/pictures/overview.svg": overview,
}
