"""The real world: real processes, real gloo, real libzmq, real SIGKILL, in one or several lanes.

Everything of a world lives below one folder with a lock on it: the zygote removes it when this process ends, however it
ends; if the zygote itself was killed, the next world sweeps what is left, since nobody holds its lock any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from harness.history import History
from harness.plan import Plan, PlanError, check
from harness.targets import get
from harness.world.heartbeat import Heartbeat
from harness.world.lane import Lane, LaneError
from harness.zygote.handle import ZygoteError, ZygoteHandle

_PREFIX = "nowedge-world-"
_LONGEST_FOLDER = 70
"""Bytes that the world's folder may have, so that every socket path below it fits into the kernel's 107."""

_GOLDEN_TOKENS = 8
"""How many reference tokens are made at least: a plan with a longer request then seldom needs the reference again."""


class WorldError(Exception):
    """The harness cannot run plans here, or broke while it did; one clear sentence."""


class RealWorld:
    """A zygote and some lanes. Thread-safe; a context manager; nothing is left when it closes or its process dies.

    ``leave``: for so many seconds a wedge is left alone and watched, so that a wrong proof shows itself. ``stacks``:
    the stacks of a wedge's processes are taken, which costs some tenths of a second.
    """

    def __init__(self, lanes: int = 1, leave: float = 0.0, stacks: bool = False) -> None:
        if lanes < 1:
            raise WorldError(f"lanes: {lanes}; at least 1")
        self._leave, self._stacks = leave, stacks
        _sweep()
        self._base, self._lock = _fresh_folder()
        self._golden: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
        self._golden_lock = threading.Lock()
        self._closed = False
        self._versions = _versions()
        self._count = lanes
        self._made: list[Lane] = []
        self._free: queue.Queue[Lane] = queue.Queue()
        self._making = threading.Lock()
        self._zygote = ZygoteHandle(self._base)
        self._heartbeat = Heartbeat()

    @staticmethod
    def default_lanes() -> int:
        """How many lanes keep this machine busy: a lane mostly sleeps, so two to three for each core."""
        return max(2, min(12, 2 * len(os.sched_getaffinity(0))))

    @property
    def lanes(self) -> int:
        return self._count

    @property
    def zygote_pid(self) -> int:
        return self._zygote.pid

    def run(self, plan: Plan) -> History:
        """Runs one plan on a free lane. Raises PlanError for a plan that the target cannot run, and WorldError."""
        check(plan)
        get(plan.target).check(plan)
        lane = self._take()
        try:
            golden = self._golden_of(plan, lane)
            return lane.run(plan, golden, self._versions)
        except (LaneError, ZygoteError, OSError) as error:
            raise WorldError(str(error)) from error
        finally:
            self._free.put(lane)

    def run_many(self, plans: Iterable[Plan]) -> Iterator[tuple[Plan, History]]:
        """Runs plans on all lanes, pulling them lazily; yields each with its history, in the order of completion."""
        results: queue.Queue[tuple[Plan, History] | BaseException | None] = queue.Queue()
        source, lock, stop = iter(plans), threading.Lock(), threading.Event()

        def work() -> None:
            try:
                while not stop.is_set():
                    with lock:
                        plan = next(source, None)
                    if plan is None:
                        break
                    results.put((plan, self.run(plan)))
            except BaseException as error:
                results.put(error)
            finally:
                results.put(None)

        workers = [threading.Thread(target=work, name=f"lane-{index}", daemon=True) for index in range(self._count)]
        for worker in workers:
            worker.start()
        left = len(workers)
        try:
            while left:
                result = results.get()
                if result is None:
                    left -= 1
                elif isinstance(result, BaseException):
                    raise result
                else:
                    yield result
        finally:
            stop.set()
            for worker in workers:
                worker.join()

    def close(self) -> None:
        """Ends every process and removes every trace. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for lane in self._made:
            lane.close()
        self._zygote.close()
        self._heartbeat.stop()
        shutil.rmtree(self._base, ignore_errors=True)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _take(self) -> Lane:
        if self._closed:
            raise WorldError("this world is closed")
        with contextlib.suppress(queue.Empty):
            return self._free.get_nowait()
        with self._making:
            if len(self._made) < self._count:
                try:
                    lane = Lane(
                        self._zygote.lane(),
                        self._base,
                        f"l{len(self._made)}",
                        self._heartbeat,
                        self._leave,
                        self._stacks,
                    )
                except ZygoteError as error:
                    raise WorldError(str(error)) from None
                self._made.append(lane)
                return lane
        return self._free.get()

    def _golden_of(self, plan: Plan, lane: Lane) -> dict[str, tuple[int, ...]]:
        """The reference tokens of each request, from one process without any parallelism.

        Greedy decoding of a prompt is one sequence, of which a request takes a beginning: each is made once.
        """
        model, requests = plan.engine.model, plan.workload.requests
        with self._golden_lock:
            wanted = {
                request.prompt: max(request.max_tokens, _GOLDEN_TOKENS)
                for request in requests
                if len(self._golden.get((model, request.prompt), ())) < request.max_tokens
            }
            if wanted:
                made = self._reference(plan, [(model, prompt, count) for prompt, count in wanted.items()], lane)
                self._golden.update({(model, prompt): tokens for prompt, tokens in zip(wanted, made, strict=True)})
            return {
                f"r{index}": self._golden[model, request.prompt][: request.max_tokens]
                for index, request in enumerate(requests)
            }

    def _reference(
        self, plan: Plan, wanted: list[tuple[str, tuple[int, ...], int]], lane: Lane
    ) -> list[tuple[int, ...]]:
        answer = os.memfd_create("nowedge-golden", os.MFD_CLOEXEC)
        try:
            lane.execute(get(plan.target).reference, [msgspec.msgpack.encode(wanted)], (answer,), "reference")
            os.lseek(answer, 0, os.SEEK_SET)
            data = os.read(answer, 16 << 20)
        finally:
            os.close(answer)
        try:
            return [tuple(tokens) for tokens in msgspec.msgpack.decode(data, type=list[list[int]])]
        except msgspec.DecodeError:
            raise WorldError("the reference model gave no tokens") from None


def _fresh_folder() -> tuple[Path, int]:
    try:
        base = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise WorldError(f"cannot make a folder for runs: {error}; set TMPDIR to a writable folder") from None
    if len(os.fsencode(base)) > _LONGEST_FOLDER:
        base.rmdir()
        raise WorldError(
            f"the folder for runs, {base}, is too long for socket paths below it; set TMPDIR to a shorter one"
        )
    lock = os.open(base / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return base, lock


def _sweep() -> None:
    """Removes the folders of worlds whose processes are all gone."""
    for base in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(base / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(base, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(lock)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("nowedge", "torch", "pyzmq", "hypothesis"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


__all__ = ["PlanError", "RealWorld", "WorldError"]
