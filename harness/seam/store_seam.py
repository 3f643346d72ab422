"""The rendezvous store at the seam: each call of a rank to the store is a site ``store.CALL``.

Process groups call the store from C++, where no patch of a class is seen; so the store that a group is made with is
replaced by one written in Python, which hands every call on to it. The event's text is the key.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import distributed_c10d

from harness.seam import dist_seam
from harness.seam import site as seams
from harness.seam.operations import FORM, STORE

_DEFAULT = "default_pg"
"""How torch describes the group that all ranks form at their start."""


class ObservedStore(Store):
    """Hands every call on to ``inner``."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: Any) -> None:
        self._pass("set", key, lambda: self.inner.set(key, value))

    def get(self, key: str) -> bytes:
        return bytes(self._pass("get", key, lambda: self.inner.get(key)))

    def wait(self, keys: Sequence[str], *timeout: Any) -> None:
        self._pass("wait", " ".join(keys), lambda: self.inner.wait(list(keys), *timeout))

    def add(self, key: str, amount: int) -> int:
        return int(self._pass("add", key, lambda: self.inner.add(key, amount)))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._pass("check", " ".join(keys), lambda: self.inner.check(list(keys))))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return bytes(self._pass("compare_set", key, lambda: self.inner.compare_set(key, expected, desired)))

    def append(self, key: str, value: Any) -> None:
        self._pass("append", key, lambda: self.inner.append(key, value))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        self._pass("multi_set", " ".join(keys), lambda: self.inner.multi_set(list(keys), list(values)))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return list(self._pass("multi_get", " ".join(keys), lambda: self.inner.multi_get(list(keys))))

    def delete_key(self, key: str) -> bool:
        return bool(self._pass("delete_key", key, lambda: self.inner.delete_key(key)))

    def has_extended_api(self) -> bool:
        return bool(self.inner.has_extended_api())

    def _pass(self, call: str, key: str, original: Callable[[], Any]) -> Any:
        seam = seams.active()
        if seam is None:
            return original()
        where = f"{STORE}.{call}"
        seam.before(where, text=key)
        dist_seam.before_store_call()
        seam.blocks(where, text=key)
        try:
            result = original()
        except BaseException as error:
            seam.failed(where, error=error)
            raise
        finally:
            seam.runs()
            if _forming.group:
                seam.blocks(FORM, text=_forming.group)  # the wait that this one was a part of
        seam.after(where, text=key)
        return result


class _Forming(threading.local):
    """The group that this thread is forming, if any."""

    group: str = ""


_forming = _Forming()


def _init(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        seam, store = seams.active(), kwargs.get("store")
        if seam is None:
            return original(*args, **kwargs)
        if isinstance(store, Store) and not isinstance(store, ObservedStore):
            kwargs["store"] = dist_seam.groups.keep(ObservedStore(store))
        _forming.group = dist_seam.groups.name(_DEFAULT)
        seam.before(FORM, text=_forming.group)
        seam.blocks(FORM, text=_forming.group)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            seam.failed(FORM, error=error)
            raise
        finally:
            seam.runs()
            _forming.group = ""
        seam.after(FORM, text=dist_seam.groups.name(_DEFAULT))
        return result

    call.__nowedge_original__ = original  # type: ignore[attr-defined]
    return call


def install() -> None:
    """Patches the making of the default process group, once per process; dormant until a seam is active."""
    if hasattr(dist.init_process_group, "__nowedge_original__"):
        return
    wrapped = _init(dist.init_process_group)
    for module in (dist, distributed_c10d):
        setattr(module, "init_process_group", wrapped)  # noqa: B010
