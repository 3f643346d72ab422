"""``python -m tests.invariants``: breaks the engine by one line at a time, and shows that the right tests notice.

Exit codes: 0 all is as it should be, 1 something is not, 2 a mistake in what was asked or marked, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import json as encoding
import signal
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from harness.verdict import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_USAGE
from tests.invariants.statements import STATEMENTS
from tests.invariants.without import WITHOUT

app = typer.Typer(
    name="invariants",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Only = Annotated[list[str] | None, typer.Option("--only", metavar="I10", help="Only changes that break this promise.")]
Having = Annotated[
    list[str] | None, typer.Option("--change", metavar="TEXT", help="Only changes with this in their file or text.")
]
Listing = Annotated[bool, typer.Option("--list", help="Print promises, tests and changes; run nothing.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the changed copies and their logs, and say where.")]
Thorough = Annotated[
    bool, typer.Option("--thorough", help="Run also the tests that may fail, and each test with all its parameters.")
]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Changes that are tried at the same time.")]
Limit = Annotated[float, typer.Option("--limit", min=1, help="Seconds for one test; then it has hung, and failed.")]


class MistakeError(Exception):
    """What was asked for, or marked, cannot be done; one sentence."""


@app.command()
def run(
    only: Only = None,
    having: Having = None,
    listing: Listing = False,
    json: Json = False,
    keep: Keep = False,
    thorough: Thorough = False,
    jobs: Jobs = 2,
    limit: Limit = 20,
) -> None:
    """Break the engine by one line at a time; of the marked tests those that check the broken promise must fail."""
    for name in only or ():
        if name not in STATEMENTS:
            raise MistakeError(f"--only {name}: expected one of I1 to I{len(STATEMENTS)}")
        if name in WITHOUT:
            raise MistakeError(f"--only {name}: it has no counterpart here: {WITHOUT[name]}")
    from tests.invariants import showing
    from tests.invariants.listing import discover, gaps, mistakes

    found = discover()
    missing = [] if only or having else gaps(found)
    if listing:
        if json:
            typer.echo(encoding.dumps(showing.table_object(found, missing)))
        else:
            Console(highlight=False).print(showing.table(found, missing), soft_wrap=True)
        return
    if wrong := mistakes(found):
        more = f" ({len(wrong) - 1} more like this)" if len(wrong) > 1 else ""
        raise MistakeError(f"{wrong[0]}{more}")
    raise typer.Exit(
        _try(only or (), having or (), missing, json=json, keep=keep, thorough=thorough, jobs=jobs, limit=limit)
    )


def _try(
    only: Sequence[str],
    having: Sequence[str],
    missing: list[str],
    *,
    json: bool,
    keep: bool,
    thorough: bool,
    jobs: int,
    limit: float,
) -> int:
    from tests.invariants import showing, zygote
    from tests.invariants.judging import judge, judge_unchanged
    from tests.invariants.listing import discover, mutants
    from tests.invariants.running import Lab

    found = discover()
    chosen = mutants(found, only)
    if having:
        chosen = [mutant for mutant in chosen if any(text in str(mutant.change) for text in having)]
    if not chosen:
        raise MistakeError(f"no test lists a change for {' '.join([*only, *map(repr, having)]) or 'any invariant'}")
    console = Console(highlight=False, stderr=json)
    verdicts = []
    told: dict[str, Any] = {**showing.table_object(found, missing), "changes": []}
    zygote.adopt_orphans()
    with contextlib.ExitStack() as stack:
        stack.callback(zygote.sweep)
        lab = stack.enter_context(Lab(min(jobs, len(chosen)), limit, keep=keep, thorough=thorough))
        if keep:
            console.print(f"copies     {lab.folder}", soft_wrap=True)
        plain = lab.unchanged(chosen, found)
        verdict = judge_unchanged(plain)
        told["unchanged"] = showing.run_object(None, plain, verdict)
        console.print(showing.unchanged_line(plain, verdict), soft_wrap=True)
        if verdict.good:
            for mutant, changed in lab.changed(chosen, found, plain):
                verdict = judge(mutant, changed, found)
                verdicts.append(verdict)
                told["changes"].append(showing.run_object(mutant, changed, verdict))
                console.print(showing.change_line(mutant, changed, verdict, found), soft_wrap=True)
            console.print(showing.summary_line(verdicts, missing), soft_wrap=True)
    good = verdict.good and all(verdict.good for verdict in verdicts) and not missing
    if json:
        typer.echo(encoding.dumps({"good": good, **told}))
    return EXIT_PASSED if good else EXIT_FAILED


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; mistakes become one line on standard error."""
    try:
        code = app(
            args=list(arguments) if arguments is not None else None, prog_name="invariants", standalone_mode=False
        )
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:
        # typer's own mistakes derive from click or from a copy of it inside typer, as its version has it.
        message = getattr(error, "format_message", None)
        if not callable(message) and not isinstance(error, MistakeError):
            raise
        print(f"invariants: {message() if callable(message) else error}", file=sys.stderr)
        return EXIT_USAGE
    if code == EXIT_INTERRUPTED:  # in some versions typer makes a code of it
        print("invariants: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else EXIT_PASSED


_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(*_: object) -> NoReturn:
    for signum in _ENDING:
        signal.signal(signum, signal.SIG_IGN)  # cleaning up has an end of its own
    raise KeyboardInterrupt


if __name__ == "__main__":
    for signum in _ENDING:
        signal.signal(signum, _interrupt)
    sys.exit(invoke())
