"""Addresses of unix and TCP sockets: read, listen on, dial, and remove again."""

from __future__ import annotations

import contextlib
import errno
import os
import socket

import msgspec

_BACKLOG = 1024
_ACCEPTING = 0x10000  # __SO_ACCEPTCON in /proc/net/unix
_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp


class Address(msgspec.Struct, frozen=True):
    """A place to listen or dial: a unix `path` (an abstract one begins with NUL), or a TCP `host` and `port`."""

    path: str = ""
    host: str = ""
    port: int = 0

    def open(self) -> socket.socket:
        """A non-blocking socket of the right family."""
        if self.path:
            return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)

    @property
    def target(self) -> str | tuple[str, int]:
        """What `bind` and `connect` take."""
        return self.path or (self.host, self.port)


def parse(text: str) -> Address:
    """Read `/path`, `ipc:///path`, `ipc://@name` or `tcp://HOST:PORT`. Raises `ValueError` for anything else."""
    if text.startswith("tcp://"):
        host, _, port = text[6:].rpartition(":")
        if not host or host == "*" or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"bad address {text!r}: expected tcp://HOST:PORT with an IPv4 host and a numeric port")
        return Address(host=host, port=int(port))
    path = text.removeprefix("ipc://")
    if path.startswith("@") and len(path) > 1:
        return Address(path="\0" + path[1:])
    if not path.startswith("/"):
        raise ValueError(f"bad address {text!r}: expected an absolute path, ipc://PATH or tcp://HOST:PORT")
    return Address(path=path)


class Doorway:
    """A listening socket that removes its own path when closed. Raises `OSError` when it cannot listen."""

    def __init__(self, text: str) -> None:
        address = parse(text)
        self.path = address.path if address.path[:1] == "/" else ""
        self.sock = address.open()
        try:
            if address.host:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.sock.bind(address.target)
            self._identity = _identity(self.path)
            self.sock.listen(_BACKLOG)
        except BaseException:
            self.sock.close()
            raise
        self.address = text if address.path else f"tcp://{address.host}:{self.sock.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening; the path goes too, unless someone else has bound it since."""
        self.sock.close()
        if self.path and _identity(self.path) == self._identity:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def dial(address: Address) -> tuple[socket.socket, bool]:
    """Begin to connect: the socket, and whether it is connected already. Raises `OSError` when refused."""
    sock = address.open()
    try:
        if address.host:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = sock.connect_ex(address.target)
        if code not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except BaseException:
        sock.close()
        raise
    return sock, code == 0


def listening(address: Address) -> bool:
    """Whether a socket listens there now, read from the kernel's tables so that nobody notices the question.

    A unix path counts only as its binder wrote it; a TCP port counts on any local address.
    """
    if address.path:
        wanted = address.path.replace("\0", "@", 1)
        return any(
            len(fields) > 7 and fields[7] == wanted and int(fields[3], 16) & _ACCEPTING for fields in _table("unix", 7)
        )
    wanted = f":{address.port:04X}"
    rows = [*_table("tcp", 4), *_table("tcp6", 4)]
    return any(fields[1].endswith(wanted) and fields[3] == _LISTEN for fields in rows)


def _table(name: str, splits: int) -> list[list[str]]:
    try:
        with open(f"/proc/net/{name}", errors="replace") as table:
            lines = table.read().splitlines()
    except FileNotFoundError:
        return []
    return [line.split(None, splits) for line in lines[1:]]
