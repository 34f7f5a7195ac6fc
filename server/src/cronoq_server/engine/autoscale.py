"""How many slots a pool wants: a pure signal from its load, sampled at an interval.

Demand is the largest of three: what arrives (rate x service time / target utilization), what has
piled up (backlog x service time / drain time), and what is reserved (fixed starts that will be
running or due within the drain time). It is bounded by the pool's min and max, moves by at most a
step per sample, and goes down only to the highest demand of the stabilization window and not
within the cooldown after a rise; but when there is no demand at all, the window and the cooldown
don't hold it up. Demand of less than a hundredth of a slot is none.

All figures are whole: rates in thousandths per second, demand in thousandths of a slot.
"""

from __future__ import annotations

from collections import deque

from cronoq_server.engine.model import SECOND, AutoscaleSettings, Duration, Instant

MILLI = 1000
"""Rates and demand are counted in thousandths."""

NONE_BELOW = 10
"""Demand under this many thousandths of a slot is none."""

_RATE_WINDOW: Duration = 10 * SECOND
"""The arrival rate forgets with this time constant."""


class Autoscaler:
    """The signal of one pool.

    Attributes:
        desired: Slots wanted now.
    """

    __slots__ = (
        "_arrived",
        "_max",
        "_raised_at",
        "_rate",
        "_sampled_at",
        "_settings",
        "_window",
        "desired",
    )

    def __init__(self, settings: AutoscaleSettings, most: int | None, now: Instant) -> None:
        """Starts at the pool's minimum; `now` is a mono instant."""
        self._settings = settings
        self._max = most
        self._sampled_at = now
        self._arrived = 0
        self._rate = 0
        self._raised_at = now - settings.cooldown
        self._window: deque[tuple[Instant, int]] = deque()
        self.desired = settings.min

    def due_at(self) -> Instant:
        """When the next sample may be taken (mono)."""
        return self._sampled_at + self._settings.interval

    @property
    def is_quiet(self) -> bool:
        """Whether samples would change nothing as long as nothing arrives."""
        return not self._rate and self.desired == self._settings.min

    def sample(
        self, arrived: int, backlog: int, service: Duration, reserved: int, now: Instant
    ) -> bool:
        """Looks at the load; returns whether `desired` has changed.

        Args:
            arrived: Tasks that have arrived so far, ever.
            backlog: Tasks that are ready and wait.
            service: Mean run time, nanoseconds.
            reserved: Fixed starts that count within the drain time.
            now: Mono instant, at least one interval after the last sample.
        """
        self._learn_rate(arrived, now)
        demand = self._demand(backlog, service, reserved)
        wanted = self._bounded(0 if demand < NONE_BELOW else -(-demand // MILLI))
        self._remember(wanted, now)
        before = self.desired
        self.desired = self._step(wanted, demand < NONE_BELOW, now)
        if self.desired > before:
            self._raised_at = now
        return self.desired != before

    def _learn_rate(self, arrived: int, now: Instant) -> None:
        elapsed = max(1, now - self._sampled_at)
        current = (arrived - self._arrived) * MILLI * SECOND // elapsed
        weight = min(elapsed, _RATE_WINDOW)
        # Rounded toward the new value, so that the rate of a pool at rest does reach zero.
        change = (current - self._rate) * weight
        self._rate += change // _RATE_WINDOW if change < 0 else -(-change // _RATE_WINDOW)
        self._arrived = arrived
        self._sampled_at = now

    def _demand(self, backlog: int, service: Duration, reserved: int) -> int:
        """Thousandths of a slot."""
        settings = self._settings
        flow = int(self._rate * service / SECOND / settings.target_utilization)
        drain = backlog * service * MILLI // max(1, settings.drain_time)
        if backlog:
            drain = max(drain, NONE_BELOW)
        return max(flow, drain, reserved * MILLI)

    def _bounded(self, slots: int) -> int:
        slots = max(slots, self._settings.min)
        return slots if self._max is None else min(slots, self._max)

    def _remember(self, wanted: int, now: Instant) -> None:
        """Keeps the highest wants of the window, falling from the oldest on."""
        window = self._window
        while window and window[-1][1] <= wanted:
            window.pop()
        window.append((now, wanted))
        horizon = now - self._settings.stabilization_window
        while window[0][0] < horizon:
            window.popleft()

    def _step(self, wanted: int, idle: bool, now: Instant) -> int:
        settings = self._settings
        desired = self.desired
        if wanted >= desired:
            return min(wanted, desired + settings.max_step_up)
        if idle:
            return max(wanted, desired - settings.max_step_down)
        if now - self._raised_at < settings.cooldown:
            return desired
        return min(desired, max(self._window[0][1], desired - settings.max_step_down))
