"""Progress on standard error while commands work: one line that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status
from rich.text import Text

from harness.report.terminal import plural
from harness.search.canary import RELAY, Canary
from harness.search.hunt import HuntOptions
from harness.search.score import Score
from harness.trial import Trial

_EVERY = 10.0


class Line:
    """One line of progress. A context manager: the line is gone at the end."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = Status("", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    @property
    def moves(self) -> bool:
        """Whether there is a terminal to show a line that changes."""
        return self._status is not None

    def show(self, text: str) -> None:
        """Changes the line; nothing where it cannot be changed."""
        if self._status is not None:
            self._status.update(Text(text))

    def note(self, text: str) -> None:
        """Writes a line that stays."""
        self._console.print(Text(text), soft_wrap=True)


class HuntProgress:
    """Shows a hunt: see `harness.search.hunt.Watcher`."""

    def __init__(self, line: Line, options: HuntOptions, relay: str) -> None:
        self._line = line
        self._options = options
        self._relay = relay
        self._noted = 0.0

    def canary(self, plans: int, result: Canary | None) -> None:
        if result is None:
            self._line.show(f"canary     {RELAY} relay: {plural(plans, 'plan')}")
        elif result.found:
            words = f"wedge proved after {plural(plans, 'plan')}"
            self._line.note(f"canary     {RELAY} relay: {words:<48}ok")
        else:
            self._line.note(f"canary     {RELAY} relay: no wedge proved in {plural(plans, 'plan')}   BLIND")

    def hunting(self, score: Score) -> None:
        text = self._words(score)
        self._line.show(text)
        if not self._line.moves and score.seconds - self._noted >= _EVERY:
            self._noted = score.seconds
            self._line.note(text)

    def confirming(self, trial: Trial, met: int) -> None:
        word, digest = trial.verdict.word, trial.verdict.digest[:4]
        self._line.show(f"confirming {word} {digest}, met {plural(met, 'time')}: repeating and shrinking")
        if not self._line.moves:
            self._line.note(f"confirming {word} {digest}")

    def _words(self, score: Score) -> str:
        low, high = self._options.tp
        size = f"tp={low}" if low == high else f"tp={low}..{high}"
        left = ""
        if self._options.seconds is not None:
            rest = max(0, int(self._options.seconds - score.seconds))
            left = f"   {rest // 60}:{rest % 60:02d} left"
        elif self._options.plans is not None:
            left = f"   {max(0, self._options.plans - score.plans)} left"
        rate = f"{plural(score.plans, 'plan')}  {score.rate:.1f}/s  {plural(self._options.lanes, 'lane')}"
        return f"hunting    {size} {self._relay}   {rate}   found {len(score.failures)}{left}"


def cells(line: Line, phase: str, noun: str = "cells") -> Callable[[int, int], None]:
    """Shows how many cells, or pairs, of an enumeration are settled: a line that moves, or one for each tenth."""
    noted = 0

    def show(settled: int, total: int) -> None:
        nonlocal noted
        line.show(f"{phase:<11}{settled} of {total} {noun}")
        if not line.moves and settled * 10 // total > noted:
            noted = settled * 10 // total
            line.note(f"{phase:<11}{settled} of {total} {noun}")

    return show
