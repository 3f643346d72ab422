"""A running fingerprint of everything that an engine has decided.

Ranks that have gone through the same steps have the same value; ranks that differ in any one thing that was folded
differ from then on, up to a chance of one in 2^64.
"""

from __future__ import annotations

import hashlib

import msgspec


class StepRecord(msgspec.Struct, array_like=True):
    """What one step did, in the order in which it was done.

    A request is told by its client's index and its id. `added` holds (client, id, kind of refusal or empty), `aborted`
    holds (client, id), `called` holds (client, call id, method, whether it failed for all ranks alike), `batch` holds
    (client, id, start position, tokens, pages), `finished` holds (client, id, reason); `free` is the number of free
    pages after the step; `rows` is the checksum of what the logits were made of.
    """

    step: int = 0
    added: list[tuple[int, str, str]] = []
    aborted: list[tuple[int, str]] = []
    called: list[tuple[int, int, str, bool]] = []
    batch: list[tuple[int, str, int, int, list[int]]] = []
    sampled: list[int] = []
    finished: list[tuple[int, str, str]] = []
    free: int = 0
    rows: int = 0


class Digest:
    """BLAKE2b (RFC 7693) of 8 bytes, chained: each value covers all steps before it."""

    def __init__(self) -> None:
        self._bytes = bytes(8)

    @property
    def value(self) -> int:
        """The present value, unsigned, 64 bits."""
        return int.from_bytes(self._bytes, "little")

    def fold(self, record: StepRecord) -> None:
        """Take in one more step."""
        data = self._bytes + msgspec.msgpack.encode(record)
        self._bytes = hashlib.blake2b(data, digest_size=8).digest()
