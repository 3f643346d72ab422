"""One lane: runs plans on real processes, one after another. It watches, asks, heals, cleans up; it never judges.

The order of a run: the workload with its faults; then, when the client program asks for it, what stands of the faults
is healed, and it makes its demand; then, if it is done, the time that the engine's processes may take to leave by
themselves; then the clean-up event, after which nothing counts for the engine.
"""

from __future__ import annotations

import os
import select
import socket
from pathlib import Path

from msgspec import structs

from harness import plan as plans
from harness import stillness, waits
from harness.clock import MS, SECOND, now, seconds_since, sleep_until
from harness.faults import Block, OnFrames, Store
from harness.faults.long_path import engine_folder
from harness.history import DoubleLook, Event, Frame, History, Look, Outsiders, Process, merge
from harness.plan import Plan
from harness.proxy import FrameRule, Leg, Proxy, ProxyError, RunEnd, Status
from harness.seam import disk, region
from harness.seam.flags import Flags
from harness.seam.region import Region
from harness.targets import Target, get
from harness.world import stacks
from harness.world.account import fault_counts, frames_of, tail
from harness.world.deeds import Deeds
from harness.world.folders import run_folder
from harness.world.heartbeat import Heartbeat, starved
from harness.world.look import look
from harness.zygote import wire

QUIET = 10 * MS
"""How long nothing must have succeeded before a look is worth its cost (nanoseconds)."""

SUSPICION = 2 * SECOND
"""How long a wedge that cannot be proved must stand before the run is given up for it (nanoseconds)."""

LOOK_AGAIN_MAX = 75 * MS
"""The longest pause between two tries to look, while nothing says when the silence will end (nanoseconds)."""

LEAVE_BEAT = 200 * MS
_LEAVE_SECONDS = 4.0


class LaneError(Exception):
    """The zygote or the proxy of this lane is gone; the run cannot be judged."""


