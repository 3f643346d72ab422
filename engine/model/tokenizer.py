"""Bytes as tokens: the tokenizer of the seeded random models.

A token below 256 is that byte; the vocabulary's remaining ids have no text of their own and print as ``<|id|>``.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


def encode(text: str) -> list[int]:
    """Token ids of a text: its UTF-8 bytes."""
    return list(text.encode("utf-8", "surrogateescape"))


class Detokenizer:
    """Turns a stream of tokens into text, holding back the bytes of an unfinished character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these further tokens complete."""
        parts = []
        for token in token_ids:
            if token < 256:
                parts.append(self._decoder.decode(bytes([token])))
            else:
                parts.append(self._decoder.decode(b"", True) + f"<|{token}|>")
                self._decoder.reset()
        return "".join(parts)

    def finish(self) -> str:
        """What is left of an unfinished character."""
        return self._decoder.decode(b"", True)


def decode(token_ids: Iterable[int]) -> str:
    """The text of a complete list of tokens."""
    stream = Detokenizer()
    return stream.push(token_ids) + stream.finish()
