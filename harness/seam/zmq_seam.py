"""pyzmq at the seam: sockets and pollers, blocking and asyncio, each call a site ``LINK.CALL``.

Class attributes are patched, so that sockets made through any name of the library are seen. An asyncio socket works
through a shadow socket with NOBLOCK; what is recorded there is each attempt that succeeded, and which futures still
wait is kept for the loop dump. A socket's link is the name of the first endpoint that it binds or connects; where a
link has several endpoints, as ``relay.1`` and ``relay.2``, a send's ``text`` is the endpoint.
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


class _Adjustment:
    """What a fault sets on the sockets of a link: ``done`` is called once, when the first of them has it."""

    __slots__ = ("begun", "done", "link", "option", "value")

    def __init__(self, link: str, option: str, value: int, done: Callable[[], None]) -> None:
        self.link, self.option, self.value, self.done = link, option, value, done
        self.begun = False

    def begin(self) -> None:
        if not self.begun:
            self.begun = True
            self.done()


class _Sockets:
    """What this process knows of its sockets, by the address of the C socket, which shadows share."""

    def __init__(self) -> None:
        self.links: dict[int, str] = {}
        self.endpoints: dict[int, str] = {}
        self._known: dict[int, tuple[str, str, str, str]] = {}
        self.descriptors: dict[int, str] = {}
        """The link of each socket, by the descriptor that tells of its events."""
        self.bound: dict[str, list[tuple[str, int]]] = {}
        self.squatters: list[zmq.Socket[bytes]] = []
        self.adjustments: list[_Adjustment] = []
        self.names: Names | None = None
        self.rewrites: dict[str, str] = {}
        self.pending: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def reset(self, names: Names | None, rewrites: dict[str, str]) -> None:
        self.links.clear()
        self.endpoints.clear()
        self._known.clear()
        self.descriptors.clear()
        self.bound.clear()
        self.squatters.clear()
        self.adjustments.clear()
        self.names, self.rewrites = names, rewrites
        self.pending = weakref.WeakKeyDictionary()

    def link(self, socket: zmq.Socket[bytes]) -> str:
        return self.links.get(socket.underlying, "zmq")

    def known(self, socket: zmq.Socket[bytes]) -> tuple[str, str, str, str]:
        """The socket's link and endpoint, and its sites of a send and of a receive."""
        underlying = socket.underlying
        found = self._known.get(underlying)
        if found is None:
            link = self.links.get(underlying, "zmq")
            found = (link, self.endpoints.get(underlying, ""), f"{link}.send", f"{link}.recv")
            if underlying in self.links:
                self._known[underlying] = found
        return found

    def forget(self, underlying: int) -> None:
        """The socket of that address is closed; another one may be made there."""
        for names in (self.links, self.endpoints, self._known):
            names.pop(underlying, None)

    def endpoint(self, socket: zmq.Socket[bytes]) -> str:
        """The name of the socket's endpoint where its link has several; empty where the link says it all."""
        return self.endpoints.get(socket.underlying, "")

    def source(self, socket: zmq.Socket[bytes], sends: bool) -> str:
        """What a wait on the socket is for: a message, or (``.send``) room for one."""
        return (self.endpoint(socket) or self.link(socket)) + (".send" if sends else "")

    def read(self, link: str, direction: str, message: Any) -> tuple[str, int, int]:
        """The kind, the number and the size in bytes of one message (bytes, a Frame, or a list of them)."""
        frames: Sequence[bytes]
        if type(message) is bytes:
            frames, size = (message,), len(message)
        else:
            parts = message if isinstance(message, list | tuple) else [message]
            frames = [part.bytes if isinstance(part, zmq.Frame) else bytes(part) for part in parts]
            size = sum(map(len, frames))
        if self.names is None:
            return "?", -1, size
        found = self.names.classify(link, direction, frames)
        return found.kind, -1 if found.number is None else found.number, size


sockets = _Sockets()


class _Depth(threading.local):
    """What this thread is in: a wrapped call; the bind of a link's address."""

    inside: bool = False
    binding: tuple[str, str, int] | None = None


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
        name = endpoint.rsplit("/", 1)[-1].partition("@")[0]
        if name != link:
            sockets.endpoints[socket.underlying] = name
        sockets.descriptors[int(socket.getsockopt(zmq.FD))] = link
    return link


def _text(endpoint: Any) -> str:
    return endpoint.decode() if isinstance(endpoint, bytes) else str(endpoint)


