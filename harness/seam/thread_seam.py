"""Waits for other threads at the seam: conditions and events, joins, queues, and the locks of the engine's own code.

Methods of classes are patched. A lock is made by a function of C, so its maker is replaced instead, and only for code
that is neither Python's own nor a library's, whose locks are held for an instant. A wait that a recorded wait makes
inside of itself is part of that one.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

from harness.seam import site as seams

_LIBRARIES = frozenset({"torch", "numpy", "zmq", "msgspec", "harness", "hypothesis", "pytest", "_pytest"})
_MAKERS = ("Lock", "RLock")


def _foreign(module: str) -> bool:
    """Whether code of that module belongs to Python, to a library or to the harness."""
    package = module.partition(".")[0]
    return package in sys.stdlib_module_names or package in _LIBRARIES


_THROUGH = {"Queue.put": "room in a queue", "Queue.get": "an entry in a queue", "Event.wait": "an event"}
"""What a wait is for, by the function of Python's that it goes through."""


def _what(what: str) -> str:
    """What this thread has come to wait for, with the function of the engine's own code that waits."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        if not _foreign(frame.f_globals.get("__name__", "?")):
            return f"{what} in {frame.f_code.co_qualname}"
        what = _THROUGH.get(frame.f_code.co_qualname, what)
        frame = frame.f_back
    return what


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: threading.Condition, timeout: float | None = None) -> Any:
        return seams.waiting("thread.wait", _ms(timeout), lambda: _what("a notice"), lambda: original(self, timeout))

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _join(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: threading.Thread, timeout: float | None = None) -> Any:
        return seams.waiting(
            "thread.join", _ms(timeout), lambda: f"the end of thread {self.name}", lambda: original(self, timeout)
        )

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


class ObservedQueue(queue.SimpleQueue[Any]):
    """`queue.SimpleQueue`, whose waits are recorded."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        try:
            return super().get(False)
        except queue.Empty:
            if not block:
                raise
        get = super().get
        return seams.waiting(
            "thread.get", _ms(timeout), lambda: _what("an entry in a queue"), lambda: get(True, timeout)
        )


class ObservedLock:
    """A lock whose waits are recorded, with the thread that holds it. ``inner`` is the lock itself."""

    __slots__ = ("__weakref__", "_holder", "inner")

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._holder = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As the lock itself."""
        taken = bool(self.inner.acquire(False))
        if not taken and blocking:
            holder = next((one.name for one in threading.enumerate() if one.ident == self._holder), "")
            by = f"a lock that thread {holder} holds" if holder else "a lock"
            limit = None if timeout < 0 else _ms(timeout)
            taken = bool(seams.waiting("thread.lock", limit, lambda: by, lambda: self.inner.acquire(True, timeout)))
        if taken:
            self._holder = threading.get_ident()
        return taken

    def release(self) -> None:
        """As the lock itself."""
        self.inner.release()

    def __enter__(self) -> bool:
        if self.inner.acquire(False):  # most are free
            self._holder = threading.get_ident()
            return True
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.inner.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _maker(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def make() -> Any:
        inner = original()
        return inner if _foreign(sys._getframe(1).f_globals.get("__name__", "?")) else ObservedLock(inner)

    make.__nowedge_original__ = original  # type: ignore[attr-defined]
    return make


def install() -> None:
    """Patches what threads wait in, once per process; dormant until a seam is active."""
    if hasattr(threading.Condition.wait, "__nowedge_original__"):
        return
    setattr(threading.Condition, "wait", _wait(threading.Condition.wait))  # noqa: B010
    setattr(threading.Thread, "join", _join(threading.Thread.join))  # noqa: B010
    setattr(queue, "SimpleQueue", ObservedQueue)  # noqa: B010
    for name in _MAKERS:
        setattr(threading, name, _maker(getattr(threading, name)))
