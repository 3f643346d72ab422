"""What a fault may do with the process that passes its instant; the seam lends it (`harness.seam.site`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol


class Change(NamedTuple):
    """What becomes of one collective: see the faults `skip`, `extra`, `swap`, `wrong_root` and `wrong_shape`.

    ``value`` is the other root, or how many more elements there are.
    """

    how: Literal["skip", "extra", "swap", "root", "shape"]
    value: int = 0


class Hand(Protocol):
    """The hand of one fault in the thread that has reached it."""

    def fired(self) -> None:
        """Note that the deed is done; before it, where nothing can be noted after it."""

    def over(self) -> None:
        """Note that the deed is undone."""

    def waits(self, until: int = -1) -> None:
        """Show this thread as held by the plan, until ``until`` (nanoseconds; -1: until the harness ends it)."""

    def runs(self) -> None:
        """This thread is held no longer."""

    def tell_lane(self) -> None:
        """Let the lane know that this fault has been reached, where part of the deed is the lane's."""

    def await_word(self, until: int = -1) -> None:
        """Wait until the lane, or the role whose instant ends the fault, has raised the fault's flag.

        At most until ``until`` (nanoseconds; -1: for ever).
        """

    def squat(self, link: str) -> bool:
        """Bind every address of the link that this process has bound once more; whether there was one."""

    def change_collective(self, change: Change) -> None:
        """Change the collective that this thread is about to issue; the seam notes that this has been done."""

    def before_store_calls(self, deed: Callable[[], None]) -> None:
        """Do this before each call of this process to the rendezvous store from now on, one at hand included."""

    def adjust_sockets(self, link: str, option: Literal["high_water", "linger"], value: int) -> None:
        """Give that to each socket of the link from now on; the seam notes when the first has it."""

    def unlink(self, link: str) -> bool:
        """Remove the file of every endpoint of the link; whether there was one."""

    def leave_stale(self, link: str, of: Literal["engine", "stranger"]) -> bool:
        """Put a dead file at every endpoint of the link at which there is none; whether there was room."""

    def fill_disk(self) -> bool:
        """Fill the file system of the engine's folder; whether it has one of its own."""