def _bind(seam: Seam, original: Any, self: Any, addr: Any) -> Any:
    link = _learn(self, _text(addr))
    _depth.binding = link, _text(addr), self.type
    try:
        seam.before(f"{link}.bind")
    finally:
        _depth.binding = None
    _limit_messages(self, link)
    result = original(self, addr)
    sockets.bound.setdefault(link, []).append((_text(self.getsockopt(zmq.LAST_ENDPOINT)), self.type))
    seam.after(f"{link}.bind", progress=False)
    return result


def squat(link: str) -> bool:
    """Binds every address of the link that this process has bound, or is about to bind; whether one could be bound.

    The sockets are unseen by the seam, and of a context of their own: one of the target's would wait for them at its
    end. Where an address is exclusive, as on tcp, only the first of two binds succeeds.
    """
    inside, _depth.inside = _depth.inside, True
    addresses = list(sockets.bound.get(link, ()))
    if _depth.binding is not None and _depth.binding[0] == link:
        addresses.append(_depth.binding[1:])
    try:
        return sum(_squat(endpoint, kind) for endpoint, kind in addresses) > 0
    finally:
        _depth.inside = inside


def _squat(endpoint: str, kind: int) -> bool:
    squatter: zmq.Socket[bytes] = zmq.Context().socket(kind)
    sockets.squatters.append(squatter)
    try:
        squatter.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno != zmq.EADDRINUSE:
            raise
        return False
    return True


def adjust(link: str, option: str, value: int, done: Callable[[], None]) -> None:
    """From now on the sockets of the link have that: ``high_water`` from their bind or connect on, ``linger`` at close.

    ``done`` is called when the first has it.
    """
    sockets.adjustments.append(_Adjustment(link, option, value, done))


def _limit_messages(socket: Any, link: str) -> None:
    for adjustment in sockets.adjustments:
        if (adjustment.link, adjustment.option) == (link, "high_water"):
            socket.setsockopt(zmq.SNDHWM, adjustment.value)
            socket.setsockopt(zmq.RCVHWM, adjustment.value)
            adjustment.begin()


def _lingering(link: str) -> int | None:
    """For how long faults let the sockets of the link linger (milliseconds); None for as the engine has chosen."""
    found = None
    for adjustment in sockets.adjustments:
        if (adjustment.link, adjustment.option) == (link, "linger"):
            found = adjustment.value
            adjustment.begin()
    return found


def _connect(seam: Seam, original: Any, self: Any, addr: Any) -> Any:
    endpoint = _text(addr)
    link = _learn(self, endpoint)
    seam.before(f"{link}.connect")
    _limit_messages(self, link)
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
    linger = _lingering(link)
    result = original(self, *args, **kwargs) if linger is None else original(self, linger)
    sockets.forget(underlying)
    seam.after(f"{link}.close", progress=False)
    return result


def _send(seam: Seam, original: Any, self: Any, message: Any, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
    link, to, where, _ = sockets.known(self)
    kind, number, size = sockets.read(link, "send", message)
    seam.before(where, kind, number, size, to)
    blocking = not flags & zmq.NOBLOCK
    if blocking:
        seam.blocks(where, kind, number, _limit(self, zmq.SNDTIMEO), sockets.source(self, sends=True))
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
    seam.after(where, kind, number, size, to)
    return result


def _recv(seam: Seam, original: Any, self: Any, flags: int = 0, *args: Any, **kwargs: Any) -> Any:
    link, _, _, where = sockets.known(self)
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
    kind, number, size = sockets.read(link, "recv", message)
    seam.after(where, kind, number, size)
    return message


def _poll_one(seam: Seam, original: Any, self: Any, timeout: float | None = None, flags: int = zmq.POLLIN) -> Any:
    source = sockets.source(self, sends=not flags & zmq.POLLIN)
    return _polled(seam, f"{sockets.link(self)}.poll", timeout, source, lambda: original(self, timeout, flags))


def _poll_many(seam: Seam, original: Any, self: Any, timeout: float | None = None) -> Any:
    if timeout == 0:
        return original(self, timeout)
    polled = [(source, flags) for source, flags in self.sockets if isinstance(source, zmq.Socket)]
    sources = ["fd"] * (len(polled) < len(self.sockets))
    sources += [sockets.source(socket, sends=not flags & zmq.POLLIN) for socket, flags in polled]
    first = sockets.link(polled[0][0]) if polled else "fd"
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
    for name in ("recv", "recv_multipart", "poll", "send", "send_multipart"):
        call = "recv" if name == "poll" else name.split("_")[0]  # polled is what will be received
        setattr(zmq.asyncio.Socket, name, _pending(getattr(zmq.asyncio.Socket, name), call))
