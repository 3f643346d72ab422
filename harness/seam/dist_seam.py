"""``torch.distributed`` at the seam: every collective of every process group is a site ``GROUP.OPERATION``.

A collective begins where it is issued and ends where a wait on its work first succeeds; a wait in slices that runs out
and is entered again is one wait. The number of a collective counts all operations of its group in this process, so that
equal numbers on two ranks mean the same rendezvous: gloo matches by order. What a fault leaves out does not count.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec import Struct

from harness.clock import SECOND, now
from harness.faults.hand import Change
from harness.seam import site as seams
from harness.seam.operations import OPERATIONS
from harness.seam.site import Seam

Done = Callable[[], None]


class _Place:
    """One operation of one group. ``bare``: no fault of this process is armed there."""

    __slots__ = ("bare", "group", "site", "track")

    def __init__(self, group: str, site: str, seam: Seam) -> None:
        self.group, self.site, self.track, self.bare = group, site, seam.track(site), not seam.is_armed(site)


class _Operation(Struct, gc=False):
    """One collective under way in this process. ``left_out``: it was never issued."""

    place: _Place
    number: int
    work: Callable[[], Any]
    """Gives the work that is under way, as long as there is that."""
    left_out: bool = False
    done: bool = False


class _Call:
    """One call of a process group's method, with its arguments."""

    __slots__ = ("args", "group", "kwargs", "name", "original", "site")

    def __init__(self, original: Callable[..., Any], name: str, group: Any, site: str, args: Any, kwargs: Any) -> None:
        self.original, self.name, self.group, self.site = original, name, group, site
        self.args, self.kwargs = args, kwargs

    def make(self) -> Any:
        return self.original(self.group, *self.args, **self.kwargs)

    def copy(self) -> _Call:
        """The same with tensors of its own."""
        args, kwargs = _each(self.args, _clone), _each(self.kwargs, _clone)
        return _Call(self.original, self.name, self.group, self.site, args, kwargs)


class _Groups:
    """What this process knows of its groups and their work under way."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], _Place] = {}
        self.reset(lambda description: description)

    def reset(self, name_of: Callable[[str], str]) -> None:
        self.issued: Counter[str] = Counter()
        # By the work's id: cheaper than a weak dictionary.
        self.works: dict[int, _Operation] = {}
        self.places.clear()
        self._name_of = name_of
        self.postponed: dict[str, _Call] = {}
        self.before_store: list[Done] = []
        self._kept: list[Any] = []

    def name(self, description: str) -> str:
        """The short name of the group that torch describes so."""
        return self._name_of(description)

    def place(self, seam: Seam, description: str, operation: str) -> _Place:
        """That operation of the group that torch describes so."""
        group = self._name_of(description)
        found = self.places[description, operation] = _Place(group, f"{group}.{operation}", seam)
        return found

    def keep(self, thing: Any) -> Any:
        """Holds for the process's life what nobody else does: work that nobody waits for, what C++ alone uses."""
        self._kept.append(thing)
        return thing


groups = _Groups()


class _Issuing(threading.local):
    """The changes to the collective that this thread is about to issue, None where it is about to issue none."""

    changes: list[tuple[Change, Done]] | None = None


_issuing = _Issuing()


def change(what: Change, done: Done) -> None:
    """Changes the collective that this thread is about to issue, and calls ``done`` when that has been done."""
    if _issuing.changes is not None:
        _issuing.changes.append((what, done))


def before_store(deed: Done) -> None:
    """From now on ``deed`` is done before each call of this process to the rendezvous store, one at hand included."""
    groups.before_store.append(deed)


def before_store_call() -> None:
    """This thread is about to call the rendezvous store."""
    for deed in groups.before_store:
        deed()


