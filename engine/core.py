"""One step of the engine, the same on every rank: take in messages, schedule, run the model, record tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from engine.codec import Decoder
from engine.config import EngineConfig
from engine.digest import Digest, StepRecord
from engine.errors import InputError
from engine.memory import Memory
from engine.messages import (
    Abort,
    Add,
    FinishReason,
    MessageType,
    RequestOutput,
    SchedulerStats,
    Utility,
    UtilityOutput,
    rank_role,
)
from engine.methods import attempt, require_sendable
from engine.model import sampler
from engine.model.llama import Llama
from engine.pausing import Deferred, Pausing
from engine.profiler import Profiler
from engine.scheduler import Scheduler
from engine.sequence import Chunk, Key
from engine.utilities import ON_EVERY_RANK, UTILITIES, failed
from engine.workers import LocalWorkers, Workers, everywhere

Message = Add | Abort | Utility

_DECODERS: dict[bytes, Decoder[Add] | Decoder[Abort] | Decoder[Utility]] = {
    MessageType.ADD.value: Decoder(Add),
    MessageType.ABORT.value: Decoder(Abort),
    MessageType.UTILITY.value: Decoder(Utility),
}


def read_message(raw: bytes) -> Message:
    """Decode a raw message: type byte and body, arrays in it. Raises :class:`InputError`."""
    decoder = _DECODERS.get(raw[:1])
    if decoder is None:
        raise InputError(f"request message of unknown type {raw[:1].hex() or 'nothing'}")
    try:
        return decoder.decode([memoryview(raw)[1:]])
    except msgspec.MsgspecError as error:
        raise InputError(f"request message of type {raw[:1].hex()} cannot be read: {error}") from error


@dataclass(slots=True)
class StepResult:
    """What one step has to tell: outputs by client index, replies with the index of whose call it was, and fullness.

    `stats` is None unless the configuration asks for it and the step did something.
    """

    outputs: dict[int, list[RequestOutput]] = field(default_factory=dict)
    replies: list[tuple[int, UtilityOutput]] = field(default_factory=list)
    stats: SchedulerStats | None = None

    def tell(self, client_index: int, outputs: Iterable[RequestOutput]) -> None:
        """Add outputs of a client's requests."""
        for output in outputs:
            self.outputs.setdefault(client_index, []).append(output)


