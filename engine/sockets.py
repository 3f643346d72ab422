"""What every ZMQ socket here is asked."""

from __future__ import annotations

from typing import Any

import zmq


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message waits to be received. Never blocks."""
    return ready(socket, zmq.POLLIN)


def ready(socket: zmq.Socket[bytes], flag: int) -> bool:
    """Whether a receive (``zmq.POLLIN``) or a send (``zmq.POLLOUT``) would not block."""
    return bool(int(socket.get(zmq.EVENTS)) & flag)


def blocking(socket: zmq.Socket[Any]) -> zmq.Socket[bytes]:
    """The same socket with blocking calls, whatever the given one is made for. Closed with the given one."""
    return zmq.Socket.shadow(socket.underlying)
