"""A rank process: start-up, the busy loops of rank 0 and of rank k, and how each leaves.

Order of start: rank 0 says HELLO and is told where the clients are; it binds the relay; all form the group; ranks >= 1
connect to the relay; each loads its shard; all join the relay; rank 0 connects to the clients and says READY; each
reports ready. With one rank there is neither group nor relay.
"""

from __future__ import annotations

import contextlib
import logging
import signal

import torch
import zmq

from engine import relay
from engine.agreement import Agreement
from engine.clock import Deadline, now
from engine.config import Launch
from engine.control import Control, config_digest
from engine.core import EngineCore
from engine.endpoints import Endpoints
from engine.errors import Accused, DeadlineExceeded, ExitCode, LauncherGone, PeerFailed, StopRequested
from engine.lifeline import Lifeline, Reporter
from engine.log import role_logger
from engine.messages import CLIENT_ROLE, FailedReport, Init, PhaseReport, ReadyReport, Welcome, rank_role
from engine.model.llama import Llama
from engine.parallel.group import TensorGroup
from engine.ports import Incoming, Ports
from engine.pulse import Pulse
from engine.relay.frames import Fail
from engine.relay.numbered import FOLLOW_MARGIN
from engine.startup import StartupLink
from engine.workers import LocalWorkers, RankWorkers, Workers

ARRIVAL_LIMIT = 0.25
"""Seconds for what a client sent before it ordered a stop to arrive, when nothing of it is to be served any more."""

SHUTTING_DOWN = "the engine is shutting down"
"""What every request and call is told that a stop ends, or that comes after it."""


def rank_main(config: bytes, rank: int, fds: list[int]) -> None:
    """Run rank `rank` until it is told to stop or fails; always ends with SystemExit carrying an :class:`ExitCode`.

    `config` is an encoded :class:`engine.config.Launch`; `fds` are the read end of the lifeline, the write end of the
    report pipe, the claim on the engine's directory, which is held open until the process's end, and the pulse table.
    """
    # Ctrl-C reaches every process of a terminal, SIGTERM every process of a service; the launcher alone decides what
    # follows from it, for it may want to finish what is under way.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    torch.set_num_threads(1)
    launch = Launch.decode(config)
    process = RankProcess(launch, rank, fds)
    raise SystemExit(int(process.run()))