def _issue(original: Callable[..., Any], name: str, operation: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seam = seams.active()
        if seam is None:
            return original(self, *args, **kwargs)
        description = self.group_desc
        place = groups.places.get((description, operation)) or groups.place(seam, description, operation)
        number = groups.issued[place.group] = groups.issued[place.group] + 1
        if place.bare:
            place.track.before(number)
        elif not seam.changes_collectives:
            seam.before(place.site, number=number)
        else:
            _issuing.changes = []
            try:
                seam.before(place.site, number=number)
            finally:
                changes, _issuing.changes = _issuing.changes, None
            if changes:
                return _changed(seam, place, number, _Call(original, name, self, place.site, args, kwargs), changes)
        if place.group in groups.postponed:
            return _changed(seam, place, number, _Call(original, name, self, place.site, args, kwargs), [])
        return _make(seam, place, number, original, self, args, kwargs)

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _make(
    seam: Seam, place: _Place, number: int, original: Callable[..., Any], group: Any, args: Any, kwargs: Any
) -> Any:
    try:
        work = original(group, *args, **kwargs)
    except BaseException as error:
        seam.failed(place.site, number=number, error=error)
        raise
    if work is not None:
        groups.works[id(work)] = _Operation(place, number, weakref.ref(work))
    return work


# Faults


def _changed(seam: Seam, place: _Place, number: int, call: _Call, changes: list[tuple[Change, Done]]) -> Any:
    """Issues the collective with what faults make of it, and behind it the one that it was to come behind."""
    group = place.group
    then = [groups.postponed.pop(group)] if group in groups.postponed else []
    left_out = False
    for what, done in changes:
        if what.how in ("skip", "swap"):
            left_out = True
            if what.how == "swap":
                groups.postponed[group] = call.copy()
        elif what.how == "extra":
            then.append(call.copy())
        elif not (_set_root if what.how == "root" else _set_shape)(call, what.value):
            continue
        done()
    work = (
        _leave_out(seam, place, number, call)
        if left_out
        else _make(seam, place, number, call.original, call.group, call.args, call.kwargs)
    )
    for behind in then:
        groups.issued[group] += 1
        seam.before(behind.site, number=groups.issued[group])
        groups.keep((behind, behind.make()))
    return work


def _leave_out(seam: Seam, place: _Place, number: int, call: _Call) -> Any:
    """What the code gets instead of the work of a collective that is not issued: done at once, with its own input.

    The next one has its number, and in the history this role has come to it with nothing.
    """
    import torch
    from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

    groups.issued[place.group] = number - 1
    seam.before(f"{place.group}.skipped", number=number)
    if call.name in ("allgather", "_allgather_base"):
        _gather_own(call)
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result([])
    work = _create_work_from_future(future)
    groups.works[id(work)] = _Operation(place, number, weakref.ref(work), left_out=True)
    return work


def _gather_own(call: _Call) -> None:
    """Fills every part of an all-gather's output with this rank's input."""
    outputs, inputs = call.args[:2]
    if call.name == "_allgather_base":
        outputs.view(-1, inputs.numel()).copy_(inputs.reshape(1, -1))
        return
    for parts, own in zip(outputs, inputs, strict=True):
        for part in parts:
            part.copy_(own)


def _set_root(call: _Call, root: int) -> bool:
    """Whether the call has a root, and it was another one."""
    for given in (*call.args, *call.kwargs.values()):
        if hasattr(given, "rootRank"):
            changed = bool(given.rootRank != root)
            given.rootRank = root
            return changed
    return False


def _set_shape(call: _Call, more: int) -> bool:
    """Whether there were tensors, of elements enough to take so many away."""
    sizes: list[int] = []
    _each((call.args, call.kwargs), lambda tensor: sizes.append(tensor.numel()))
    if not sizes or min(sizes) + more < 1:
        return False
    call.args = _each(call.args, lambda tensor: _resized(tensor, more))
    call.kwargs = _each(call.kwargs, lambda tensor: _resized(tensor, more))
    groups.keep(call)
    return True


def _resized(tensor: Any, more: int) -> Any:
    flat = tensor.view(-1)
    return flat[:more] if more < 0 else flat.new_zeros(flat.numel() + more).index_copy_(0, _range(flat), flat)


def _range(flat: Any) -> Any:
    import torch

    return torch.arange(flat.numel())


def _each(value: Any, deed: Callable[[Any], Any]) -> Any:
    """The same lists, tuples and dictionaries with every tensor in them replaced by what ``deed`` makes of it."""
    import torch

    if isinstance(value, torch.Tensor):
        return deed(value)
    if isinstance(value, list | tuple):
        return type(value)(_each(item, deed) for item in value)
    if isinstance(value, dict):
        return {key: _each(item, deed) for key, item in value.items()}
    return value


def _clone(tensor: Any) -> Any:
    return tensor.clone()


# Waits


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        seam = seams.active()
        op = groups.works.get(id(self)) if seam is not None else None
        if seam is None or op is None or op.work() is not self:
            return original(self, *args, **kwargs)
        if op.left_out:
            return _pass(seam, op)
        limit = _limit(args[0] if args else kwargs.get("timeout"))
        began = now()
        place, number = op.place, op.number
        place.track.wait(began, number, -1 if limit is None else began + limit)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            seam.runs()
            _ended_badly(seam, op, self, error, limit, now() - began)
            raise
        groups.works.pop(id(self), None)
        seam.runs()
        if place.bare:
            place.track.after(number)
        else:
            seam.after(place.site, number=number)
        return result

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def _pass(seam: Seam, op: _Operation) -> bool:
    """The wait for a collective that was left out; it counts as passed, so that occurrences are those of the code."""
    if not op.done:
        op.done = True
        seam.after(op.place.site)
    return True


def _ended_badly(seam: Seam, op: _Operation, work: Any, error: BaseException, limit: int | None, waited: int) -> None:
    """Records a failure, unless it is only the end of a slice: the work is still under way and its time is over."""
    if limit is not None and waited >= limit * 9 // 10 and not work.is_completed():
        return
    groups.works.pop(id(work), None)
    seam.failed(op.place.site, number=op.number, error=error)


@functools.lru_cache
def _limit(timeout: Any) -> int | None:
    """The timeout of a wait, in nanoseconds; None for none. torch spells 'none' as a timeout of zero."""
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        return None
    return int(timeout.total_seconds() * SECOND)


def install() -> None:
    """Patches the classes of process groups and works, once per process; dormant until a seam is active."""
    from torch.distributed.distributed_c10d import ProcessGroup, Work

    from harness.seam import store_seam

    if hasattr(Work.wait, "__nowedge_original__"):
        return
    for name, operation in OPERATIONS.items():
        if name in ProcessGroup.__dict__:
            setattr(ProcessGroup, name, _issue(getattr(ProcessGroup, name), name, operation))
    setattr(Work, "wait", _wait(Work.wait))  # noqa: B010
    store_seam.install()