class EngineCore:
    """Scheduler, cache and model shard of one rank.

    `epoch` is the run's random 64-bit number, shared by all ranks; `workers` is this rank's part in calls that run on
    every rank, for an engine of one rank by default.
    """

    def __init__(self, model: Llama, config: EngineConfig, epoch: int, workers: Workers | None = None) -> None:
        self._config = config
        self._epoch = epoch
        self.workers = LocalWorkers(rank_role(0)) if workers is None else workers
        self.scheduler = Scheduler(config)
        self.pausing = Pausing(self.scheduler)
        self.memory = Memory(model, config)
        self.profiler = Profiler(self.workers.roles[self.workers.rank])
        self.steps = 0
        """Steps so far, one that is going on included."""
        self._calls = 0
        self._deferred: list[tuple[Utility, Deferred]] = []
        self._digest = Digest()
        self._begin()

    @property
    def digest(self) -> int:
        """Fingerprint of all that was decided so far, unsigned, 64 bits: equal on all ranks after the same steps."""
        return self._digest.value

    def has_work(self) -> bool:
        """Whether the next step runs something, so that the next iteration need not wait for a message."""
        return self.scheduler.has_work()

    def live(self, client_index: int) -> list[str]:
        """The ids of that client's requests under way, in the order in which they were accepted."""
        return [request_id for owner, request_id in self.scheduler.live() if owner == client_index]

    def step(
        self, messages: Iterable[bytes | Message], late_aborts: Callable[[], frozenset[Key]] = frozenset
    ) -> StepResult:
        """Apply the iteration's messages, raw or decoded, run one step, return what it has to tell.

        `late_aborts` is asked once the model has run: a request that finishes in this step although its abort has come
        in meanwhile is told as aborted. Only rank 0 can know of those, so they change what is told and nothing else.

        Raises :class:`InputError` for a message that cannot be read, :class:`engine.errors.PageError` if nothing is
        under way any more and pages are missing, and in a call on every rank what its waits raise.
        """
        self.steps += 1
        for message in messages:
            self.take_in(read_message(message) if isinstance(message, bytes) else message)
        chunks = self.scheduler.batch()
        if chunks:
            with torch.inference_mode():
                self._run(chunks, late_aborts)
            self._reply_deferred()
        if not self.scheduler.has_work():
            self.scheduler.check_pages()
        record, result, scheduler = self._record, self._result, self.scheduler
        record.step, record.free = self.steps, scheduler.pages.free
        self._digest.fold(record)
        if self._config.log_stats and (chunks or self._changed):
            result.stats = SchedulerStats(scheduler.waiting, scheduler.running, scheduler.pages.free, self.steps)
        self._begin()
        return result

    def take_in(self, message: Message) -> None:
        """Apply one message between two steps. What it has to tell, the next step tells."""
        if isinstance(message, Utility):
            reply = self.call(message)
            if reply is not None:
                self._result.replies.append((message.client_index, reply))
        elif isinstance(message, Abort):
            self._abort(message.request_ids, message.client_index)
        else:
            self._add(message)
        self._reply_deferred()
        self._changed = True

    def call(self, message: Utility) -> UtilityOutput | None:
        """Make a utility call: the reply, or None if it comes later, with a step."""
        name = message.method

        def run() -> Any:
            value = UTILITIES.call(name, self, message.args)
            if not isinstance(value, Deferred):
                require_sendable(value)
            return value

        if name in UTILITIES:
            value, error = attempt(run)
            failure = None if error is None else failed(name, error)
        else:
            value, failure = None, UTILITIES.unknown(name)
        self._changed = True
        alike = name not in ON_EVERY_RANK and failure is not None
        self._record.called.append((message.client_index, message.call_id, name, alike))
        if isinstance(value, Deferred):
            self._deferred.append((message, value))
            return None
        return UtilityOutput(message.call_id, failure, value)

    def close(self, why: str) -> StepResult:
        """Rank 0, at the end: end all that is under way, every request as aborted and every call with `why`."""
        self.pausing.give_up(why)
        self.abort_all()
        self._reply_deferred()
        result = self._result
        self._begin()
        return result

    # ---- for utilities ----

    def abort_all(self) -> None:
        """End every request under way as aborted."""
        for client, request_id in self.scheduler.live():
            self._abort([request_id], client)

    def everywhere(self, method: str, args: Sequence[Any]) -> list[Any]:
        """Run a worker method on every rank (:func:`engine.workers.everywhere`)."""
        self._calls += 1
        return everywhere(self, self._calls, method, args)

    # ---- one step ----

    def _begin(self) -> None:
        self._record = StepRecord()
        self._result = StepResult()
        self._changed = False

    def _add(self, message: Add) -> None:
        client, request = message.client_index, message.request
        refusal = self.scheduler.add(request, sampler.derived_seed(self._epoch, message.number, client), client)
        self._record.added.append((client, request.request_id, str((refusal and refusal.error_kind) or "")))
        if refusal is not None:
            self._result.tell(client, [refusal])

    def _abort(self, request_ids: Iterable[str], client: int) -> None:
        ended = self.scheduler.abort(request_ids, client)
        self._record.aborted += [(client, output.request_id) for output in ended]
        self._result.tell(client, ended)

    def _reply_deferred(self) -> None:
        """Reply to the calls whose results have come."""
        self.pausing.settle()
        waiting, self._deferred = self._deferred, []
        for message, deferred in waiting:
            if not deferred.done:
                self._deferred.append((message, deferred))
                continue
            failure = None if deferred.failure is None else failed(message.method, deferred.failure)
            reply = UtilityOutput(message.call_id, failure, deferred.value)
            self._result.replies.append((message.client_index, reply))

    def _run(self, chunks: list[Chunk], late_aborts: Callable[[], frozenset[Key]]) -> None:
        record = self._record
        logits = self.memory.model.forward(chunks, self.memory.cache)
        record.rows = self.memory.model.checksum
        sampled = [chunk for chunk in chunks if chunk.sampled]
        sequences = [chunk.sequence for chunk in sampled]
        draws = [sampler.Draw(one.request.params, one.seed, len(one.tokens)) for one in sequences]
        tokens = sampler.sample(logits, draws) if draws else []
        aborted = late_aborts()
        for chunk in chunks:
            self.scheduler.record(chunk)
            record.batch.append((*chunk.sequence.key, chunk.start, chunk.count, chunk.pages))
        record.sampled += tokens
        for row, (chunk, token) in enumerate(zip(sampled, tokens, strict=True)):
            key, params = chunk.sequence.key, chunk.sequence.request.params
            reason = self.scheduler.append(chunk, token)
            output = RequestOutput(key[1], [token], reason)
            if reason is not None:
                record.finished.append((*key, reason))
            if reason is not None and key in aborted:
                output = RequestOutput(key[1], [], FinishReason.ABORT)
            elif params.logprobs is not None:
                logprobs = sampler.token_logprobs(logits[row], token, params.logprobs)
                output = msgspec.structs.replace(output, logprobs=logprobs)
            self._result.tell(key[0], [output])