class Lane:
    """Runs plans with one socket to the zygote and one proxy. Used by one thread at a time."""

    def __init__(
        self, zygote: socket.socket, base: Path, name: str, heartbeat: Heartbeat, leave: float, stacks: bool
    ) -> None:
        self._zygote, self._base, self._name = zygote, base, name
        self.heartbeat = heartbeat
        self.leave = leave
        """For how many seconds a wedge is watched on, once it is one."""
        self.stacks = stacks
        """Whether the stacks of its processes are taken then."""
        self._proxy: Proxy | None = None
        self._runs = 0

    def close(self) -> None:
        """Gives back the socket and ends the proxy."""
        self._zygote.close()
        if self._proxy is not None:
            self._proxy.stop()

    def proxy(self) -> Proxy:
        """This lane's proxy process, started when a plan first needs one."""
        if self._proxy is None:
            self._proxy = Proxy()
        return self._proxy

    def run(self, plan: Plan, golden: dict[str, tuple[int, ...]], versions: dict[str, str]) -> History:
        """Runs one plan. Raises LaneError when the harness itself is broken; never leaves anything behind."""
        self._runs += 1
        folder = self._base / f"{self._name}.{self._runs}"
        folder.mkdir(mode=0o700)
        with run_folder(folder, plan):
            run = _Run(self, plan, folder)
            try:
                try:
                    run.begin()
                    run.watch()
                finally:
                    history = run.finish(golden, versions)
            except ProxyError as error:
                self._drop_proxy()
                raise LaneError(f"the proxy of a lane: {error}") from error
        return history

    def _drop_proxy(self) -> None:
        """Whatever is wrong with the proxy, the next run has a new one."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy.stop()

    def execute(self, target: str, args: list[str | int | bytes], fds: tuple[int, ...], role: str) -> None:
        """Runs one function in a forked child that belongs to no plan, and waits for its end."""
        self._runs += 1
        folder = self._base / f"{self._name}.{self._runs}"
        folder.mkdir(mode=0o700)
        run = _Run(self, Plan(), folder)
        try:
            run.begin_bare()
            self.send(wire.Start(role, target, args), fds)
            while not run.ended():
                run.receive(None)
        finally:
            run.finish({}, {})

    def send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self._zygote, message, fds)
        except OSError as error:
            raise LaneError(f"the zygote is gone ({error.strerror})") from None

    @property
    def socket(self) -> socket.socket:
        return self._zygote


class _Run:
    """One run under way."""

    def __init__(self, lane: Lane, plan: Plan, folder: Path) -> None:
        self._lane, self._plan, self._folder = lane, plan, folder
        self._engine_folder = engine_folder(folder, plan.faults)
        self._target: Target = get(plan.target)
        self._slices = self._target.slices(plan)
        self._began = now()
        self._horizon = self._began + int(plan.budget * SECOND)
        self._memory = region.create()
        self._regions: dict[str, Region] = {}
        self._processes: dict[str, Process] = {}
        self._proxied = bool(plan.proxied)
        self._proxy_begun = False
        self._look: DoubleLook | None = None
        self._left, self._moved = 0.0, False
        self._standing: tuple[dict[str, int], int] = ({}, 0)
        self._stacks: dict[str, str] = {}
        self._why: str = "budget"
        self._clean: wire.Cleaned | None = None
        self._refused = ""
        self._pong = False
        self._begun = False
        """Whether the zygote knows of the run."""
        self._suspected_since: int | None = None
        self._deeds = Deeds(plan, lane.send, Flags(self._memory, region.FLAGS_AT), self._relieve)

    # Beginning

    def begin(self) -> None:
        """Tells the proxy and the zygote of the run and starts the client program."""
        self._tell_zygote(self._begin_proxy() if self._proxied else {})
        args: list[str | int | bytes] = [plans.to_json(self._plan), str(self._engine_folder)]
        self._lane.send(wire.Start("client", self._target.client, args))

    def begin_bare(self) -> None:
        """Tells the zygote of a run without plan, proxy or client."""
        self._tell_zygote({})

    def _tell_zygote(self, rewrites: dict[str, dict[str, str]]) -> None:
        calls = self._deeds.hand_over()
        nobody = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            signals = self._lane.proxy().signal_fd if self._proxied else nobody
            begin = wire.Begin(str(self._folder), plans.to_json(self._plan), rewrites)
            self._lane.send(begin, (self._memory, signals, calls))
            self._begun = True
        finally:
            os.close(nobody)
            os.close(calls)

    def _begin_proxy(self) -> dict[str, dict[str, str]]:
        legs: list[Leg] = []
        rewrites: dict[str, dict[str, str]] = {}
        for link in self._plan.proxied:
            for role in self._target.connectors(link, self._plan):
                upstream = f"ipc://{self._engine_folder}/{self._target.endpoint(link, role, self._plan)}"
                listen = f"{upstream}@{role}"
                legs.append(Leg(link, role, self._target.binder(link), listen, upstream))
                rewrites.setdefault(role, {})[upstream] = listen
        rules = [self._rule(i, fault) for i, fault in enumerate(self._plan.faults) if isinstance(fault, OnFrames)]
        module = type(self._target).__module__
        self._lane.proxy().begin(legs, rules, classify=f"{module}:classify", foreign=f"{module}:foreign")
        self._proxy_begun = True
        return rewrites

    def _rule(self, index: int, fault: OnFrames) -> FrameRule:
        kind = self._target.frame(fault.link, fault.frame, self._plan)
        rule = fault.rule(index, kind)
        # Both ends send commands such as READY, and a victim's join is its own, unless the plan says otherwise.
        return structs.replace(rule, direction="to_binder") if kind.isupper() and rule.direction == "either" else rule

    # Watching

    def watch(self) -> None:
        """Returns when the client program and all it started have ended, a wedge stands, or the budget is spent."""
        progress, quiet_since, pause = -1, now(), QUIET
        next_look = quiet_since + QUIET
        while now() < self._horizon:
            self.receive(min(next_look, self._horizon))
            if self.ended():
                self._why = "done"
                return
            if self._client_ended():
                self._let_leave()
                return
            reached = self._progress()
            if reached != progress:
                progress, quiet_since, pause = reached, now(), QUIET
                self._suspected_since = None
                next_look = quiet_since + QUIET
            elif now() >= next_look and self._regions:
                ends = self._double_look()
                if self._look is not None:
                    self._why = "wedge"
                    self._leave_alone()
                    if self._lane.stacks:
                        self._stacks = stacks.collect(self._alive, self._folder)
                    return
                pause = min(pause * 3 // 2, LOOK_AGAIN_MAX)
                next_look = max(now() + pause, min(ends or 0, now() + 2 * SECOND))

    def _leave_alone(self) -> None:
        """Watches a wedge for as long as was asked, and notes whether anything moved after all.

        What moved before the first of the two looks, be it a moment, is none of the wedge's.
        """
        began = now()
        while not self._moved and seconds_since(began) < self._lane.leave:
            self.receive(began + int(self._lane.leave * SECOND))
            self._moved = (self._alive, self._progress()) != self._standing
        self._left = seconds_since(began) if self._lane.leave else 0.0

    def _progress(self) -> int:
        """How many calls at the seam have succeeded in all processes together."""
        return sum(found.progress for found in self._regions.values())

    @property
    def _alive(self) -> dict[str, int]:
        """The processes that live, by role."""
        return {role: process.pid for role, process in self._processes.items() if process.status is None}

    def ended(self) -> bool:
        """Whether every process that was started has ended (and at least one was), and none is still to begin."""
        ended = bool(self._processes) and all(process.status is not None for process in self._processes.values())
        return ended and not self._deeds.bearing

    def _client_ended(self) -> bool:
        client = self._processes.get("client")
        return client is not None and client.status is not None

    def _let_leave(self) -> None:
        """The client program has ended: what it started has a bounded time to follow by itself."""
        self._why = "done"
        self._heal()
        if self._proxy_begun:
            self._lane.proxy().heal()
        began = now()
        while not self.ended() and self._spent(began) < _LEAVE_SECONDS:
            self.receive(now() + LEAVE_BEAT)

    def _heal(self) -> None:
        """Undoes what can be undone of the plan's faults."""
        self._deeds.heal()
        disk.drain(self._engine_folder)

    def _relieve(self) -> None:
        """Before the demand: undoes what stands of faults that have begun; those of the tear-down are still to come."""
        blocking = [i for i, fault in enumerate(self._plan.faults) if isinstance(fault, Block | Store)]
        if blocking:
            events = (event for found in self._regions.values() for event in found.events())
            begun = {event.number for event in events if event.site == "fault.fired"}
            for index in begun.intersection(blocking):
                self._deeds.let_go(index)
        if self._proxy_begun:
            for index in {hold.rule for hold in self._lane.proxy().status().held}:
                self._lane.proxy().release(index)
        disk.drain(self._engine_folder)

    def _spent(self, began: int) -> float:
        """Seconds since ``began`` in which the machine ran at all."""
        return seconds_since(began) - self._lane.heartbeat.stalled(began, now())

    def receive(self, until: int | None) -> None:
        """Takes in what the zygote says, at most until ``until`` (nanoseconds; None: for ever) if it is silent.

        Returns earlier if a stop has something to do, which is then done.
        """
        times = [time for time in (until, self._deeds.next()) if time is not None]
        poller = select.poll()
        poller.register(self._lane.socket, select.POLLIN)
        if self._deeds.heard >= 0:
            poller.register(self._deeds.heard, select.POLLIN)
        ready = dict(poller.poll(max(0.0, (min(times) - now()) / MS) if times else None))
        self._deeds.act(self._processes)
        if self._lane.socket.fileno() not in ready:
            return
        message, fds = wire.receive(self._lane.socket)
        for fd in fds:
            os.close(fd)
        if message is None:
            raise LaneError("the zygote is gone")
        self._take(message)

    def _take(self, message: wire.Message) -> None:
        if isinstance(message, wire.Started):
            self._processes[message.role] = Process(message.role, message.pid, message.t)
            self._regions[message.role] = Region(self._memory, message.index)
        elif isinstance(message, wire.Died):
            born = self._processes[message.role]
            self._processes[message.role] = Process(
                born.role, born.pid, born.started, message.t, message.status, "itself", starved=message.starved
            )
        elif isinstance(message, wire.Pong):
            self._pong = True
        elif isinstance(message, wire.Cleaned):
            self._clean = message
        elif isinstance(message, wire.Refused):
            raise LaneError(message.why)

    def _double_look(self) -> int | None:
        """Looks twice; keeps the looks if a wedge stands on them. Returns when a timer ends the silence, if any."""
        first = self._look_once()
        if first is None:
            return None
        gap = max(
            (stillness.gap_needed(p, self._horizon, first.began, self._slices) for p in first.processes), default=0
        )
        outsiders = self._ask_outsiders()
        if outsiders is None:
            return None
        sleep_until(first.ended + gap)
        standing = self._alive, self._progress()
        second = self._look_once()
        if second is None:
            return None
        looks = DoubleLook(first, outsiders, second, self._horizon)
        events = merge(event for found in self._regions.values() for event in found.events())
        tested = stillness.test(looks, waits.thread_names(events), self._target.watches, self._slices)
        if tested.stopped and tested.ends_at is None:
            self._heal()  # nothing else is left that could act
        if not tested.still:
            return None
        if tested.ends_at is None:
            certificate = waits.examine(self._history(events, looks, now()), self._target)
            if certificate is not None and self._stands(certificate.grade, looks):
                self._look, self._standing = looks, standing
        return tested.ends_at

    def _stands(self, grade: str, looks: DoubleLook) -> bool:
        """A proof stands at once. A suspicion must outlast what nobody knows of: the same stillness for a while."""
        if grade == "proved":
            return True
        if self._suspected_since is None:
            self._suspected_since = looks.a.began
        return looks.b.ended - self._suspected_since >= SUSPICION

    def _look_once(self) -> Look | None:
        alive = self._alive
        return look(alive, self._regions) if alive else None

    def _ask_outsiders(self) -> Outsiders | None:
        """None if a death was announced meanwhile: then the looks are of different worlds."""
        before = {role for role, process in self._processes.items() if process.status is not None}
        self._pong = False
        self._lane.send(wire.Ping())
        while not self._pong:
            self.receive(None)
        if before != {role for role, process in self._processes.items() if process.status is not None}:
            return None
        due = self._deeds.clocked
        if not self._proxy_begun:
            return Outsiders(harness_due=due)
        status: Status = self._lane.proxy().status()
        timer = status.next_timer_ns
        held = tuple(sorted({hold.rule for hold in status.held}))
        return Outsiders(0, status.quiet, -1 if timer is None else timer, held, due)

    # Ending

    def _clean_up(self) -> wire.Cleaned:
        """Lets the zygote end and remove all that is left; there is nothing if it was never told of the run."""
        if not self._begun:
            return wire.Cleaned([], [])
        self._lane.send(wire.Clean())
        while self._clean is None:
            self.receive(None)
        return self._clean

    def finish(self, golden: dict[str, tuple[int, ...]], versions: dict[str, str]) -> History:
        """The clean-up event, the clean-up, the census, and the history of it all."""
        cleanup = now()
        self._deeds.close()
        logs = {role: tail(self._folder / f"{role}.log") for role in self._processes}
        ended: RunEnd | None = None
        try:
            ended = self._lane.proxy().end() if self._proxy_begun else None
        finally:
            clean = self._clean_up()
        events = merge(event for found in self._regions.values() for event in found.events())
        lost = sum(found.lost for found in self._regions.values())
        for found in self._regions.values():
            found.close()
        os.close(self._memory)
        killed = set(clean.killed)
        processes = [
            Process(
                p.role,
                p.pid,
                p.started,
                p.ended,
                p.status,
                "cleanup" if p.role in killed else "itself",
                logs.get(role, ""),
                p.starved,
            )
            for role, p in self._processes.items()
        ]
        return History(
            plan=self._plan,
            began=self._began,
            cleanup=cleanup,
            ended=self._why,  # type: ignore[arg-type]
            events=events,
            processes=tuple(processes),
            frames=frames_of(ended.records) if ended is not None else (),
            faults=fault_counts(self._plan, events, ended),
            golden=golden,
            residue=tuple(clean.residue),
            look=self._look,
            lost_events=lost,
            stalled=self._lane.heartbeat.stalled(self._began, cleanup) + starved(p.starved for p in processes),
            left_alone=round(self._left, 3),
            moved=self._moved,
            stacks=self._stacks,
            versions=versions,
        )

    def _history(self, events: tuple[Event, ...], looks: DoubleLook, at: int) -> History:
        """The history so far, for the question whether the looks show a wedge."""
        frames: tuple[Frame, ...] = ()
        if self._proxy_begun:
            frames = frames_of(self._lane.proxy().ledger().records)
        return History(
            self._plan, self._began, at, "wedge", events, tuple(self._processes.values()), frames=frames, look=looks
        )
