"""pyzmq at the seam: sockets and pollers, blocking and asyncio, each call a site ``LINK.CALL``.

Class attributes are patched, so that sockets made through any name of the library are seen. An asyncio socket works
through a shadow socket with NOBLOCK; what is recorded there is each attempt that succeeded, and which futures still
wait is kept for the loop dump. A socket's link is the name of the first endpoint that it binds or connects.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import zmq
import zmq.asyncio

from harness.seam import site as seams
from harness.seam.site import Seam


class Names(Protocol):
    """How a target names its links and frames."""

    def link_of(self, endpoint: str) -> str: ...

    def classify(self, link: str, direction: str, frames: Sequence[bytes]) -> Any: ...


class _Sockets:
    """What this process knows of its sockets, by the address of the C socket, which shadows share."""

    def __init__(self) -> None:
        self.links: dict[int, str] = {}
        self.names: Names | None = None
        self.rewrites: dict[str, str] = {}
        self.pending: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def reset(self, names: Names | None, rewrites: dict[str, str]) -> None:
        self.links.clear()
        self.names, self.rewrites = names, rewrites
        self.pending = weakref.WeakKeyDictionary()

    def link(self, socket: zmq.Socket[bytes]) -> str:
        return self.links.get(socket.underlying, "zmq")

    def kind(self, link: str, direction: str, message: Any) -> tuple[str, int]:
        """The kind and the number of one message (bytes, a Frame, or a list of them)."""
        if self.names is None:
            return "?", -1
        parts = message if isinstance(message, list | tuple) else [message]
        frames = [part.bytes if isinstance(part, zmq.Frame) else bytes(part) for part in parts]
        found = self.names.classify(link, direction, frames)
        return found.kind, -1 if found.number is None else found.number


sockets = _Sockets()


class _Depth(threading.local):
    inside: bool = False


_depth = _Depth()


def _outermost(name: str, wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Calls ``wrapper`` only where a seam is active and no wrapped call of this thread is already under way."""

    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seam = seams.active()
        if seam is None or _depth.inside:
            return original(self, *args, **kwargs)
        _depth.inside = True
        try:
            return wrapper(seam, original, self, *args, **kwargs)
        finally:
            _depth.inside = False

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _learn(socket: Any, endpoint: str) -> str:
    link = sockets.links.get(socket.underlying)
    if link is None:
        link = sockets.names.link_of(endpoint) if sockets.names is not None else "zmq"
        sockets.links[socket.underlying] = link
    return link


def _text(endpoint: Any) -> str:
    return endpoint.decode() if isinstance(endpoint, bytes) else str(endpoint)


def _bind(seam: Seam, original: Any, self: Any, addr: Any) -> Any:
    link = _learn(self, _text(addr))
    seam.before(f"{link}.bind")
    result = original(self, addr)
    seam.after(f"{link}.bind", progress=False)
    return result


def _connect(seam: Seam, original: Any, self: Any, addr: Any) -> Any:
    endpoint = _text(addr)
    link = _learn(self, endpoint)
    seam.before(f"{link}.connect")
    result = original(self, sockets.rewrites.get(endpoint, addr))
    seam.after(f"{link}.connect", progress=False)
    return result


def _set(seam: Seam, original: Any, self: Any, option: Any, *args: Any, **kwargs: Any) -> Any:
    if option not in (zmq.SUBSCRIBE, zmq.UNSUBSCRIBE):
        return original(self, option, *args, **kwargs)
    link, call = sockets.link(self), "subscribe" if option == zmq.SUBSCRIBE else "unsubscribe"
    seam.before(f"{link}.{call}")
    result = original(self, option, *args, **kwargs)
    seam.after(f"{link}.{call}", progress=False)
    return result


