"""An engine without a model: rank 0 of one rank, whole towards its client, that sends a prompt's tokens back.

It says HELLO, greets the clients, numbers its messages, keeps the pulse table and listens to its lifeline as
:mod:`engine.rank` does, over the same sockets. Each token of an answer is a record and a message of its own, in the
turns of :class:`harness.bench.streams.Turns`, as fast as they can be sent. :class:`EchoFactory` starts it in the place
of the rank.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence

import zmq

from engine.clock import Deadline
from engine.config import Launch
from engine.core import Message, StepResult
from engine.endpoints import Endpoints
from engine.errors import DeadlineExceeded, ExitCode, LauncherGone, PeerFailed, StopRequested
from engine.launch import Process, ProcessFactory, SpawnFactory
from engine.lifeline import Lifeline, Reporter
from engine.messages import (
    Abort,
    Add,
    ErrorKind,
    FailedReport,
    FinishReason,
    PhaseReport,
    ReadyReport,
    RequestOutput,
    UtilityOutput,
    Welcome,
    rank_role,
)
from engine.ports import Ports
from engine.pulse import Pulse
from engine.startup import StartupLink
from harness.bench.streams import Turns

TARGET = "harness.bench.echo:echo_main"

STEP = 64
"""Messages between two looks at what has come in."""

MAX_LENGTH = 1 << 20
"""What the welcome says of an answer's length, which is not limited."""

SHUTTING_DOWN = "the echo engine is shutting down"


class EchoFactory:
    """Starts the echo engine through another factory, whatever it is asked for; a configuration for it has one rank."""

    def __init__(self, factory: ProcessFactory | None = None) -> None:
        self._factory = factory or SpawnFactory()

    def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> Process:
        return self._factory.start(role, TARGET, args, fds)


def echo_main(config: bytes, rank: int, fds: list[int]) -> None:
    """Run until told to stop; the arguments are those of :func:`engine.rank.rank_main`. Ends with SystemExit."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    raise SystemExit(int(EchoEngine(Launch.decode(config), rank, fds).run()))


class EchoEngine:
    """All that the process holds."""

    def __init__(self, launch: Launch, rank: int, fds: list[int]) -> None:
        config = launch.config
        self._launch = launch
        self._role = rank_role(rank, launch.engine_index)
        self._reporter = Reporter(fds[1])
        self._startup = Deadline(launch.startup_at)
        self._lifeline = Lifeline(
            fds[0],
            self._reporter,
            role=self._role,
            startup=self._startup,
            stop_grace=config.timeouts.shutdown,
            remove_on_orphan=launch.directory if launch.private else None,
        )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pulse = Pulse(fds[3], rank, config.tp_size)
        self._link = StartupLink(self._context, launch, self._lifeline)
        self._ports = Ports(self._context, launch.engine_index, self._lifeline, config.client_count)
        self._turns = Turns()

    def run(self) -> ExitCode:
        """Start, serve, leave. Every way out comes by here."""
        try:
            self._start()
            self._serve()
        except StopRequested:
            code = ExitCode.STOPPED
        except PeerFailed as error:
            code = self._fail(ExitCode.PEER_FAILED, error.culprit, error.cause)
        except DeadlineExceeded as error:
            code = self._fail(ExitCode.DEADLINE, error.culprit, error.cause)
        except LauncherGone as error:
            code = self._fail(ExitCode.LAUNCHER_GONE, "", str(error))
            self._lifeline.clear_orphaned()
        except Exception as error:
            code = self._fail(ExitCode.OWN_FAILURE, self._role, f"{type(error).__name__}: {error}")
        self._lifeline.leave(code)
        self._ports.close(nobody_reads=self._lifeline.orphaned)
        self._link.close()
        self._context.destroy(linger=0)
        return code

    def _start(self) -> None:
        launch, config = self._launch, self._launch.config
        self._phase("hello")
        limit = self._startup.sooner(Deadline.after(config.timeouts.handshake))
        init = self._link.hello(Endpoints(launch.directory, launch.private).address("startup"), limit)
        self._phase("connect")
        welcome = Welcome(launch.epoch, launch.engine_index, 0, MAX_LENGTH, config.num_pages, config.page_size)
        self._ports.connect(init, welcome)
        self._link.ready()
        self._lifeline.ready()
        self._reporter.send(ReadyReport(0, 0, 0.0))

    def _phase(self, phase: str) -> None:
        self._lifeline.phase(phase)
        self._reporter.send(PhaseReport(phase))
        self._lifeline.check(stop=False)

    def _serve(self) -> None:
        try:
            while True:
                self._lifeline.check()
                self._step(block=True)
        except StopRequested:
            self._wind_down()
            raise

    def _step(self, *, block: bool) -> None:
        """Take messages, send up to :data:`STEP` tokens. If `block`, an idle engine waits for a message."""
        for client_index in self._lifeline.departed():
            self._ports.drop(client_index)
            self._turns.end(client_index)
        for incoming in self._ports.take(block=block and not self._turns):
            self._take(incoming.message)
        self._note_links()
        if not self._turns:
            return
        self._pulse.begin()
        for _ in range(STEP):
            self._send(*self._turns.take())
            if not self._turns:
                break
        self._note_links()
        self._pulse.end()

    def _take(self, message: Message) -> None:
        client = message.client_index
        if isinstance(message, Add):
            try:
                self._turns.add(message.request, client)
            except ValueError as error:
                refusal = (FinishReason.ERROR, str(error), ErrorKind.INVALID)
                self._send(client, RequestOutput(message.request.request_id, [], *refusal))
        elif isinstance(message, Abort):
            self._abort(self._turns.end(client, message.request_ids))
        else:
            failure = f"{message.method}: an echo engine has no methods"
            self._ports.send(StepResult(replies=[(client, UtilityOutput(message.call_id, failure))]))

    def _send(self, client_index: int, output: RequestOutput) -> None:
        self._ports.send(StepResult({client_index: [output]}))

    def _abort(self, ended: list[tuple[int, str]], why: str | None = None) -> None:
        for client_index, request_id in ended:
            self._send(client_index, RequestOutput(request_id, [], FinishReason.ABORT, why))

    def _note_links(self) -> None:
        for client_index, (taken, sent) in enumerate(self._ports.numbers):
            self._pulse.link(client_index, taken, sent)

    def _wind_down(self) -> None:
        """Asked to stop: finish what is under way if there is time for it, answer the rest."""
        self._ports.expect(self._lifeline.said)
        if self._lifeline.draining:
            self._ports.refuse(SHUTTING_DOWN, waiting=False)
            while (self._turns or self._ports.waiting or self._ports.expecting) and self._lifeline.draining:
                if not self._turns and not self._ports.waiting:
                    self._ports.await_expected(self._lifeline.drain_until)
                self._step(block=False)
                self._lifeline.check(stop=False)
        self._ports.refuse(SHUTTING_DOWN, waiting=True)
        self._abort(self._turns.end(), SHUTTING_DOWN)

    def _fail(self, code: ExitCode, culprit: str, cause: str) -> ExitCode:
        self._lifeline.leave(code)
        self._reporter.send(FailedReport(code, culprit, cause))
        with contextlib.suppress(zmq.ZMQError):
            self._ports.send_dead()
        return code
