"""Whether all ranks have done the same: every so many steps they compare their running digests.

Each rank decides for itself what a step does, so one that decides otherwise (a lost message, a changed order, other
tokens) would give wrong answers or stop the others in a collective that it does not enter. The digest folds in
everything that a step decided (:attr:`engine.core.EngineCore.digest`), so equal digests mean equal histories.

Who is to blame: the ranks that differ from the majority; without a majority, those that differ from rank 0. The first
of them leaves as the one cause, the others because of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.errors import Accused, PeerFailed

if TYPE_CHECKING:
    from engine.parallel.group import TensorGroup

_MASK = 2**64 - 1


class Agreement:
    """One rank's part. `interval` is in steps, counted alike on all ranks."""

    def __init__(self, group: TensorGroup, interval: int) -> None:
        self._group = group
        self._interval = interval
        self._steps = 0

    def step_done(self, digest: int) -> None:
        """A step is over and left this unsigned 64-bit digest; at the interval, one all-gather compares them.

        Raises :class:`Accused` on the rank to blame and :class:`PeerFailed` on the others, both with all digests.
        """
        self._steps += 1
        if self._group.size == 1 or self._steps % self._interval:
            return
        signed = digest - (1 << 64) if digest >> 63 else digest
        digests = [int(part) & _MASK for part in self._group.all_gather(torch.tensor(signed, dtype=torch.int64))]
        accused = dissenters(digests)
        if not accused:
            return
        roles = self._group.roles
        said = ", ".join(f"{role} {one:016x}" for role, one in zip(roles, digests, strict=True))
        cause = f"the ranks differ after step {self._steps}: digests are {said}"
        if self._group.rank == accused[0]:
            raise Accused(cause)
        raise PeerFailed(roles[accused[0]], cause)


def dissenters(digests: Sequence[int]) -> list[int]:
    """The ranks whose digest is not the majority's, or not rank 0's if there is no majority."""
    common, count = Counter(digests).most_common(1)[0]
    right = common if 2 * count > len(digests) else digests[0]
    return [rank for rank, digest in enumerate(digests) if digest != right]
