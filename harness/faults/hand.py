"""What a fault may do with the process that passes its instant; the seam lends it (`harness.seam.site`)."""

from __future__ import annotations

from typing import Protocol


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