def _close(seam: Seam, original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    if self.closed:
        return original(self, *args, **kwargs)
    link = sockets.link(self)
    underlying = self.underlying
    seam.before(f"{link}.close")
    result = original(self, *args, **kwargs)
    sockets.links.pop(underlying, None)
    seam.after(f"{link}.close", progress=False)
    return result


def _send(seam: Seam, original: Any, self: Any, message: Any, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
    link = sockets.link(self)
    kind, number = sockets.kind(link, "send", message)
    where = f"{link}.send"
    size = _size(message)
    seam.before(where, kind, number, size)
    blocking = not flags & zmq.NOBLOCK
    if blocking:
        seam.blocks(where, kind, number, _limit(self, zmq.SNDTIMEO))
    try:
        result = original(self, message, flags, *args, **kwargs)
    except zmq.Again:
        raise
    except BaseException as error:
        seam.failed(where, kind, number, error)
        raise
    finally:
        if blocking:
            seam.runs()
    seam.after(where, kind, number, size)
    return result


def _recv(seam: Seam, original: Any, self: Any, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
    link = sockets.link(self)
    where = f"{link}.recv"
    blocking = not flags & zmq.NOBLOCK
    if blocking:
        seam.before(where)
        seam.blocks(where, timeout_ms=_limit(self, zmq.RCVTIMEO))
    try:
        message = original(self, flags, *args, **kwargs)
    except zmq.Again:
        raise
    except BaseException as error:
        seam.failed(where, error=error)
        raise
    finally:
        if blocking:
            seam.runs()
    kind, number = sockets.kind(link, "recv", message)
    seam.after(where, kind, number, _size(message))
    return message


def _poll_one(seam: Seam, original: Any, self: Any, timeout: float | None = None, flags: int = zmq.POLLIN) -> Any:
    return _polled(
        seam, f"{sockets.link(self)}.poll", timeout, sockets.link(self), lambda: original(self, timeout, flags)
    )


def _poll_many(seam: Seam, original: Any, self: Any, timeout: float | None = None) -> Any:
    sources = [sockets.link(source) if isinstance(source, zmq.Socket) else "fd" for source, _ in self.sockets]
    first = next((name for name in sources if name != "fd"), "fd")
    return _polled(seam, f"{first}.poll", timeout, "|".join(dict.fromkeys(sources)), lambda: original(self, timeout))


def _polled(seam: Seam, where: str, timeout: float | None, sources: str, call: Callable[[], Any]) -> Any:
    if timeout == 0:
        return call()
    seam.blocks(where, timeout_ms=None if timeout is None or timeout < 0 else timeout, text=sources)
    try:
        ready = call()
    finally:
        seam.runs()
    if ready:
        seam.after(where, text=sources, progress=False)
    return ready


def _limit(socket: Any, option: int) -> float | None:
    limit = int(socket.getsockopt(option))
    return None if limit < 0 else float(limit)


def _size(message: Any) -> int:
    parts = message if isinstance(message, list | tuple) else [message]
    return sum(len(part) for part in parts)


def _pending(original: Callable[..., Any], call: str) -> Callable[..., Any]:
    """An asyncio socket's call: remembers its future until it is done, for the loop dump."""

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        future = original(self, *args, **kwargs)
        if seams.active() is not None and hasattr(future, "done") and not future.done():
            sockets.pending[future] = f"{sockets.link(self)}.{call}"
        return future

    wrapped.__nowedge_original__ = original  # type: ignore[attr-defined]
    return wrapped


_PLAIN: dict[str, Callable[..., Any]] = {
    "bind": _bind,
    "connect": _connect,
    "set": _set,
    "setsockopt": _set,
    "close": _close,
    "send": _send,
    "send_multipart": _send,
    "recv": _recv,
    "recv_multipart": _recv,
    "poll": _poll_one,
}


def install() -> None:
    """Patches pyzmq's classes, once per process; dormant until a seam is active."""
    if hasattr(zmq.Socket.send, "__nowedge_original__"):
        return
    for name, wrapper in _PLAIN.items():
        setattr(zmq.Socket, name, _outermost(name, wrapper, getattr(zmq.Socket, name)))
    setattr(zmq.Poller, "poll", _outermost("poll", _poll_many, zmq.Poller.poll))  # noqa: B010
    for name in ("recv", "recv_multipart", "send", "send_multipart"):
        setattr(zmq.asyncio.Socket, name, _pending(getattr(zmq.asyncio.Socket, name), name.split("_")[0]))
