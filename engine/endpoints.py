"""Where an engine's sockets live: one private directory per run, one name per link.

A directory that the user gives may hold files of the user's. The names that the engine needs must be free in it, or
hold what a killed engine left there, which the marked lock file says (:mod:`engine.claim`): whatever is bound over an
existing file replaces that. Nothing is removed but sockets and the store of these names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from engine.claim import CLAIM_LIMIT, LOCK, Claim
from engine.errors import ConfigError
from engine.messages import client_link

LINKS = ("relay", "control", "startup", "input", "output")

NUMBERED = ("relay", "input", "output")
"""Links of which there may be several, as ``output.1`` for the second client."""

STORE = "engine.store"

MAX_PATH = 107
"""Longest path of a Unix socket on Linux, in bytes."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The socket addresses of one engine. `private` says that the directory was made for this run alone.

    `claim` is the launcher's hold on the directory, None in a rank.
    """

    directory: str
    private: bool
    claim: Claim | None = None
    tp_size: int = 1
    client_count: int = 1

    @classmethod
    def create(
        cls, socket_dir: str | None, tp_size: int = 1, client_count: int = 1, limit: float = CLAIM_LIMIT
    ) -> Endpoints:
        """Use `socket_dir`, within `limit` seconds, or make a fresh directory that only this user can enter.

        Raises :class:`ConfigError`, having touched no file, if the directory cannot be used, is in use by another
        engine, holds somebody else's file of a name that the engine needs, or a socket path in it would be too long.
        """
        if socket_dir is None:
            directory, claim = Claim.fresh()
            made = cls(directory, True, claim, tp_size, client_count)
            try:
                _check_paths(directory, tp_size, client_count)
            except BaseException:
                made.remove()
                raise
            return made
        directory = os.path.abspath(socket_dir)
        _check_paths(directory, tp_size, client_count)
        try:
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError("socket_dir", socket_dir, f"a directory that can be used ({error})") from error
        claim = Claim.of(directory, limit)
        made = cls(directory, False, claim, tp_size, client_count)
        try:
            made._make_room(after_engine=claim.after_engine)
            claim.confirm()
        except BaseException as error:
            claim.release() if claim.after_engine else claim.remove()
            if isinstance(error, OSError):
                raise ConfigError("socket_dir", socket_dir, f"a directory that can be used ({error})") from error
            raise
        return made

    def path(self, link: str) -> str:
        return f"{self.directory}/{link}"

    def address(self, link: str) -> str:
        """The ZMQ address of a link."""
        return f"ipc://{self.path(link)}"

    @property
    def store(self) -> str:
        """The file through which the ranks find each other."""
        return self.path(STORE)

    def remove(self) -> None:
        """Remove the directory if it is private, else only what the engine put into it. Safe to call twice."""
        if self.claim is None or self.claim.fileno() < 0:
            return  # another engine may have it by now
        for name in _names(self.tp_size, self.client_count):
            if _is_engine_s(self.path(name)):
                Path(self.path(name)).unlink(missing_ok=True)
        if self.private:
            # One by one first: walking through a directory needs a descriptor, of which there may be none left.
            Path(self.path(LOCK)).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.rmdir(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)
        self.claim.remove()

    def _make_room(self, *, after_engine: bool) -> None:
        """Remove what a killed engine left; raise :class:`ConfigError` before that if anything else is in the way."""
        needed = _names(self.tp_size, self.client_count)
        stale = [name for name in _found(self.directory, needed) if after_engine and _is_engine_s(self.path(name))]
        for name in needed:
            if name not in stale and os.path.lexists(self.path(name)):
                raise ConfigError(
                    "socket_dir",
                    self.directory,
                    f"a directory in which the engine may use the name {name!r}; move {self.path(name)} away or choose "
                    "another directory",
                )
        for name in stale:
            Path(self.path(name)).unlink(missing_ok=True)


def _names(tp_size: int, client_count: int) -> list[str]:
    """Every name that an engine of that many ranks and clients uses besides its lock."""
    relays = [f"relay.{rank}" for rank in range(1, tp_size)]
    clients = [client_link(link, client) for client in range(1, client_count) for link in ("input", "output")]
    return [*LINKS, STORE, *relays, *clients]


def _found(directory: str, names: list[str]) -> list[str]:
    """Those of `names` that exist, and the endpoints of an engine that had more ranks or clients."""
    return [name for name in sorted(os.listdir(directory)) if name in names or _is_numbered(name)]


def _is_numbered(name: str) -> bool:
    link, _, number = name.partition(".")
    return link in NUMBERED and number.isdecimal()


def _is_engine_s(path: str) -> bool:
    """Whether the file is of the kind that an engine makes under that name: the store is a file, the rest sockets."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISREG(mode) if path.endswith(f"/{STORE}") else stat.S_ISSOCK(mode)


def _check_paths(directory: str, tp_size: int, client_count: int) -> None:
    """Raise :class:`ConfigError` if a socket's path could not be bound."""
    try:
        longest = max(len(f"{directory}/{name}".encode()) for name in _names(tp_size, client_count) if name != STORE)
    except UnicodeEncodeError:
        raise ConfigError("socket_dir", directory, "a path of characters that UTF-8 can write") from None
    if longest > MAX_PATH:
        raise ConfigError(
            "socket_dir", directory, f"a shorter path (a socket would need {longest} bytes of {MAX_PATH})"
        )
