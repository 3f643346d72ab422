"""What is said on the zygote's sockets: one msgpack record per packet, descriptors beside it."""

from __future__ import annotations

import array
import socket
from typing import Any

import msgspec
from msgspec import Struct

_MAX_PACKET = 1 << 20
_MAX_FDS = 16
_FD = array.array("i")


class Lane(Struct, frozen=True, tag="lane"):
    """A new lane; its socket comes along."""


class Begin(Struct, frozen=True, tag="begin"):
    """A run begins in ``folder``. Descriptors: the run's shared memory, where to tell the proxy, where the lane."""

    folder: str
    plan: bytes
    rewrites: dict[str, dict[str, str]]


class Start(Struct, frozen=True, tag="start"):
    """Start ``module:function`` as ``role``; the descriptors that come along are its own."""

    role: str
    target: str
    args: list[Any]


class Signal(Struct, frozen=True, tag="signal"):
    """Send a signal to the process of a role, if it still lives. There is no answer."""

    role: str
    number: int


class Again(Struct, frozen=True, tag="again"):
    """Start the process of a role once more, as it was started; it has ended. Its new role is in the answer."""

    role: str
    name: str


class Clean(Struct, frozen=True, tag="clean"):
    """End the run: kill what lives, reap it, remove the folder, then answer Cleaned."""


class Started(Struct, frozen=True, tag="started"):
    """A process runs. Its launcher also gets a pidfd and the pipe on which its exit status will come."""

    role: str
    pid: int
    index: int
    t: int


class Refused(Struct, frozen=True, tag="refused"):
    """A process could not be started."""

    why: str


class Died(Struct, frozen=True, tag="died"):
    """A process has ended; said before it is reaped. ``status`` is negative for a signal.

    ``starved`` is for how many seconds its main thread could have run and had no core.
    """

    role: str
    pid: int
    status: int
    t: int
    starved: float = 0.0


class Cleaned(Struct, frozen=True, tag="cleaned"):
    """The run is over. ``killed`` are the roles that lived until now; ``residue`` is what they left in the folder."""

    killed: list[str]
    residue: list[str]


class Ping(Struct, frozen=True, tag="ping"):
    """Is there a death that has not been announced, or a start that was asked for and not done?"""


class Pong(Struct, frozen=True, tag="pong"):
    """All starts asked for before the question are done, all deaths before it are announced."""


Message = Lane | Begin | Start | Signal | Again | Clean | Started | Refused | Died | Cleaned | Ping | Pong

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


def pair() -> tuple[socket.socket, socket.socket]:
    """A connected pair that keeps packets whole."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Sends one record and duplicates of ``fds``. Raises OSError when the other side is gone."""
    socket.send_fds(to, [_encoder.encode(message)], list(fds))


def receive(of: socket.socket, *, wait: bool = True) -> tuple[Message | None, list[int]]:
    """The next record and its descriptors (close-on-exec); None when the other side is gone.

    Raises BlockingIOError if there is none and ``wait`` is False.
    """
    flags = socket.MSG_CMSG_CLOEXEC | (0 if wait else socket.MSG_DONTWAIT)
    try:
        # Not socket.recv_fds: it takes flags and drops them.
        data, ancillary, _, _ = of.recvmsg(_MAX_PACKET, socket.CMSG_SPACE(_MAX_FDS * _FD.itemsize), flags)
    except ConnectionResetError:
        return None, []
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) // _FD.itemsize * _FD.itemsize])
    return (_decoder.decode(data), list(fds)) if data else (None, list(fds))