class RankProcess:
    """All that one rank holds."""

    def __init__(self, launch: Launch, rank: int, fds: list[int]) -> None:
        self._launch = launch
        self._config = launch.config
        self._rank = rank
        self._roles = [rank_role(peer, launch.engine_index) for peer in range(self._config.tp_size)]
        self._role = self._roles[rank]
        self._log = role_logger(self._role, self._config.log_level)
        self._reporter = Reporter(fds[1])
        self._startup = Deadline(launch.startup_at)
        self._lifeline = Lifeline(
            fds[0],
            self._reporter,
            role=self._role,
            startup=self._startup,
            stop_grace=self._config.timeouts.shutdown,
            remove_on_orphan=launch.directory if launch.private else None,
        )
        self._endpoints = Endpoints(launch.directory, launch.private)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pulse = Pulse(fds[3], rank, self._config.tp_size)
        self._group = TensorGroup(
            rank, self._roles, self._lifeline, bounded=not self._config.unbounded, beat=self._pulse.beat
        )
        self._agreement = Agreement(self._group, self._config.digest_interval)
        self._control: Control | None = None
        self._relay: relay.Relay | None = None
        self._startup_link: StartupLink | None = None
        self._ports: Ports | None = None
        self._workers: Workers = LocalWorkers(self._role)
        self._iterations = 0

    def run(self) -> ExitCode:
        """Start, serve, leave. Every way out comes by here."""
        try:
            core = self._start()
            if self._ports is not None:
                self._lead(core, self._ports)
            else:
                self._follow(core)
            code = ExitCode.STOPPED
        except StopRequested:
            code = ExitCode.STOPPED
        except PeerFailed as error:
            # A peer that has lost the launcher too may be the first to say so.
            orphaned = self._lifeline.orphaned
            code = self._fail(ExitCode.LAUNCHER_GONE if orphaned else ExitCode.PEER_FAILED, error.culprit, error.cause)
        except Accused as error:
            code = self._fail(ExitCode.OWN_FAILURE, self._role, error.cause)
        except DeadlineExceeded as error:
            code = self._fail(ExitCode.DEADLINE, error.culprit, error.cause)
        except LauncherGone as error:
            code = self._fail(ExitCode.LAUNCHER_GONE, "", str(error))
        except Exception as error:
            self._log.error("failed", exc_info=True)
            code = self._fail(ExitCode.OWN_FAILURE, self._role, f"{type(error).__name__}: {error}")
        if code is ExitCode.LAUNCHER_GONE:
            self._lifeline.clear_orphaned()
        try:
            self._close(code)
        except Exception:
            self._log.error("could not close everything", exc_info=True)
        return code

    # ---- start ----

    def _start(self) -> EngineCore:
        init = self._hello() if self._rank == 0 else None
        link = self._open_relay() if self._config.tp_size > 1 else None
        if self._control is not None:
            self._workers = RankWorkers(self._rank, self._roles, self._control, self._lifeline)
        self._phase("model")
        model = Llama(self._config.model_config, self._group)
        core = EngineCore(model, self._config, self._launch.epoch, self._workers)
        began = now()
        join = relay.JoinReport(0, 0)
        if link is not None:
            self._phase("join")
            if self._control is not None and self._rank == 0:
                # Not before: what a rank says is answered in the join, where all can hear the answer.
                self._lifeline.attach(self._control)
            join = link.join(self._startup)
        milliseconds = (now() - began) * 1000
        if init is not None:
            self._phase("connect")
            self._connect(init)
        self._lifeline.ready()
        self._reporter.send(ReadyReport(join.joined, join.rounds, milliseconds))
        if self._startup_link is not None:
            self._startup_link.close()
            self._log.info("ready: %d ranks joined in %d rounds, %.0f ms", join.joined, join.rounds, milliseconds)
        return core

    def _hello(self) -> Init:
        self._phase("hello")
        link = self._startup_link = StartupLink(self._context, self._launch, self._lifeline)
        limit = self._startup.sooner(Deadline.after(self._config.timeouts.handshake))
        return link.hello(self._endpoints.address("startup"), limit)

    def _connect(self, init: Init) -> None:
        """Rank 0, when all ranks have joined: to the clients, and word of it to the launcher."""
        config, launch = self._config, self._launch
        ports = self._ports = Ports(self._context, launch.engine_index, self._lifeline, config.client_count)
        longest = config.model_config.max_length
        ports.connect(init, Welcome(launch.epoch, launch.engine_index, 0, longest, config.num_pages, config.page_size))
        if self._startup_link is not None:
            self._startup_link.ready()

    def _open_relay(self) -> relay.Relay:
        """Rank 0 binds before the group is formed and the others connect after it, so nobody connects to nothing."""
        self._phase("relay")
        timeouts = self._config.timeouts
        control = self._control = Control(
            self._context,
            self._rank,
            self._roles,
            self._launch.epoch,
            config_digest(self._launch),
            lambda: self._group.place,
        )
        seat = relay.RelaySeat(
            rank=self._rank,
            roles=self._roles,
            address=self._endpoints.address,
            epoch=self._launch.epoch,
            high_water=self._config.relay_high_water,
            handshake_limit=timeouts.handshake,
            step_limit=self._config.step_limit,
            context=self._context,
            group=self._group,
            lifeline=self._lifeline,
            control=control,
        )
        link = self._relay = relay.create(self._config.relay, seat)
        if self._rank == 0:
            control.open(self._endpoints.address("control"))
            link.open()
        self._phase("group")
        self._group.form(self._endpoints.store)
        if self._rank > 0:
            control.connect(self._endpoints.address("control"))
            link.connect()
        return link

    def _phase(self, phase: str) -> None:
        self._lifeline.phase(phase)
        self._reporter.send(PhaseReport(phase))
        self._lifeline.check(stop=False)

    # ---- service ----

    def _lead(self, core: EngineCore, ports: Ports) -> None:
        """Rank 0: iterations until the launcher says stop, which is obeyed between them only."""
        try:
            while True:
                self._lifeline.check()
                self._iterate(core, ports, block=True)
        except StopRequested:
            self._wind_down(core, ports)
            raise

    def _iterate(self, core: EngineCore, ports: Ports, *, block: bool) -> None:
        """Take messages, tell the ranks, step, send. If `block`, an idle engine waits for a message."""
        idle = not core.has_work()
        taken = self._departures(core, ports)
        taken += ports.take(block=block and idle and not taken)
        if idle and not taken:
            self._note_links(ports)
            return
        self._arm()
        self._pulse.begin()
        self._note_links(ports)  # in the step: whatever was taken and not served yet is owed by it
        if self._relay is not None:
            self._relay.lead([incoming.raw for incoming in taken], idle=idle)
        result = core.step([incoming.message for incoming in taken], ports.late_aborts)
        self._agree(core)
        ports.send(result)
        self._note_links(ports)
        self._pulse.end(more=core.has_work())

    def _departures(self, core: EngineCore, ports: Ports) -> list[Incoming]:
        """What ends the requests of the clients that have left, on all ranks alike."""
        aborts = []
        for client_index in self._lifeline.departed():
            ports.drop(client_index)
            if request_ids := core.live(client_index):
                aborts.append(Incoming.abort(request_ids, client_index))
        return aborts

    def _wind_down(self, core: EngineCore, ports: Ports) -> None:
        """Rank 0, asked to stop: finish what is under way if there is time for it, answer the rest, take all along."""
        ports.expect(self._lifeline.said)
        if self._lifeline.draining:
            ports.refuse(SHUTTING_DOWN, waiting=False)
            while (core.has_work() or ports.waiting or ports.expecting) and self._lifeline.draining:
                if not core.has_work() and not ports.waiting:
                    ports.await_expected(self._lifeline.drain_until)
                self._iterate(core, ports, block=False)
                self._lifeline.check(stop=False)
        ports.await_expected(Deadline.after(ARRIVAL_LIMIT).sooner(self._lifeline.drain_until))
        for client_index in self._lifeline.departed():
            ports.drop(client_index)
        ports.refuse(SHUTTING_DOWN, waiting=True)
        idle = not core.has_work()
        ports.send(core.close(SHUTTING_DOWN))
        self._note_links(ports)  # so that every client knows whether it has them all
        if self._relay is not None:
            self._arm()
            self._relay.stop(idle=idle)

    def _note_links(self, ports: Ports) -> None:
        for client_index, (taken, sent) in enumerate(ports.numbers):
            self._pulse.link(client_index, taken, sent)

    def _follow(self, core: EngineCore) -> None:
        """Rank k: step as rank 0 says."""
        link = self._relay
        if link is None:
            raise RuntimeError("a rank above 0 has no relay")
        while True:
            raws = link.follow(idle=not core.has_work())
            self._arm()
            self._pulse.begin()
            core.step(raws)
            self._agree(core)
            self._pulse.end()

    def _arm(self) -> None:
        self._iterations += 1
        margin = 0.0 if self._rank == 0 else FOLLOW_MARGIN
        deadline = Deadline.after(self._config.step_limit).later_by(margin)
        self._group.arm(deadline, f"step {self._iterations}")
        self._workers.arm(deadline)

    def _agree(self, core: EngineCore) -> None:
        """Before a step's outputs are sent. Nothing is compared with an unbounded relay, as in its report."""
        if not self._config.unbounded:
            self._agreement.step_done(core.digest)

    # ---- leaving ----

    def _fail(self, code: ExitCode, culprit: str, cause: str) -> ExitCode:
        """Say what happened to everyone who may still listen."""
        # What the launcher's own side wanted is no news to whoever reads its terminal.
        level = logging.INFO if culprit == CLIENT_ROLE else logging.WARNING
        self._log.log(level, "leaving with %s: %s: %s", code.name, culprit or "unknown", cause)
        self._lifeline.leave(code)
        place, at = self._group.place, now()
        self._reporter.send(FailedReport(code, culprit, cause, *place, at))
        late = code is ExitCode.DEADLINE and place.begun > 0
        what = Fail(self._rank, culprit, cause, place.begun, at) if late else Fail(self._rank, culprit, cause)
        with contextlib.suppress(Exception):  # whatever fails here must not keep the others from being told
            if self._relay is not None and self._rank == 0:
                self._relay.fail(what)
        with contextlib.suppress(Exception):
            if self._control is not None and self._rank > 0:
                self._control.fail(what)
        with contextlib.suppress(Exception):
            if self._ports is not None:
                self._ports.send_dead()
        return code

    def _close(self, code: ExitCode) -> None:
        """Close all that is held. A failed group is left to the process's end: closing it would wait for its peers."""
        self._lifeline.leave(code)
        with contextlib.ExitStack() as rest:  # in the reverse order; one that fails does not keep the others
            if code is ExitCode.STOPPED:
                rest.callback(self._group.close)
            rest.callback(self._context.destroy, linger=0)
            for link in (self._control, self._relay, self._startup_link):
                if link is not None:
                    rest.callback(link.close)
            if self._ports is not None:
                rest.callback(self._ports.close, nobody_reads=self._lifeline.orphaned)
