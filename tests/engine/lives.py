"""One engine and its client, from the start to the last trace, and what must be true at every moment of it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from engine.client.base import MPClient
from engine.clock import now
from engine.config import EngineConfig, Timeouts
from engine.errors import (
    EngineBusyError,
    EngineDeadError,
    EngineGenerateError,
    EngineStalledError,
    UtilityError,
    UtilityTimeout,
)
from engine.health import is_stopped
from engine.lifeline import LAST_ANSWERS
from engine.messages import CLIENT_ROLE, FinishReason
from engine.monitor import EngineStopped
from tests.engine.census import Census
from tests.engine.driving import Driver, LoopDriver, Wait, wait_until
from tests.engine.forks import SHORT, ForkFactory, config_for
from tests.engine.promises import SEATS, WAITING, Promise, Promises
from tests.engine.questions import Question

PATIENT: Timeouts = msgspec.structs.replace(SHORT, startup=30.0, handshake=20.0, step=30.0, stall=20.0)
"""No deadline passes in an engine that is not meant to miss one, however busy the machine is."""

HASTY: Timeouts = msgspec.structs.replace(PATIENT, step=SHORT.step)
"""For an engine that is to miss its step deadline."""

Cancelled = (asyncio.CancelledError, concurrent.futures.CancelledError)

State = Literal["well", "halted", "dying", "dead", "shut"]
"""`halted`: a rank is stopped, and will go on in time. `dying`: something was done that ends the engine, and the client
may know or not. `dead`: it knows."""


def shape(size: int, relay: str, timeouts: Timeouts, *, stats: bool) -> EngineConfig:
    """A small engine."""
    small = {"max_num_seqs": SEATS, "max_waiting": WAITING, "num_pages": 96}
    return config_for(size, relay=relay, timeouts=timeouts, log_stats=stats, **small)


@dataclass(eq=False)
class Adding:
    """A request on its way; `rows` is its memory."""

    promise: Promise
    rows: np.ndarray[Any, Any] | None
    wait: Wait


@dataclass(eq=False)
class Asking:
    """A question on its way, and the requests `after` which it was sent."""

    question: Question
    after: list[Promise]
    wait: Wait


class Life:
    """Does what the machine's rules say, and keeps the model in step."""

    def __init__(self, driver: Driver, config: EngineConfig, *, inside: bool) -> None:
        self.driver = driver
        self.size = config.tp_size
        self.factory = ForkFactory()
        self.promises = Promises()
        self.state: State = "well"
        self.suspects: set[str] = set()
        self.halted = 0
        self.death: EngineDeadError | None = None
        self.reads: list[Wait] = []
        self.asks: list[Asking] = []
        self.adds: list[Adding] = []
        self._read_to_the_end = False
        self._for_good = False
        self._before = Census.now()
        driver.build(config, self.factory, inside=inside)
        resources = self.client._resources
        self._owed, self._calls, self._traffic = resources.owed, resources.calls, resources.traffic
        self._directory = self.client.endpoints.directory
        self._ghost = weakref.ref(self.client)
        assert self.client.pids == self.pids
        assert os.path.isdir(self._directory)

    @property
    def client(self) -> MPClient:
        client: MPClient = self.driver.client
        return client

    @property
    def pids(self) -> dict[str, int]:
        return {role: process.pid for role, process in self.factory.processes.items()}

    @property
    def owed(self) -> set[str]:
        """What the client thinks that it is owed."""
        return set(self._owed)

    @property
    def over(self) -> bool:
        """Whether nothing can be asked any more."""
        return self.state in ("dead", "shut")

    @property
    def waits(self) -> list[Wait]:
        """All that is under way."""
        return [*self.reads, *(asking.wait for asking in self.asks), *(adding.wait for adding in self.adds)]

    # ---- calls ----

    def add(self, promise: Promise, rows: np.ndarray[Any, Any] | None) -> Wait:
        """Begin to add a request."""
        before, most = self.promises.open, SEATS + WAITING
        wait = self.driver.add(promise.request)
        self.driver.sent(wait)
        error = wait.exception() if wait.done() else None
        if isinstance(error, EngineBusyError):
            assert len(before) >= most
        elif isinstance(error, EngineGenerateError):
            assert "already under way" in str(error)
            assert promise.request.request_id in [other.request.request_id for other in before]
        else:
            if not self.over:
                self.promises.add(promise)
            self.adds.append(Adding(promise, rows, wait))
        return wait

    def ask(self, question: Question, timeout: float | None = None) -> Wait:
        """Begin a utility call."""
        wait = self.driver.call(question.method, question.args, timeout)
        self.driver.sent(wait)
        if not self.over:
            question.then()
        self.asks.append(Asking(question, self.promises.all[:], wait))
        return wait

    def abort(self, names: Sequence[str]) -> None:
        wait = self.driver.abort(list(names))
        self.driver.settle([wait])
        wait.result()
        if not self.over:
            self.promises.abort(names)

    def read(self) -> Wait:
        """Begin to read."""
        wait = self.driver.read()
        self.reads.append(wait)
        return wait

    def finish(self, waits: Sequence[Wait]) -> None:
        """Wait for the end of calls if it must come by itself."""
        if self.state != "halted":
            self.driver.settle(waits)
        self.collect()

    def read_on(self) -> None:
        """Wait until the next batch, or the engine's death, has been read."""
        if not self.reads:
            self.read()
        self.driver.settle(self.reads, first=True)
        self.collect()

    def glance(self) -> None:
        """Read, if something is there."""
        wait = self.driver.glance()
        self.reads.append(wait)
        self.driver.settle([wait])
        self.collect()

    def cancelled_before_it_began(self, wait: Wait) -> None:
        """A call that is cancelled at once is as if it had never been made."""
        before = self._traffic.sent
        wait.cancel()
        self.driver.settle([wait])
        assert wait.cancelled()
        assert self._traffic.sent == before

    @property
    def certain(self) -> bool:
        """Whether a read is certain to end."""
        return self.state in ("dying", "dead", "shut") or (self.state == "well" and bool(self.promises.owed))

    def check_health(self) -> None:
        """What the client says of the engine's health fits."""
        stall: EngineStalledError | None = None
        try:
            self.client.check_health()
        except EngineDeadError as error:
            self._died(error)
            return
        except EngineStalledError as error:
            stall = error
        assert self.state == "dying" or (stall is not None) == (self.state == "halted"), stall
        assert self.state == "dying" or stall is None or stall.culprit == f"dp0.rank{self.halted}"

    # ---- what comes of them ----

    def collect(self) -> None:
        """Look at the calls that are over."""
        self._collect_reads()
        for asking in [asking for asking in self.asks if asking.wait.done()]:
            self.asks.remove(asking)
            if not asking.wait.cancelled():
                self._answered(asking)
        for adding in [adding for adding in self.adds if adding.wait.done()]:
            self.adds.remove(adding)
            if not adding.wait.cancelled():
                self._added(adding)

    def _collect_reads(self) -> None:
        over = [wait for wait in self.reads if wait.done()]
        self.reads = [wait for wait in self.reads if wait not in over]
        over = [wait for wait in over if not wait.cancelled()]
        brought = [wait for wait in over if wait.exception() is None]
        for batch in self.driver.batches(brought):
            assert not self._read_to_the_end, f"{batch} came after the engine's death was told"
            self.promises.take(batch)
        for wait in over:
            # Its own patience may be at its end; the death that was told stays.
            if wait not in brought and not isinstance(wait.exception(), TimeoutError):
                self._failed(wait.exception())
                self._read_to_the_end = True

    def _answered(self, asking: Asking) -> None:
        question, error = asking.question, asking.wait.exception()
        if isinstance(error, EngineDeadError):
            self._died(error)
        elif isinstance(error, UtilityTimeout):
            assert error.method == question.method
        elif isinstance(error, UtilityError) and self.state == "shut":
            assert "the engine is shutting down" in error.text or any(text in error.text for text in question.fails)
        else:
            question.check(None if error else asking.wait.result(), error)
            for promise in [] if question.local else asking.after:
                promise.arrived = True  # what was sent before the question came before it

    def _added(self, adding: Adding) -> None:
        error = adding.wait.exception()
        if error is not None:
            self._failed(error)
        elif adding.rows is not None:
            adding.rows.fill(np.nan)  # the call is over, so this memory is the caller's again

    def _failed(self, error: BaseException | None) -> None:
        if not isinstance(error, EngineDeadError):
            raise error or AssertionError("no error")
        self._died(error)

    def _died(self, error: EngineDeadError) -> None:
        """A call told the engine's death: it is the one that was brought about, and always the same."""
        assert self.state in ("dying", "dead", "shut"), f"nobody did anything to it: {error}"
        if isinstance(error, EngineStopped):
            assert self.state == "shut", error
        else:
            assert error.culprit in self.suspects, error
        if self.death is None:
            self.death = error
        assert error is self.death, f"{error!r} after {self.death!r}"

    # ---- what is done to the engine ----

    def kill(self, rank: int) -> None:
        role = f"dp0.rank{rank}"
        self._signal(role, signal.SIGKILL)
        self.state = "dying"
        self.suspects.add(role)

    def _signal(self, role: str, signum: int) -> None:
        with contextlib.suppress(OSError):  # it has just left; its number may be somebody else's by now
            self.factory.processes[role].send_signal(signum)

    def halt(self, rank: int) -> None:
        """Stop a rank."""
        role = f"dp0.rank{rank}"
        self._signal(role, signal.SIGSTOP)
        self.driver.within(lambda: is_stopped(self.pids[role]), lambda: "the rank is stopped")
        self.state, self.halted = "halted", rank

    def go_on(self) -> None:
        """Let every stopped rank go on."""
        for role in self.factory.living():
            self._signal(role, signal.SIGCONT)
        if self.state == "halted":
            self.state = "well"

    def expect_deadline(self, for_good: bool) -> None:
        """The stopped rank stays so until it is too late, or for good: whoever waits for it will say so."""
        self.state, self._for_good = "dying", for_good
        self.suspects.add(f"dp0.rank{self.halted}")

    def cancel_receiver(self, driver: LoopDriver, turns: int) -> None:
        """Cancel the asyncio client's receiver task, that many turns of the loop from now."""
        self.abort(["nobody"])  # the first call starts it
        driver.turn(turns)
        receiver = driver.receiver
        assert receiver is not None
        receiver.cancel()
        self.state = "dying"
        self.suspects.add(CLIENT_ROLE)

    def get_over(self) -> None:
        """Let a stopped rank go on, or wait for the death that is to come."""
        if self.state == "halted":
            self.go_on()
        elif self.state == "dying":
            self.await_death()

    def await_death(self) -> None:
        """The client finds out, and so does everybody who waits."""
        client = self.client
        self.driver.within(lambda: client.dead is not None, lambda: "the client knows that its engine is dead")
        self.state = "dead"
        if not self._for_good:
            self.go_on()  # too late, but it need not be killed then
        self._everybody_is_told()
        self.driver.within(lambda: not self.factory.living(), lambda: "every rank has left")

    def shut(self, where: str, timeout: float | None, *, drain: bool) -> None:
        """Shut down: what was under way has its end, and nothing is left."""
        orderly, arrived = self.state == "well", [promise for promise in self.promises.open if promise.arrived]
        served = [promise for promise in arrived if drain and promise in self.promises.owed and not promise.doomed]
        self.promises.abort_all()
        if self.state != "dead":
            self.state = "shut"
        limit, began = PATIENT.shutdown if timeout is None else timeout, now()
        self.driver.shut(where, timeout, drain)
        in_time = now() - began < limit - min(LAST_ANSWERS, limit / 2)
        self._everybody_is_told()
        assert self.death is not None
        if orderly and self.factory.exits() == [0] * self.size:
            assert [promise for promise in arrived if promise.open] == []
            if in_time:  # else rank 0 may have ended what it could not finish
                assert all(promise.end and promise.end.finish_reason is FinishReason.LENGTH for promise in served)
        self.check_nothing_is_left()

    def _everybody_is_told(self) -> None:
        self.driver.settle(self.waits)
        self.collect()
        while not self._read_to_the_end:
            self.read_on()
        for _ in range(2):  # and again
            self.read_on()
        assert self.client.dead is self.death

    def give_up(self) -> None:
        """Cancel all that is under way."""
        cancelled = [wait for wait in self.waits if wait.cancel()]
        self.driver.settle(cancelled)
        self.collect()

    def drop(self) -> None:
        """Forget the client, which takes everything with it."""
        self.give_up()
        self.driver.forget()
        if self.waits:  # calls of threads hold the client and cannot be cancelled: the engine's death ends them
            self.go_on()
            if self.state == "well":
                self.kill(0)
            self.driver.settle(self.waits)
            self.collect()
        self.death = None
        self.driver.collect()
        self._check_collected()
        # Any thread may have collected it, and be at it still.
        wait_until(lambda: not self.factory.living(), lambda: "every rank has left")
        self.check_nothing_is_left()

    def outlive_loop(self, driver: LoopDriver, collected: bool) -> None:
        """End with the asyncio client's loop closed before it: by a shutdown, or because the client is forgotten."""
        self.go_on()
        self.give_up()
        self.death = None
        driver.loop.close()
        if not collected:
            driver.shut("without a loop", None, False)
            self.check_nothing_is_left()
        driver.forget()
        self._check_collected()
        self.check_nothing_is_left()
        driver.open()

    def _check_collected(self) -> None:
        gc.collect()
        assert self._ghost() is None, gc.get_referrers(self._ghost())

    # ---- what must be true ----

    def check(self) -> None:
        """After every rule."""
        self.collect()
        self.check_health()
        assert len(self._calls) <= len(self.asks)
        assert self.owed <= {promise.request.request_id for promise in self.promises.open}
        assert self.driver.complaints == []
        if self.state in ("well", "halted"):
            assert self.client.dead is None
            assert self.client.pids == self.pids

    def check_nothing_is_left(self) -> None:
        """No process, no directory, no descriptor, no thread."""
        assert self.factory.living() == []
        wait_until(lambda: not self._left(), lambda: f"{self._left()} is given back")
        assert self.driver.complaints == []

    def _left(self) -> list[str]:
        return [self._directory] * os.path.exists(self._directory) + Census.now().beyond(self._before)
