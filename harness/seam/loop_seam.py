"""The asyncio loop at the seam: its select is a wait, and before it blocks for long it says what its tasks await.

The loop first selects for a short while; only if nothing comes does it write the dump (tasks, pending socket calls, the
next timer) and block for the rest. A busy loop thus never pays for a dump; one that is woken again and again soon after
its dumps, as by an engine whose steps take a little longer than that, waits longer before the next.
"""

from __future__ import annotations

import asyncio
import functools
import json
import selectors
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from harness.clock import SECOND, now
from harness.seam import site as seams
from harness.seam.site import Seam
from harness.seam.zmq_seam import sockets

IDLE_SECONDS = 0.008
"""How long a loop may sleep before it counts as idle and writes its dump."""

PATIENT_SECONDS = 0.06
"""The same for a loop whose last dumps have been in vain."""

VAIN, VAIN_SECONDS = 3, 0.015
"""So many dumps, one after the other, and a dump was in vain if the loop was woken so soon after it."""


_DEEPEST = 32
_CODES = ("cr_code", "ag_code", "gi_code")
_AWAITED = ("cr_await", "ag_await", "gi_yieldfrom")


def describe(loop: Any) -> dict[str, Any]:
    """What the loop's tasks await, which socket calls are pending, when its next timer is due (seconds, loop time)."""
    tasks = []
    pending = dict(sockets.pending.items())
    timers = {id(future): handle for handle in loop._scheduled for future in handle._args or () if future is not None}
    for task in asyncio.all_tasks(loop):
        awaits = _awaited(getattr(task, "_fut_waiter", None), pending, timers)
        tasks.append({"name": task.get_name(), "in": list(_calls(task.get_coro())), "awaits": awaits})
    tasks.sort(key=lambda entry: str(entry["name"]))
    due = [handle.when() for handle in loop._scheduled if not handle.cancelled()]
    return {
        "tasks": tasks,
        "pending": sorted(name for future, name in pending.items() if not future.done()),
        "next_timer": min(due, default=None),
        "loop_time": loop.time(),
    }


def _calls(coroutine: Any) -> Iterator[str]:
    """The coroutines that a task is in, the innermost last."""
    for _ in range(_DEEPEST):
        code = next((found for name in _CODES if (found := getattr(coroutine, name, None)) is not None), None)
        if code is not None:
            yield code.co_qualname
        coroutine = next((found for name in _AWAITED if (found := getattr(coroutine, name, None)) is not None), None)
        if coroutine is None:
            return


def _awaited(future: Any, pending: Mapping[Any, str], timers: Mapping[int, Any]) -> str:
    """What has to come so that the future of a task is set: a frame, the end of a task, a time, or some task's deed."""
    if future is None:
        return "nothing"
    if future in pending:
        return pending[future]
    if isinstance(future, asyncio.Task):
        return f"task {future.get_name()}"
    if id(future) in timers:
        return "a timer"
    children = [child.get_name() for child in getattr(future, "_children", ()) if isinstance(child, asyncio.Task)]
    return f"tasks {', '.join(children)}" if children else "a future"


def _select(original: Callable[..., Any]) -> Callable[..., Any]:
    vain = 0

    @functools.wraps(original)
    def call(self: Any, timeout: float | None = None) -> Any:
        nonlocal vain
        seam = seams.active()
        loop = asyncio._get_running_loop() if seam is not None else None
        if seam is None or loop is None or getattr(loop, "_selector", None) is not self:
            return original(self, timeout)
        patience = IDLE_SECONDS if vain < VAIN else PATIENT_SECONDS
        if timeout is not None and timeout <= patience:
            return original(self, timeout)
        ready = original(self, patience)
        if ready:
            return ready
        rest = None if timeout is None else max(0.0, timeout - patience)
        began = now()
        ready = _idle(seam, loop, lambda: original(self, rest), rest)
        vain = vain + 1 if now() - began < VAIN_SECONDS * SECOND else 0
        return ready

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _idle(seam: Seam, loop: Any, block: Callable[[], Any], rest: float | None) -> Any:
    state = describe(loop)
    seam.recorder.dump(json.dumps(state, separators=(",", ":")).encode())
    text = "|".join(dict.fromkeys(state["pending"]))
    gives_up = -1 if rest is None else now() + int(rest * 1e9)
    seam.recorder.wait(now(), "loop.select", gives_up=gives_up, text=text)
    try:
        return block()
    finally:
        seam.runs()


def install() -> None:
    """Patches the selectors that asyncio uses, once per process; dormant until a seam is active."""
    for kind in {selectors.DefaultSelector, selectors.EpollSelector, selectors.PollSelector, selectors.SelectSelector}:
        if "select" in kind.__dict__ and not hasattr(kind.select, "__nowedge_original__"):
            setattr(kind, "select", _select(kind.select))  # noqa: B010
