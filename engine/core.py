"""One step of the engine, the same on every rank: take in messages, schedule, run the model, record tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import torch

from engine.config import EngineConfig
from engine.digest import Digest, StepRecord
from engine.errors import InputError
from engine.messages import Abort, Add, FinishReason, MessageType, RequestOutput
from engine.model import sampler
from engine.model.llama import Llama
from engine.scheduler import Scheduler
from engine.sequence import Chunk

_ADD = msgspec.msgpack.Decoder(Add)
_ABORT = msgspec.msgpack.Decoder(Abort)


def read_message(raw: bytes) -> Add | Abort:
    """Decode a raw request message: type byte and body. Raises :class:`InputError`."""
    try:
        if raw[:1] == MessageType.ADD.value:
            return _ADD.decode(raw[1:])
        if raw[:1] == MessageType.ABORT.value:
            return _ABORT.decode(raw[1:])
    except msgspec.MsgspecError as error:
        raise InputError(f"request message of type {raw[:1].hex()} cannot be read: {error}") from error
    raise InputError(f"request message of unknown type {raw[:1].hex() or 'nothing'}")


class EngineCore:
    """Scheduler, cache and model shard of one rank. `epoch` is the run's random 64-bit number, shared by all ranks."""

    def __init__(self, model: Llama, config: EngineConfig, epoch: int) -> None:
        self._model = model
        self._epoch = epoch
        self.scheduler = Scheduler(config)
        self._cache = model.new_cache(config.num_pages, config.page_size)
        self._digest = Digest()
        self._steps = 0

    @property
    def digest(self) -> int:
        """Fingerprint of all that was decided so far, unsigned, 64 bits: equal on all ranks after the same steps."""
        return self._digest.value

    def has_work(self) -> bool:
        """Whether requests are under way, so that the next iteration need not wait for a message."""
        return self.scheduler.has_work()

    def step(self, raws: Iterable[bytes], late_aborts: Callable[[], frozenset[str]] = frozenset) -> list[RequestOutput]:
        """Apply the iteration's messages, run one step, return what it did for each request.

        `late_aborts` is asked once the model has run: a request that finishes in this step although its abort has come
        in meanwhile is told as aborted. Only rank 0 can know of those, so they change what is told and nothing else.

        Raises :class:`InputError` for a message that cannot be read, :class:`engine.errors.PageError` if nothing is
        under way any more and pages are missing.
        """
        self._steps += 1
        record = StepRecord(self._steps)
        outputs = self._take_in(raws, record)
        chunks = self.scheduler.batch()
        if chunks:
            with torch.inference_mode():
                outputs += self._run(chunks, late_aborts, record)
        if not self.scheduler.has_work():
            self.scheduler.check_pages()
        record.free = self.scheduler.pages.free
        self._digest.fold(record)
        return outputs

    def _take_in(self, raws: Iterable[bytes], record: StepRecord) -> list[RequestOutput]:
        outputs: list[RequestOutput] = []
        for raw in raws:
            message = read_message(raw)
            if isinstance(message, Abort):
                ended = self.scheduler.abort(message.request_ids)
                record.aborted += [output.request_id for output in ended]
                outputs += ended
                continue
            refusal = self.scheduler.add(message.request, sampler.derived_seed(self._epoch, message.number))
            record.added.append((message.request.request_id, str((refusal and refusal.error_kind) or "")))
            if refusal is not None:
                outputs.append(refusal)
        return outputs

    def _run(
        self, chunks: list[Chunk], late_aborts: Callable[[], frozenset[str]], record: StepRecord
    ) -> list[RequestOutput]:
        logits = self._model.forward(chunks, self._cache)
        sampled = [chunk for chunk in chunks if chunk.sampled]
        sequences = [chunk.sequence for chunk in sampled]
        draws = [sampler.Draw(one.request.params, one.seed, len(one.tokens)) for one in sequences]
        tokens = sampler.sample(logits, draws) if draws else []
        aborted = late_aborts()
        for chunk in chunks:
            self.scheduler.record(chunk)
            record.batch.append((chunk.sequence.request.request_id, chunk.start, chunk.count, chunk.pages))
        record.sampled += tokens
        outputs = []
        for row, (chunk, token) in enumerate(zip(sampled, tokens, strict=True)):
            request = chunk.sequence.request
            reason = self.scheduler.append(chunk, token)
            if reason is not None:
                record.finished.append((request.request_id, reason))
                if request.request_id in aborted:
                    outputs.append(RequestOutput(request.request_id, [], FinishReason.ABORT))
                    continue
            count = request.params.logprobs
            logprobs = None if count is None else [sampler.token_logprobs(logits[row], token, count)]
            outputs.append(RequestOutput(request.request_id, [token], reason, logprobs=logprobs))
        return outputs
