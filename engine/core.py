"""One step of the engine, the same on every rank: take in messages, schedule, run the model, record tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import torch

from engine.errors import InputError
from engine.messages import Abort, Add, FinishReason, MessageType, RequestOutput
from engine.model.llama import Chunk, Llama
from engine.scheduler import Scheduler

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
    """Scheduler and model shard of one rank."""

    def __init__(self, model: Llama, max_num_seqs: int) -> None:
        self._model = model
        self._scheduler = Scheduler(model.config, max_num_seqs)

    def has_work(self) -> bool:
        """Whether requests are under way, so that the next iteration need not wait for a message."""
        return self._scheduler.has_work()

    def step(self, raws: Iterable[bytes], late_aborts: Callable[[], frozenset[str]] = frozenset) -> list[RequestOutput]:
        """Apply the iteration's messages, run one step, return what it did for each request.

        `late_aborts` is asked once the model has run: a request that finishes in this step although its abort has come
        in meanwhile is told as aborted.
        """
        outputs: list[RequestOutput] = []
        for raw in raws:
            message = read_message(raw)
            if isinstance(message, Abort):
                outputs.extend(self._scheduler.abort(message.request_ids))
            elif (refusal := self._scheduler.add(message.request)) is not None:
                outputs.append(refusal)
        batch = self._scheduler.batch()
        if not batch:
            return outputs
        chunks = []
        for sequence in batch:
            if sequence.cache is None:
                sequence.cache = self._model.new_cache(sequence.capacity)
            chunks.append(Chunk(sequence.tokens[sequence.cache.length :], sequence.cache))
        with torch.inference_mode():
            tokens = self._model.forward(chunks)
        aborted = late_aborts()
        for sequence, token in zip(batch, tokens, strict=True):
            output = self._scheduler.record(sequence, token)
            if output.finish_reason is not None and output.request_id in aborted:
                output = RequestOutput(output.request_id, [], FinishReason.ABORT)
            outputs.append(output)
        return outputs
