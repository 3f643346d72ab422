"""Where an engine's sockets live: one private directory per run, one name per link."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError

LINKS = ("relay", "input", "output")

MAX_PATH = 107
"""Longest path of a Unix socket on Linux, in bytes."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The socket addresses of one engine. `private` says that the directory was made for this run alone."""

    directory: str
    private: bool

    @classmethod
    def create(cls, socket_dir: str | None) -> Endpoints:
        """Use `socket_dir`, or make a fresh directory that only this user can enter.

        Raises :class:`ConfigError` if the directory cannot be used or a socket path in it would be too long.
        """
        if socket_dir is None:
            made = cls(tempfile.mkdtemp(prefix="nowedge-engine-"), private=True)
        else:
            try:
                Path(socket_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError("socket_dir", socket_dir, f"a directory that can be used ({error})") from error
            made = cls(os.path.abspath(socket_dir), private=False)
        longest = max(len(os.fsencode(made.path(link))) for link in LINKS)
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
        return self.path("store")

    def remove(self) -> None:
        """Remove the directory if it is private, else only what the engine put into it. Safe to call twice."""
        if self.private:
            shutil.rmtree(self.directory, ignore_errors=True)
            return
        for name in (*LINKS, "store"):
            Path(self.path(name)).unlink(missing_ok=True)
