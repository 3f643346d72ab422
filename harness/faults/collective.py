"""What faults of one collective have in common: its instant is its group, its operation and its number."""

from __future__ import annotations

from typing import ClassVar

from harness.faults.settings import InstantFault
from harness.seam.operations import COLLECTIVES


class CollectiveFault(InstantFault, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Done to the collective that a role is about to issue at ``at``, such as ``dp0.rank1:tp.all_reduce#5:before``."""

    operations: ClassVar[tuple[str, ...]] = COLLECTIVES
    """To which it can be done."""

    def complaint(self) -> str | None:
        """What is wrong with the settings, as 'field: sentence', or None."""
        _, _, operation = self.at.site.partition(".")
        if operation not in self.operations:
            known = ", ".join(self.operations)
            return f"at: {self.at.site} is no collective to which this can be done; GROUP.OPERATION is one of {known}"
        if self.at.side != "before":
            return f"at: {self.at} is behind the collective; write :before"
        return None
