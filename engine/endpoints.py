"""Where an engine's sockets live: one private directory per run, one name per link."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.claim import LOCK, Claim
from engine.errors import ConfigError

LINKS = ("relay", "control", "input", "output")

STORE = "store"

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

    @classmethod
    def create(cls, socket_dir: str | None, tp_size: int = 1) -> Endpoints:
        """Use `socket_dir`, or make a fresh directory that only this user can enter.

        Raises :class:`ConfigError` if the directory cannot be used, is in use by another engine, or a socket path in it
        would be too long.
        """
        if socket_dir is None:
            directory, claim = Claim.fresh()
            made = cls(directory, True, claim)
        else:
            directory = os.path.abspath(socket_dir)
            try:
                Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError("socket_dir", socket_dir, f"a directory that can be used ({error})") from error
            made = cls(directory, False, Claim.of(directory))
            # What a killed engine left: its store would send the ranks to addresses of the dead.
            made._clear()
        longest = max(len(os.fsencode(made.path(link))) for link in (*LINKS, f"relay.{tp_size - 1}"))
        if longest > MAX_PATH:
            made.remove()
            raise ConfigError(
                "socket_dir", made.directory, f"a shorter path (a socket would need {longest} bytes of {MAX_PATH})"
            )
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
        if self.private:
            shutil.rmtree(self.directory, ignore_errors=True)
        else:
            self._clear()
            Path(self.path(LOCK)).unlink(missing_ok=True)
        self.claim.release()

    def _clear(self) -> None:
        for link in (*LINKS, STORE):
            Path(self.path(link)).unlink(missing_ok=True)
        for path in Path(self.directory).glob("relay.*"):
            if path.suffix[1:].isdecimal():
                path.unlink(missing_ok=True)
