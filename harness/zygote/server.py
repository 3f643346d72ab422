"""The zygote's loop: start what lanes and launchers ask for, announce every death, clean up after every run."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import os
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import msgspec

from harness import plan as plans
from harness.clock import SECOND, now, pause
from harness.faults import AGAIN, Restart
from harness.interpreter import python
from harness.seam.region import MAX_PROCESSES
from harness.zygote import child, pages, wire

_REAP_SECONDS = 5
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """One process that this zygote started and has not yet reaped."""

    def __init__(self, role: str, pid: int, pidfd: int, status_out: int) -> None:
        self.role, self.pid, self.pidfd, self.status_out = role, pid, pidfd, status_out


class Run:
    """One run: its folder, its shared memory, its living processes."""

    def __init__(self, lane: socket.socket, begin: wire.Begin, fds: list[int]) -> None:
        self.lane, self.begin = lane, begin
        self.memory, self.signals, self.calls = fds
        self.plan = plans.from_json(begin.plan)
        self.children: dict[int, Child] = {}
        self.launchers: list[socket.socket] = []
        self.started = 0
        self.repeated = {fault.victim for fault in self.plan.faults if isinstance(fault, Restart)}
        self.orders: dict[str, tuple[wire.Start, list[int]]] = {}
        """How those were started that a fault starts again, with duplicates of their descriptors."""

    @property
    def folder(self) -> Path:
        return Path(self.begin.folder)


class Zygote:
    """Serves one harness process until its control socket closes."""

    def __init__(self, control: socket.socket, base: Path, lock: int) -> None:
        self._control, self._base, self._lock = control, base, lock
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ, self._on_control)
        self._runs: dict[socket.socket, Run] = {}

    def serve(self) -> None:
        """Loops until the harness is gone, then kills and removes everything that is left."""
        self._open = True
        try:
            while self._open:
                self._turn()
        finally:
            for lane in list(self._runs):
                self._finish(self._runs[lane])
            shutil.rmtree(self._base, ignore_errors=True)

    def _turn(self) -> None:
        events = self._selector.select()
        # Deaths first: whoever is told of a message must already know of a death before it.
        events.sort(key=lambda event: event[0].data.__func__ is not Zygote._on_death)
        for key, _ in events:
            if self._selector.get_map().get(key.fd) is key:
                # What was readable may have been read since: one event's handling may serve another's socket too.
                with contextlib.suppress(BlockingIOError):
                    key.data(key.fileobj)

    def _on_control(self, control: socket.socket) -> None:
        message, fds = wire.receive(control, wait=False)
        if message is None:
            self._open = False
        elif isinstance(message, wire.Lane):
            lane = socket.socket(fileno=fds[0])
            self._selector.register(lane, selectors.EVENT_READ, self._on_lane)

    def _on_lane(self, lane: socket.socket) -> None:
        message, fds = wire.receive(lane, wait=False)
        run = self._runs.get(lane)
        if message is None:
            if run is not None:
                self._finish(run)
            self._selector.unregister(lane)
            lane.close()
        elif isinstance(message, wire.Begin):
            self._runs[lane] = Run(lane, message, fds)
        elif run is None:
            _close(fds)
            _say(lane, wire.Refused("no run has begun on this lane"))
        elif isinstance(message, wire.Start):
            self._start(run, message, fds, lane)
        elif isinstance(message, wire.Signal):
            _signal(run, message)
        elif isinstance(message, wire.Again):
            order, kept = run.orders.pop(message.role)
            self._start(run, wire.Start(message.name, order.target, order.args), kept, lane)
        elif isinstance(message, wire.Ping):
            self._serve_launchers(run)
            self._announce_all(run)
            _say(lane, wire.Pong())
        elif isinstance(message, wire.Clean):
            killed, residue = self._finish(run)
            _say(lane, wire.Cleaned(killed, residue))

    def _on_launcher(self, launcher: socket.socket) -> None:
        run = next((run for run in self._runs.values() if launcher in run.launchers), None)
        message, fds = wire.receive(launcher, wait=False)
        if message is None or run is None:
            self._selector.unregister(launcher)
            launcher.close()
            if run is not None:
                run.launchers.remove(launcher)
        elif isinstance(message, wire.Start):
            self._start(run, message, fds, launcher)

    def _start(self, run: Run, order: wire.Start, fds: list[int], answer: socket.socket) -> None:
        if run.started >= MAX_PROCESSES:
            _close(fds)
            _say(answer, wire.Refused(f"a run has at most {MAX_PROCESSES} processes"))
            return
        index, run.started = run.started, run.started + 1
        if order.role in run.repeated:
            run.orders[order.role] = (order, [os.dup(fd) for fd in fds])
        theirs: socket.socket | None = None
        if order.role == "client":
            ours, theirs = wire.pair()
            run.launchers.append(ours)
            self._selector.register(ours, selectors.EVENT_READ, self._on_launcher)
        status_in, status_out = os.pipe2(os.O_CLOEXEC)
        spec = child.Spec(
            role=order.role,
            target=order.target,
            args=order.args,
            fds=fds,
            plan=run.begin.plan,
            rewrites=run.begin.rewrites.get(order.role.removesuffix(AGAIN), {}),
            memory=run.memory,
            index=index,
            signals=run.signals,
            calls=run.calls,
            log=str(run.folder / f"{order.role}.log"),
            zygote=theirs.fileno() if theirs is not None else -1,
            parent=os.getpid(),
        )
        began = now()
        pid = self._spawn(spec) if run.plan.topology.start == "spawn" else self._fork(spec)
        pidfd = os.pidfd_open(pid)
        born = Child(order.role, pid, pidfd, status_out)
        run.children[pidfd] = born
        self._selector.register(pidfd, selectors.EVENT_READ, self._on_death)
        if theirs is not None:
            theirs.close()
        _close(fds)
        started = wire.Started(order.role, pid, index, began)
        if answer is not run.lane:
            _say(answer, started, (pidfd, status_in))
        os.close(status_in)
        _say(run.lane, started)

    def _fork(self, spec: child.Spec) -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            _close_others({0, 1, 2, spec.memory, spec.signals, spec.calls, spec.zygote, *spec.fds})
            child.run(spec)
        finally:
            os._exit(child.FAILED)

    def _spawn(self, spec: child.Spec) -> int:
        source, sink = os.pipe()
        keep = [fd for fd in (source, spec.memory, spec.signals, spec.calls, spec.zygote, *spec.fds) if fd >= 0]
        process = subprocess.Popen(python("harness.zygote.child", str(source)), pass_fds=keep, close_fds=True)
        os.close(source)
        with os.fdopen(sink, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(spec))
        process.returncode = 0  # its status is read below, by pidfd: the object must not try to reap it
        return process.pid

    def _on_death(self, pidfd: int) -> None:
        for run in self._runs.values():
            if pidfd in run.children:
                self._bury(run, run.children[pidfd])
                return

    def _serve_launchers(self, run: Run) -> None:
        """Starts what this run's launchers have already asked for: a request under way is in flight."""
        for launcher in list(run.launchers):
            with contextlib.suppress(BlockingIOError):
                self._on_launcher(launcher)

    def _announce_all(self, run: Run) -> None:
        for dead in list(run.children.values()):
            if _has_ended(dead.pidfd):
                self._bury(run, dead)

    def _bury(self, run: Run, dead: Child) -> None:
        """Announces the death to the launcher and to the lane, and only then reaps."""
        info = os.waitid(os.P_PIDFD, dead.pidfd, os.WEXITED | os.WNOWAIT)
        if info is None:
            return
        status = info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
        with contextlib.suppress(OSError):
            os.write(dead.status_out, status.to_bytes(4, "little", signed=True))
        _say(run.lane, wire.Died(dead.role, dead.pid, status, now(), _starved(dead.pid)))
        os.waitid(os.P_PIDFD, dead.pidfd, os.WEXITED)
        self._selector.unregister(dead.pidfd)
        os.close(dead.status_out)
        os.close(dead.pidfd)
        del run.children[dead.pidfd]

    def _end_strays(self, run: Run) -> list[str]:
        """Ends what a process of the run had started on its own: as an orphan it has become this process's child."""
        known = {child.pid for each in self._runs.values() for child in each.children.values()}
        found = []
        for pid in _children():
            if pid in known:
                continue
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue  # it had ended and only waited to be reaped
                if not os.readlink(f"/proc/{pid}/fd/1").startswith(f"{run.folder}/"):
                    continue
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                found.append(f"process {name}")
        return found

    def _finish(self, run: Run) -> tuple[list[str], list[str]]:
        """Ends a run; returns the roles that had to be killed and the names that were left in the folder."""
        self._announce_all(run)
        killed = [left.role for left in run.children.values()]
        for left in run.children.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(left.pidfd, signal.SIGKILL)
        limit = now() + _REAP_SECONDS * SECOND
        while run.children and now() < limit:
            for left in list(run.children.values()):
                if _has_ended(left.pidfd):
                    self._bury(run, left)
            if run.children:
                pause(0.001)
        residue = [*self._end_strays(run), *([] if killed else _left_in(run.folder))]
        shutil.rmtree(run.folder, ignore_errors=True)
        for launcher in run.launchers:
            self._selector.unregister(launcher)
            launcher.close()
        _close([run.memory, run.signals, run.calls, *(fd for _, kept in run.orders.values() for fd in kept)])
        del self._runs[run.lane]
        return killed, residue


