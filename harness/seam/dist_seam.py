"""``torch.distributed`` at the seam: every collective of every process group is a site ``GROUP.OPERATION``.

A collective begins where it is issued and ends where a wait on its work first succeeds; a wait in slices that runs out
and is entered again is one wait. The number of a collective counts all operations of its group in this process, so that
equal numbers on two ranks mean the same rendezvous.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from harness.clock import MS, SECOND, now
from harness.seam import site as seams
from harness.seam.site import Seam

OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "gather": "gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


class _Operation:
    """One collective under way in this process."""

    __slots__ = ("done", "number", "site")

    def __init__(self, site: str, number: int) -> None:
        self.site, self.number, self.done = site, number, False


class _Groups:
    """What this process knows of its groups and their work under way."""

    def __init__(self) -> None:
        self.issued: Counter[str] = Counter()
        self.works: weakref.WeakKeyDictionary[Any, _Operation] = weakref.WeakKeyDictionary()
        self.name_of: Callable[[str], str] = lambda description: description

    def reset(self, name_of: Callable[[str], str]) -> None:
        self.issued.clear()
        self.works = weakref.WeakKeyDictionary()
        self.name_of = name_of


groups = _Groups()


def _issue(original: Callable[..., Any], operation: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seam = seams.active()
        if seam is None:
            return original(self, *args, **kwargs)
        group = groups.name_of(self.group_desc)
        groups.issued[group] += 1
        op = _Operation(f"{group}.{operation}", groups.issued[group])
        seam.before(op.site, number=op.number)
        try:
            work = original(self, *args, **kwargs)
        except BaseException as error:
            seam.failed(op.site, number=op.number, error=error)
            raise
        if work is not None:
            groups.works[work] = op
        return work

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seam = seams.active()
        op = groups.works.get(self) if seam is not None else None
        if seam is None or op is None or op.done:
            return original(self, *args, **kwargs)
        limit = _limit(args, kwargs)
        began = now()
        seam.blocks(op.site, number=op.number, timeout_ms=None if limit is None else limit / MS)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            _ended_badly(seam, op, self, error, limit, now() - began)
            raise
        finally:
            seam.runs()
        op.done = True
        seam.after(op.site, number=op.number)
        return result

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _ended_badly(seam: Seam, op: _Operation, work: Any, error: BaseException, limit: int | None, waited: int) -> None:
    """Records a failure, unless it is only the end of a slice: the work is still under way and its time is over."""
    if limit is not None and waited >= limit * 9 // 10 and not work.is_completed():
        return
    op.done = True
    seam.failed(op.site, number=op.number, error=error)


def _limit(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """The timeout of a wait, in nanoseconds; None for none. torch spells 'none' as a timeout of zero."""
    limit = args[0] if args else kwargs.get("timeout")
    if not isinstance(limit, timedelta) or limit <= timedelta(0):
        return None
    return int(limit.total_seconds() * SECOND)


def install() -> None:
    """Patches the classes of process groups and works, once per process; dormant until a seam is active."""
    from torch.distributed.distributed_c10d import ProcessGroup, Work

    if hasattr(Work.wait, "__nowedge_original__"):
        return
    for name, operation in OPERATIONS.items():
        if name in ProcessGroup.__dict__:
            setattr(ProcessGroup, name, _issue(getattr(ProcessGroup, name), operation))
    setattr(Work, "wait", _wait(Work.wait))  # noqa: B010
