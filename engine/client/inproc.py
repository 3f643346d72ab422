"""The engine in the caller's own process: no other process, no socket, no thread.

Nothing runs but inside of the caller's calls: each :meth:`InprocClient.get_output` is one step.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from engine.client.interface import EngineCoreClient
from engine.clock import Deadline
from engine.codec import Decoder, Encoder
from engine.config import LONGEST, EngineConfig
from engine.core import EngineCore, StepResult
from engine.errors import (
    ConfigError,
    EngineBusyError,
    EngineDeadError,
    EngineGenerateError,
    StartupError,
    UtilityError,
)
from engine.messages import Abort, Add, Outputs, Request, RequestOutput, Utility, rank_role
from engine.model.llama import Llama
from engine.monitor import EngineStopped
from engine.parallel.group import TensorGroup
from engine.pausing import WAIT
from engine.utilities import failed

ROLE = rank_role(0)

T = TypeVar("T")


class InprocClient(EngineCoreClient):
    """Client of an engine of one rank in this process, for one thread at a time.

    Calls take as long as they take: no timeout cuts one short. An exception inside the engine is its death, and the
    latched :class:`EngineDeadError` has it as its cause. Raises :class:`ConfigError` for more than one rank,
    :class:`StartupError` if the engine cannot be built.
    """

    def __init__(self, config: EngineConfig) -> None:
        if config.tp_size != 1:
            raise ConfigError("tp_size", config.tp_size, "1, since the engine runs in this one process")
        self.config = config
        self._dead: EngineDeadError | None = None
        self._encoder = Encoder(None)
        self._results: Decoder[Any] = Decoder(object)
        self._messages = 0
        self._batches = 0
        self._owed: set[str] = set()
        self._left: deque[Outputs] = deque()
        """What there was still to tell when the engine was shut down."""
        try:
            model = Llama(config.model_config, TensorGroup.alone(ROLE))
            self._core = EngineCore(model, config, secrets.randbits(63))
        except Exception as error:
            raise StartupError(ROLE, _cause(error), exit_code=None, phase="model") from error

    # ---- state ----

    @property
    def dead(self) -> EngineDeadError | None:
        return self._dead

    def check_health(self) -> None:
        if self._dead is not None:
            raise self._dead.with_traceback(None) from self._dead.__cause__

    def shutdown(self, timeout: float | None = None, *, drain: bool = False) -> None:
        limit = self._limit(timeout)
        if self.dead is not None:
            return
        deadline = Deadline.after(limit)
        with contextlib.suppress(EngineDeadError):  # the end that was wanted, and it is latched
            while drain and self._core.has_work() and not deadline.expired():
                self._left.append(self._step())
            last = self._batch(self._inside(lambda: self._core.close("the engine is shutting down")))
            if last.outputs:
                self._left.append(last)
            self._dead = EngineStopped(limit, drain=drain)

    # ---- plain calls ----

    def get_output(self, timeout: float | None = None) -> Outputs:
        """Run one step and return what it brought, which may be nothing. It takes as long as it takes."""
        if self._left:
            return self._left.popleft()
        self.check_health()
        return self._step()

    def add_request(self, request: Request) -> None:
        self.check_health()
        if request.request_id in self._owed:
            raise EngineGenerateError(f"request id {request.request_id!r} is already under way")
        most = self.config.max_num_seqs + self.config.max_waiting
        if len(self._owed) >= most:
            raise EngineBusyError(f"{most} requests are under way (max_num_seqs and max_waiting), try again later")
        add = self._message(
            lambda number: Add(number, request),
            lambda why: EngineGenerateError(f"request {request.request_id!r} cannot be sent: {why}"),
        )
        self._inside(lambda: self._core.take_in(add))
        self._owed.add(request.request_id)

    def abort_requests(self, request_ids: list[str]) -> None:
        if request_ids and self.dead is None:
            abort = self._message(
                lambda number: Abort(number, request_ids),
                lambda why: EngineGenerateError(f"request {request_ids!r} cannot be sent: {why}"),
            )
            self._inside(lambda: self._core.take_in(abort))

    def call_utility(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        """As for every client, and at once. A pause in mode `wait` is refused: nothing would run while it waits."""
        self.check_health()
        if method == "pause_scheduler" and WAIT in args:
            why = f"mode {WAIT!r} is for an engine in another process; in this one nothing runs while the call waits"
            raise UtilityError(method, failed(method, why))
        message = self._message(
            lambda number: Utility(number, 0, number, method, list(args)),
            lambda why: UtilityError(method, f"call to {method} cannot be sent: {why}"),
        )
        reply = self._inside(lambda: self._core.call(message))
        if reply is None:
            raise RuntimeError(f"the reply to {method} is deferred, for which there is no way in one process")
        if reply.failure is not None:
            raise UtilityError(method, reply.failure)
        return self._results.decode(self._encoder.encode(reply.result))

    # ---- the core ----

    def _message(self, make: Callable[[int], T], refuse: Callable[[str], Exception]) -> T:
        """The next message, as an engine elsewhere would get it: the caller's memory is his own again."""
        message = make(self._messages + 1)
        try:
            copy: T = _READERS[type(message)].decode(self._encoder.encode(message))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            raise refuse(str(error)) from error
        self._messages += 1
        return copy

    def _inside(self, action: Callable[[], T]) -> T:
        """Do something in the engine. Whatever it raises is its death, for it may be in the middle of a step."""
        try:
            return action()
        except BaseException as error:
            self._dead = EngineDeadError(ROLE, _cause(error))
            if not isinstance(error, Exception):
                raise  # an interrupt is the caller's own
            raise self._dead from error

    def _step(self) -> Outputs:
        return self._batch(self._inside(lambda: self._core.step(())))

    def _batch(self, result: StepResult) -> Outputs:
        outputs: list[RequestOutput] = result.outputs.get(0, [])
        self._owed.difference_update(one.request_id for one in outputs if one.finish_reason is not None)
        self._batches += 1
        return Outputs(self._batches, 0, outputs, stats=result.stats)

    def _limit(self, timeout: float | None) -> float:
        if timeout is None:
            return self.config.timeouts.shutdown
        if not isinstance(timeout, int | float) or timeout != timeout:
            raise ValueError(f"timeout: got {timeout!r}, expected seconds, or None for timeouts.shutdown")
        return float(min(max(timeout, 0), LONGEST))


_READERS: dict[type, Decoder[Any]] = {kind: Decoder(kind) for kind in (Add, Abort, Utility)}


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