def _signal(run: Run, order: wire.Signal) -> None:
    """By pidfd, so that it can never reach a stranger; a process that has ended gets none."""
    for each in run.children.values():
        if each.role == order.role:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(each.pidfd, order.number)


def _children() -> list[int]:
    """Every process whose parent is this one, orphans of orphans included."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _has_ended(pidfd: int) -> bool:
    return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _starved(pid: int) -> float:
    """Seconds for which the main thread waited for a core; the kernel tells it until the process is reaped."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / SECOND
    except (OSError, IndexError, ValueError):
        return 0.0


def _left_in(folder: Path) -> list[str]:
    """What a clean engine would have removed: sockets and store files below the folder that it was given."""
    found = []
    for path in sorted((folder / "e").rglob("*")) if folder.exists() else []:
        kind = "socket" if stat.S_ISSOCK(path.lstat().st_mode) else "file"
        if "@" not in path.name:
            found.append(f"{kind} {path.relative_to(folder)}")
    return found


def _say(to: socket.socket, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
    """Sends to a peer that may have gone; its own socket will tell so."""
    with contextlib.suppress(OSError):
        wire.send(to, message, fds)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _close_others(keep: set[int]) -> None:
    """Closes every descriptor that the fork inherited and the child has no business with."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(name))


def main(control_fd: int, base: str) -> None:
    """Imports everything that a child will need, checks that this process is fit to fork, says so, and serves."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    lock = os.open(Path(base) / "lock", os.O_RDWR | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    control = socket.socket(fileno=control_fd)

    from harness.seam import install
    from harness.targets import preload

    install.install()
    preload()
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        wire.send(control, wire.Refused(f"the fork parent has {threads} threads; it must have one"))
        sys.exit(child.FAILED)
    gc.collect()
    gc.freeze()
    pages.collapse()
    _say(control, wire.Pong())  # a harness that has died meanwhile is noticed by the loop, which cleans up
    Zygote(control, Path(base), lock).serve()
