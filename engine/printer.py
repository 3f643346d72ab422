"""Standard output of a program that owns an engine: what cannot be written is an error with a sentence, at once."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from engine.errors import EngineError


class PrintError(EngineError):
    """Standard output cannot be written; the text says why."""


class ReaderGone(PrintError):
    """Whoever read standard output has closed it, and wants no more."""


def require_output() -> None:
    """Raise :class:`PrintError` if there is no standard output at all."""
    if sys.stdout is None:
        raise PrintError("standard output is closed")


def print_text(text: str) -> None:
    """Write and flush, in the encoding of the environment. Raises :class:`PrintError`."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except UnicodeEncodeError as error:
        seen, encoding = text[error.start : error.end], sys.stdout.encoding
        raise PrintError(
            f"standard output cannot show {seen!r} in its encoding {encoding}: set PYTHONIOENCODING=utf-8 or use --json"
        ) from error
    except OSError as error:
        raise _failure(error) from error


def print_line(line: bytes) -> None:
    """Write bytes as they are, with a line's end, and flush. Raises :class:`PrintError`."""
    try:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
    except OSError as error:
        raise _failure(error) from error


def give_up(stream: TextIO | None) -> None:
    """Let what is still buffered go nowhere: the interpreter would try once more to write it, and end with 120."""
    if stream is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _failure(error: OSError) -> PrintError:
    if isinstance(error, BrokenPipeError):
        return ReaderGone("nobody reads standard output")
    return PrintError(f"standard output cannot be written: {error}")
