"""The command `top`: how the queue goes, live in a terminal."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Annotated, ClassVar

import typer
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Footer, Sparkline, Static

from cronoq.client import Client
from cronoq.errors import CronoqError
from cronoq.operations import Snapshot, WorkerInfo
from cronoq.spec import TaskFilter, TaskStatus
from cronoq.views import TaskInfo

from .app import Session, app, session
from .operating import POOL_HEAD, pool_rows

KEPT = 120
FAILURES = 12
EVERY_S = 1.0
WORKERS_EVERY = 5
"""Workers come and go seldom: they are asked for with every so many looks only."""

FAILED = TaskFilter(statuses=[TaskStatus.FAILED, TaskStatus.DEAD_LETTERED])


class Rates:
    """How fast counters grow, and how fast they have been growing.

    Attributes:
        done: Tasks that succeeded, per second, oldest first.
        failed: Tasks that failed for good, per second.
    """

    def __init__(self) -> None:
        self.done: deque[float] = deque([0.0] * KEPT, maxlen=KEPT)
        self.failed: deque[float] = deque([0.0] * KEPT, maxlen=KEPT)
        self._last: tuple[float, int, int] | None = None

    def take(self, view: Snapshot, now: float) -> None:
        """Takes a snapshot in; counters that fell belong to a new leader."""
        totals = view.totals
        counts = (now, totals.succeeded, totals.failed + totals.dead_lettered)
        if self._last is not None and counts[1] >= self._last[1]:
            passed = max(0.001, now - self._last[0])
            self.done.append((counts[1] - self._last[1]) / passed)
            self.failed.append(max(0, counts[2] - self._last[2]) / passed)
        self._last = counts


class Failures:
    """The latest failures, looked for when there are new ones and never further than a page.

    A listing of what hardly ever happens makes the server look at everything else.
    """

    def __init__(self) -> None:
        self._known: dict[int, TaskInfo] = {}
        self._count = 0

    async def look(self, client: Client, view: Snapshot) -> list[TaskInfo]:
        """Returns the latest ones, newest first."""
        count = view.totals.failed + view.totals.dead_lettered
        if count != self._count:
            pages = client.list(FAILED, page_size=FAILURES, newest_first=True)
            self._known |= {task.id: task for task in await pages.first()}
            self._count = count
        newest = sorted(self._known, reverse=True)[:FAILURES]
        self._known = {task_id: self._known[task_id] for task_id in newest}
        return list(self._known.values())


class Top(App[int]):
    """The screen."""

    TITLE = "cronoq"
    CSS = """
    #line { height: 1; padding: 0 1; background: $primary; color: $text; }
    #charts { height: 5; }
    #charts Vertical { width: 1fr; padding: 0 1; }
    Sparkline { height: 3; }
    #pools { height: auto; max-height: 40%; }
    #workers { height: 1fr; }
    #failures { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("p", "pause", "Pause")]

    def __init__(self, here: Session) -> None:
        super().__init__()
        self._here = here
        self._rates = Rates()
        self._failures = Failures()
        self._sessions: list[WorkerInfo] = []
        self._looks = 0
        self._paused = False
        self._client: Client | None = None

    def compose(self) -> ComposeResult:
        """Lays the screen out."""
        yield Static("connecting…", id="line", markup=False)
        with Horizontal(id="charts"):
            with Vertical():
                yield Static("succeeding", id="done", markup=False)
                yield Sparkline(list(self._rates.done), id="done-line")
            with Vertical():
                yield Static("failing for good", id="failed", markup=False)
                yield Sparkline(list(self._rates.failed), id="failed-line")
        for name, head in (
            ("pools", POOL_HEAD),
            ("workers", ("worker", "pool", "busy", "slots", "sdk")),
            ("failures", ("failed lately", "kind", "pool", "message")),
        ):
            table: DataTable[str] = DataTable(id=name, show_cursor=False, zebra_stripes=True)
            table.add_columns(*head)
            yield table
        yield Footer()

    async def on_mount(self) -> None:
        """Begins to look every second."""
        self._client = self._here.target.client(deadline=self._here.deadline)
        self.set_interval(EVERY_S, self._look)
        self.call_later(self._look)

    async def on_unmount(self) -> None:
        """Ends the connection."""
        if self._client is not None:
            await self._client.close()

    def action_pause(self) -> None:
        """Stops and goes on looking."""
        self._paused = not self._paused

    async def _look(self) -> None:
        client = self._client
        if client is None or self._paused:
            return
        try:
            view = await client.snapshot()
            if self._looks % WORKERS_EVERY == 0:
                self._sessions = list(await client.workers())
            failures = await self._failures.look(client, view)
        except CronoqError as error:
            self._say(f"{self._here.target.endpoint}: {error}")
            return
        self._looks += 1
        self._rates.take(view, monotonic())
        self._show(view)
        self._fill(
            "workers",
            [(w.name, w.pool, str(w.busy), str(w.slots), w.sdk) for w in self._sessions[:200]],
        )
        self._fill("failures", [(str(t.id), t.kind, t.pool, t.message) for t in failures])

    def _show(self, view: Snapshot) -> None:
        missing = f"  missing: {', '.join(view.unavailable_shards)}" * bool(view.unavailable_shards)
        self._say(
            f"{self._here.target.endpoint}  {view.pending} pending  {view.running} running  "
            f"{view.workers_connected} workers  {view.totals.retries} retries{missing}"
        )
        for name, values, word in (
            ("done", self._rates.done, "succeeding"),
            ("failed", self._rates.failed, "failing for good"),
        ):
            self.query_one(f"#{name}", Static).update(f"{word} {values[-1]:.1f}/s")
            self.query_one(f"#{name}-line", Sparkline).data = list(values)
        self._fill("pools", [tuple(map(str, row)) for row in pool_rows(view.pools)])

    def _fill(self, name: str, rows: list[tuple[str, ...]]) -> None:
        from rich.text import Text

        table = self.query_one(f"#{name}", DataTable)
        table.clear()
        table.add_rows([tuple(Text(cell) for cell in row) for row in rows])

    def _say(self, text: str) -> None:
        self.query_one("#line", Static).update(text)


@app.command()
def top(
    context: typer.Context,
    once: Annotated[bool, typer.Option(help="Print one snapshot and end.")] = False,
) -> None:
    """Watch pools, rates, workers and failures live; q quits."""
    here = session(context)
    if once or here.output.as_json:
        view = here.run(lambda client: client.snapshot())
        if here.output.as_json:
            here.output.value(view)
        else:
            here.output.table(POOL_HEAD, pool_rows(view.pools))
        return
    Top(here).run()
