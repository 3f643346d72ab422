"""The first code of every process of a run: name it, wire up its seam, run the target, note its exit."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from harness import plan as plans
from harness.faults.long_path import engine_folder
from harness.seam import call_seam, dist_seam, install, region, zmq_seam
from harness.seam.disk import Disk
from harness.seam.flags import Flags
from harness.seam.region import Recorder
from harness.seam.site import Outlets, activate, active, deactivate

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
STACKS = signal.SIGRTMAX
"""At this signal a process of a run writes its stacks into its log."""

FAILED = 70
"""Exit status of a child in which the harness's own bootstrap, or the target with an uncaught exception, failed."""


class Spec(Struct, frozen=True):
    """All that a child needs to know; descriptors are its own numbers."""

    role: str
    target: str
    args: list[Any]
    fds: list[int]
    plan: bytes
    rewrites: dict[str, str]
    memory: int
    index: int
    signals: int
    calls: int
    log: str
    zygote: int
    parent: int


def run(spec: Spec) -> None:
    """Runs the target in this process and never returns: the process exits with the target's status."""
    status = FAILED
    try:
        _die_with(spec.parent)
        _log_to(spec.log)
        _name(spec.role)
        status = _target(spec)
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        if active() is None:
            os._exit(status)
    os._exit(status)


def _target(spec: Spec) -> int:
    from harness.targets import get

    plan = plans.from_json(spec.plan)
    target = get(plan.target)
    recorder = Recorder(spec.memory, spec.index, spec.role)
    outlets = Outlets(
        signals=spec.signals,
        calls=spec.calls,
        flags=Flags(spec.memory, region.FLAGS_AT),
        squat=zmq_seam.squat,
        change=dist_seam.change,
        adjust=zmq_seam.adjust,
        before_store=dist_seam.before_store,
        disk=Disk(
            engine_folder(Path(spec.log).parent, plan.faults),
            lambda link: [target.endpoint(link, role, plan) for role in target.connectors(link, plan)],
            target.leave_lock,
        ),
    )
    seam = install.begin(recorder, plan.faults, outlets, target, spec.rewrites, target.group_name)
    for plugin in plan.engine.plugins:
        importlib.import_module(plugin)
    for site in plan.calls:
        call_seam.install(site)
    activate(seam)
    seam.life("start")
    module, _, function = spec.target.partition(":")
    entry = getattr(importlib.import_module(module), function)
    if spec.zygote >= 0 and spec.role == "client":
        from harness.zygote.factory import ZygoteFactory

        result = entry(*spec.args, factory=ZygoteFactory(spec.zygote))
    else:
        result = entry(*spec.args, spec.fds)
    return int(result or 0)


def _die_with(parent: int) -> None:
    """Ends this process when the zygote dies: the last net under an undertaker that was itself killed."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _log_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    faulthandler.register(STACKS, file=2)


def _name(role: str) -> None:
    multiprocessing.current_process().name = role
    ctypes.CDLL(None).prctl(_PR_SET_NAME, role.encode()[:15], 0, 0, 0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            deactivate()


def main() -> None:
    """Entry of a spawned child: the spec comes on the descriptor named by the first argument."""
    with os.fdopen(int(sys.argv[1]), "rb") as source:
        spec = msgspec.msgpack.decode(source.read(), type=Spec)
    needs_torch = spec.role != "client"
    install.install(torch=needs_torch)
    run(spec)


if __name__ == "__main__":
    main()
