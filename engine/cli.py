"""The command line: `python -m engine generate`.

Exit codes: 0 done, or nobody reads the output any more; 1 the engine failed; 2 the request or an option is wrong;
:data:`OUTPUT_FAILED` the output cannot be written; 128 + N ended by signal N. All but 0 say why in one line on stderr.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated, NoReturn

import msgspec
import typer

from engine import admission
from engine.clock import now
from engine.config import EngineConfig
from engine.errors import ConfigError, EngineError
from engine.interrupts import Interrupted, Interrupts
from engine.llm import AsyncLLM
from engine.messages import FinishReason, Request, SamplingParams
from engine.model import tokenizer
from engine.printer import PrintError, ReaderGone, give_up, print_line, print_text, require_output

OUTPUT_FAILED = os.EX_IOERR
"""Exit code, 74: standard output is closed, full, or cannot show the text."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)


# typer brings its own copy of click, or uses an installed one, by its version.
UsageError: type[typer.BadParameter] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError"
)


class Generation(msgspec.Struct, frozen=True):
    """What `generate --json` prints, as UTF-8; `prompt` has a replacement character for bytes that are not."""

    prompt: str
    token_ids: list[int]
    text: str
    finish_reason: str
    model: str
    tp: int
    relay: str
    seconds: float


class BadRequest(EngineError):
    """The engine refused the request; the text says why."""


@app.callback()
def main() -> None:
    """A tensor-parallel language model engine."""


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="Text to continue.")],
    model: Annotated[str, typer.Option(help="Model to run.")] = "tiny",
    tp: Annotated[int, typer.Option(help="Number of rank processes.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to generate.")] = 16,
    relay: Annotated[str, typer.Option(help="How rank 0 talks to the other ranks.")] = "pushpull",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming text.")] = False,
) -> None:
    """Generate greedily from a prompt.

    Exit codes: 0 done, 1 engine failed, 2 wrong request or option, 74 output cannot be written, 128 + N signal N.
    """
    try:
        config = EngineConfig(model=model, tp_size=tp, relay=relay)
        result = _generate(config, prompt, max_tokens, stream=not json)
        if json:
            print_line(msgspec.json.encode(result))
    except ConfigError as error:
        option = {"tp_size": "--tp", "model": "--model", "relay": "--relay"}.get(error.field, error.field)
        _leave(f"{option}{str(error).removeprefix(error.field)}", 2)
    except BadRequest as error:
        _leave(str(error), 2)
    except PrintError as error:
        _give_up(error)
    except (EngineError, OSError) as error:
        _leave(str(error), 1)
    except Interrupted as signalled:
        _leave("interrupted", 128 + signalled.number)


def _generate(config: EngineConfig, prompt: str, max_tokens: int, *, stream: bool) -> Generation:
    began = now()
    prompt_ids = tokenizer.encode(prompt)
    problem = admission.problem(config, Request("request", prompt_ids, SamplingParams(max_tokens)))
    if problem is not None:
        raise BadRequest(problem)
    interrupts = Interrupts()
    with interrupts.installed():
        # Built outside of the event loop, so that a signal ends the start-up at once and not only once it is over.
        llm = AsyncLLM(config)
        try:
            token_ids, reason = asyncio.run(_stream(llm, interrupts, prompt_ids, max_tokens, stream=stream))
        except asyncio.CancelledError:
            raise Interrupted(interrupts.number or signal.SIGINT) from None
        finally:
            with interrupts.deferring():
                llm.shutdown(interrupts.stop_limit)
    return Generation(
        prompt=prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        token_ids=token_ids,
        text=tokenizer.decode(token_ids),
        finish_reason=reason,
        model=config.model,
        tp=config.tp_size,
        relay=config.relay,
        seconds=now() - began,
    )


async def _stream(
    llm: AsyncLLM, interrupts: Interrupts, prompt_ids: list[int], max_tokens: int, *, stream: bool
) -> tuple[list[int], FinishReason]:
    token_ids: list[int] = []
    reason = FinishReason.ERROR
    text = tokenizer.Detokenizer()
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("the stream runs in no task")
    with interrupts.cancelling(task):
        async with llm:
            try:
                async for output in llm.generate(prompt_ids, SamplingParams(max_tokens)):
                    if output.finish_reason is FinishReason.ERROR:
                        raise BadRequest(output.error or "the request was refused")
                    token_ids += output.token_ids
                    if stream:
                        print_text(text.push(output.token_ids))
                    reason = output.finish_reason or reason
            finally:
                with interrupts.deferring():
                    llm.shutdown(interrupts.stop_limit)
    if stream:
        print_text(text.finish() + "\n")
    return token_ids, reason


def run() -> NoReturn:
    """The program: like the typer app, but what goes wrong is one line, and a signal no traceback."""
    try:
        require_output()
        code = app(standalone_mode=False)
        print_text("")
    except _Leaving:
        raise
    except SystemExit:  # rich's and typer's way to end when nobody reads their help
        raise SystemExit(0) from None
    except PrintError as error:
        _give_up(error)
    except OSError as error:  # of typer's own printing
        _give_up(PrintError(f"standard output cannot be written: {error}"))
    except UsageError as error:
        if sys.argv[1:]:
            _leave(error.format_message(), 2)
        raise SystemExit(2) from None
    except typer.Abort:
        _leave("interrupted", 130)
    raise SystemExit(code if isinstance(code, int) else 0)


class _Leaving(SystemExit):
    """The program's own decision to end."""


def _give_up(error: PrintError) -> NoReturn:
    give_up(sys.stdout)
    if isinstance(error, ReaderGone):
        raise _Leaving(0)
    _leave(str(error), OUTPUT_FAILED)


def _leave(message: str, code: int) -> NoReturn:
    if sys.stderr is not None:
        try:
            print(f"engine: {' '.join(message.split())}", file=sys.stderr, flush=True)
        except OSError:
            give_up(sys.stderr)
    raise _Leaving(code)
