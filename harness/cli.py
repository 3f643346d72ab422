"""The command line: ``nowedge hunt``, ``run`` and the others that ``nowedge --help`` lists.

Every mistake of the person ends with one line on standard error and exit code 2; the other codes are those of
`harness.verdict`. What a command needs is imported inside it, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from harness.verdict import EXIT_FAILED, EXIT_HARNESS, EXIT_INTERRUPTED, EXIT_PASSED, EXIT_USAGE

if TYPE_CHECKING:
    from rich.console import RenderableType

    from harness.bug import Bug
    from harness.plan import Plan
    from harness.replay import Replay
    from harness.scenario import Scenario

app = typer.Typer(
    name="nowedge",
    help="Breaks a tensor-parallel inference engine on purpose, and proves what wedges.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(help="A scenario, a group of scenarios, 'all', or a plan file (.toml, .json).")]
File = Annotated[Path, typer.Argument(help="The file.")]
Runs = Annotated[int, typer.Option("--runs", min=1, help="How often each plan is run.")]
Relay = Annotated[str | None, typer.Option("--relay", help="The relay strategy; short for --set engine.relay=...")]
Tp = Annotated[int | None, typer.Option("--tp", help="The number of ranks; short for --set topology.tp=...")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="Set a field of the plan.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", metavar="'KIND SETTING=VALUE ...'", help="One more fault; `nowedge faults` lists them."),
]
BugId = Annotated[
    str | None,
    typer.Option("--bug", metavar="ID", help="Seed this bug in the engine; `nowedge list --bugs` lists them."),
]
Start = Annotated[str | None, typer.Option("--start", help="How processes start: fork (quick) or spawn (cross-check).")]
Seed = Annotated[int | None, typer.Option("--seed", help="The seed.")]
Lanes = Annotated[int | None, typer.Option("--lanes", min=1, help="Plans that run at the same time.")]
Out = Annotated[Path, typer.Option("--out", help="Where folders of findings go.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, nothing else.")]
Keep = Annotated[bool, typer.Option("--keep", help="Write the folder, with the histories, of what passed too.")]
Expect = Annotated[bool, typer.Option("--expect", help="Exit code 0 exactly if each plan ended as its file says.")]

Leave = Annotated[
    float, typer.Option("--leave", min=0, help="Seconds for which a proved wedge is watched on, in case it moves.")
]

OUT = Path(".nowedge")


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    if version:
        typer.echo(f"nowedge {metadata.version('nowedge')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def hunt(
    time: Annotated[str | None, typer.Option("--time", metavar="60|90s|5m|1h", help="How long. Default 60.")] = None,
    plans: Annotated[int | None, typer.Option("--plans", min=1, help="How many plans.")] = None,
    relay: Annotated[
        str | None,
        typer.Option("--relay", metavar="R[,R...]", help="The relay strategy; of several each plan draws one."),
    ] = None,
    tp: Annotated[str, typer.Option("--tp", metavar="N|N..M", help="The number of ranks.")] = "1..4",
    seed: Annotated[int, typer.Option("--seed", help="The same seed draws the same plans.")] = 0,
    lanes: Lanes = None,
    start: Start = None,
    bug: BugId = None,
    guided: Annotated[
        bool, typer.Option("--guided", help="Draw half of the plans near those that brought new orders of events.")
    ] = False,
    out: Out = OUT,
    json: Json = False,
) -> None:
    """Break the engine with plan after plan, and report what wedged, lost or lied."""
    from harness import folder, scenario
    from harness.durations import parse_seconds
    from harness.search.canary import RELAY as CANARY_RELAY
    from harness.search.hunt import Hunt, HuntOptions

    seconds = parse_seconds(time) if time is not None else (None if plans is not None else 60.0)
    ranks = _range(tp)
    several = list(dict.fromkeys(relay.split(","))) if relay else [None]
    checked = [_seeded(bug, one, ranks, start) for one in several]
    seeded, relay = checked[0][0], ",".join(one for _, one in checked if one) or None
    if CANARY_RELAY in several and (seeded is not None or len(several) > 1):
        raise scenario.ScenarioError(f"--relay {CANARY_RELAY} is the canary's own, and is hunted alone, without bugs")
    folder.usable(out)
    from harness.report import json as objects
    from harness.report import progress, tables
    from harness.world.real import RealWorld

    options = HuntOptions(
        relay=relay or "",
        tp=ranks,
        seconds=seconds,
        plans=plans,
        seed=seed,
        lanes=lanes or RealWorld.default_lanes(),
        start=start or "fork",
        out=out,
        bug=seeded,
        guided=guided,
        examples=out / folder.EXAMPLES,
    )
    with progress.Line() as line, RealWorld(lanes=options.lanes, stacks=True) as world:
        result = Hunt(world, options, progress.HuntProgress(line, options, relay or "default relay")).run()
    _print(objects.hunt_object(result) if json else tables.hunt_table(result))
    raise typer.Exit(result.exit_code)


@app.command()
def run(
    name: Name,
    runs: Runs = 1,
    relay: Relay = None,
    tp: Tp = None,
    sets: Sets = None,
    faults: Faults = None,
    start: Start = None,
    seed: Seed = None,
    bug: BugId = None,
    lanes: Lanes = None,
    out: Out = OUT,
    keep: Keep = False,
    expect: Expect = False,
    leave: Leave = 0.0,
    json: Json = False,
) -> None:
    """Run a scenario, a group or a plan file, and say what came of it."""
    scenarios = _resolve(name, relay, tp, sets, start, seed, faults, bug)
    from harness import folder, outcome

    folder.usable(out)
    from harness.report import json as objects
    from harness.report import progress, tables
    from harness.world.real import RealWorld

    session = outcome.Session(scenarios, runs, everything=keep)
    interrupted = False
    with (
        progress.Line() as line,
        RealWorld(lanes=min(session.total, lanes or RealWorld.default_lanes()), leave=leave, stacks=True) as world,
    ):
        line.show(f"running    {session.total} in all")
        try:
            session.run(world, lambda: line.show(f"running    {session.done} of {session.total}"))
        except KeyboardInterrupt:
            interrupted = True
    outcomes = session.outcomes
    outcome.keep(outcomes, out, everything=keep)
    if json:
        _print(objects.outcomes_object(outcomes, single=session.single))
    else:
        _print(tables.outcomes_report(outcomes, single=session.single))
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(outcome.code(outcomes, single=session.single, expect=expect))


@app.command()
def enumerate(  # the command's name; the built-in of that name is not used here
    phase: Annotated[str, typer.Argument(help="handshake, request, abort, utility, shutdown, or 'all'.")],
    relay: Relay = None,
    tp: Annotated[int, typer.Option("--tp", help="The number of ranks.")] = 2,
    start: Start = None,
    bug: BugId = None,
    depth: Annotated[int, typer.Option("--depth", min=1, max=2, help="2: a second fault after each, too.")] = 1,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Pairs of a phase at most. Default 300.")] = None,
    unpruned: Annotated[bool, typer.Option("--unpruned", help="Run also pairs that can touch no output.")] = False,
    lanes: Lanes = None,
    out: Out = OUT,
    json: Json = False,
) -> None:
    """Do every fault at every place of a phase, one in each run, and colour what each comes to.

    With --depth 2 also pairs of faults: a second one at every place that is passed after the first.
    """
    if depth == 1 and (limit is not None or unpruned):
        raise typer.BadParameter(f"{'--unpruned' if limit is None else '--limit'} is about pairs; add --depth 2")
    from harness import folder
    from harness.search import phases
    from harness.verdict import worst

    chosen = list(phases.PHASES.values()) if phase == "all" else [phases.get(phase)]
    seeded, relay = _seeded(bug, relay, (tp,), start)
    folder.usable(out)
    from harness.report import heat, progress
    from harness.search.enumerate import PAIRS, Enumerator
    from harness.targets import get
    from harness.world.real import RealWorld

    results = []
    with progress.Line() as line, RealWorld(lanes=lanes or RealWorld.default_lanes(), stacks=True) as world:
        for one in chosen:
            plan = one.plan(tp, relay or "", start=start or "fork")
            watch = progress.cells(line, one.name)
            enumerator = Enumerator(world, get(plan.target), one, plan, bug=seeded, depth=depth, watch=watch)
            found = enumerator.run(enumerator.learn())
            if depth == 2 and not found.interrupted:
                watch = progress.cells(line, one.name, "pairs")
                pairs = enumerator.pairs()
                found = enumerator.follow(found, pairs, limit=limit or PAIRS, unpruned=unpruned, watch=watch)
            results.append(found.written(out))
            if results[-1].interrupted:
                break
    if json:
        _print({"enumerations": [heat.heat_object(result) for result in results]})
    else:
        for result in results:
            _print(heat.heat_table(result))
    raise typer.Exit(EXIT_INTERRUPTED if results[-1].interrupted else worst(one.exit_code for one in results))


@app.command(name="list")
def list_(
    primitives: Annotated[
        bool, typer.Option("--primitives", help="What public reports of hangs need, and which scenarios use it.")
    ] = False,
    bugs: Annotated[bool, typer.Option("--bugs", help="The bugs that can be seeded in the engine.")] = False,
    json: Json = False,
) -> None:
    """List the scenarios."""
    from harness import scenario
    from harness.report import json as objects
    from harness.report import tables

    if bugs:
        seeded = scenario.bugs()
        _print({"bugs": [objects.bug_object(one) for one in seeded]} if json else tables.bugs_table(seeded))
        return
    shipped = scenario.shipped()
    if primitives:
        from harness.primitives import PRIMITIVES, WITHOUT, uses

        users = uses(shipped)
        if json:
            rows = [
                {"code": code, "primitive": words, "scenarios": users[code], "without": WITHOUT.get(code)}
                for code, words in PRIMITIVES.items()
            ]
            _print({"primitives": rows})
        else:
            _print(tables.primitives_table(users))
        return
    if json:
        _print({"scenarios": [objects.scenario_object(one) for one in shipped]})
    else:
        _print(tables.list_table(shipped))


@app.command()
def sites(
    name: Name,
    relay: Relay = None,
    tp: Tp = None,
    sets: Sets = None,
    faults: Faults = None,
    start: Start = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Run a plan once and show which sites each role passes, as the instants that faults can name."""
    plan = _resolve(name, relay, tp, sets, start, seed, faults)[0].members[0].plan
    from harness.judge import judge
    from harness.report import progress, tables
    from harness.world.real import RealWorld

    with progress.Line() as line, RealWorld(lanes=1) as world:
        line.show("running    1 plan")
        history = world.run(plan)
    verdict = judge(history, scenario=name, seed=plan.seed)
    counts = tables.sites_of(history)
    if json:
        rows = [
            {"role": one.role, "site": one.site, "kind": one.kind, "times": one.times, "instant": one.instant}
            for one in counts
        ]
        _print({"verdict": verdict.verdict, "sites": rows})
    else:
        from harness.report.terminal import headline

        _print(headline(verdict))
        _print(tables.sites_table(counts))
    raise typer.Exit(verdict.exit_code)


@app.command()
def faults(
    kind: Annotated[str | None, typer.Argument(help="Only this kind, in full.")] = None, json: Json = False
) -> None:
    """List the faults that a plan can name, each with its settings and an example."""
    from harness.faults import catalogue
    from harness.report import tables

    chosen = catalogue.entries() if kind is None else [catalogue.entry(kind)]
    if json:
        import msgspec

        _print({"faults": msgspec.to_builtins(chosen)})
    else:
        _print(tables.faults_table(chosen) if kind is None else tables.fault_page(chosen[0]))


@app.command()
def replay(
    file: File,
    runs: Runs = 1,
    lanes: Lanes = None,
    out: Out = OUT,
    keep: Keep = False,
    expect: Expect = False,
    json: Json = False,
) -> None:
    """Run the plan of a replay file again, and say how often it ends as recorded."""
    from harness import folder, outcome
    from harness.scenario import Member, Scenario

    recorded = _recorded(file)
    folder.usable(out)
    from harness.report import json as objects
    from harness.report import progress, tables
    from harness.statistics import share_interval
    from harness.world.real import RealWorld

    member = Member(name="", plan=recorded.plan, expect={recorded.plan.engine.relay: recorded.verdict})
    scenario = Scenario(recorded.scenario or file.stem, "", "", (), (member,))
    session = outcome.Session([scenario], runs, everything=keep)
    interrupted = False
    with progress.Line() as line, RealWorld(lanes=min(runs, lanes or RealWorld.default_lanes())) as world:
        try:
            session.run(world, lambda: line.show(f"running    {session.done} of {session.total}"))
        except KeyboardInterrupt:
            interrupted = True
    outcomes = session.outcomes
    outcome.keep(outcomes, out, everything=keep)
    same = sum(recorded.same(verdict) for one in outcomes for verdict in one.verdicts)
    between = share_interval(same, session.done) if session.done else (0.0, 1.0)
    if json:
        built = objects.outcomes_object(outcomes, single=True)
        _print({**built, "recorded": recorded.word, "same": same, "interval": [round(end, 4) for end in between]})
    else:
        _print(tables.outcomes_report(outcomes, single=True))
        low, high = (f"{100 * end:.0f}" for end in between)
        typer.echo(f"recorded   {recorded.word}: {same} of {session.done} the same, down to the fingerprint")
        typer.echo(f"           which is {low} to {high} % of all runs, with 95 % confidence")
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(outcome.code(outcomes, single=True, expect=expect))


@app.command()
def shrink(
    file: File,
    runs: Annotated[int, typer.Option("--runs", min=1, help="How many runs it may take.")] = 150,
    lanes: Lanes = None,
    out: Out = OUT,
    json: Json = False,
) -> None:
    """Make the plan of a replay file as small as it can be and still fail in the same way."""
    from harness import folder

    recorded = _recorded(file)
    folder.usable(out)
    from harness.report import json as objects
    from harness.report import progress, tables
    from harness.search.smallest import of_replay
    from harness.world.real import RealWorld

    count = lanes or RealWorld.default_lanes()
    with progress.Line() as line, RealWorld(lanes=count, stacks=True) as world:
        line.show(f"shrinking  {recorded.word} in at most {runs} runs")
        found = of_replay(world, recorded, width=count, max_runs=runs).written(out)
    _print(objects.found_object(found) if json else tables.found_report(found))
    raise typer.Exit(found.verdict.exit_code)


@app.command()
def script(
    name: Annotated[str, typer.Argument(help="A replay file, or a scenario or plan file of one plan.")],
    relay: Relay = None,
    tp: Tp = None,
    sets: Sets = None,
    faults: Faults = None,
    runs: Annotated[int, typer.Option("--runs", min=0, help="How often it is run, which its header tells.")] = 5,
    out: Annotated[Path | None, typer.Option("--out", help="The file. Default: beside the replay file.")] = None,
    json: Json = False,
) -> None:
    """Write a plan as one Python file that needs neither the harness nor the engine."""
    from harness import script as scripts
    from harness.report import progress

    told = scripts.source(name, _overrides(relay, tp, sets, None, None, faults))
    _checked(told.plan, name)
    with progress.Line() as line:
        line.show(f"running    {runs} in all")
        shown = scripts.write(told, out or told.place, runs)
    if json:
        _print(scripts.shown_object(shown))
    else:
        typer.echo(f"script     {shown.path}   {shown}")


@app.command()
def judge(file: File, json: Json = False) -> None:
    """Judge a saved history again."""
    from harness import history as histories
    from harness.judge import judge as judged
    from harness.report import json as objects
    from harness.report.terminal import finding

    try:
        data = file.read_bytes()
    except OSError as error:
        raise histories.HistoryError(f"cannot read {file}: {error.strerror or error}") from None
    try:
        history = histories.load(data)
    except histories.HistoryError as error:
        raise histories.HistoryError(f"{file} is {error}") from None
    verdict = judged(history, seed=history.plan.seed)
    _print(objects.verdict_object(verdict) if json else finding(verdict))
    raise typer.Exit(verdict.exit_code)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="The benchmark, such as throughput or relays.")],
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="How often each thing is measured.")] = None,
    messages: Annotated[int | None, typer.Option("--messages", min=1, help="For client: messages each time.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", help="The number of ranks.")] = None,
    relay: Annotated[list[str] | None, typer.Option("--relay", help="Only this relay strategy; repeatable.")] = None,
    bug: Annotated[list[str] | None, typer.Option("--bug", help="For bugs: only this one; repeatable.")] = None,
    lanes: Lanes = None,
    out: Out = OUT,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew instead of resuming.")] = False,
    leave: Leave = 0.0,
    json: Json = False,
) -> None:
    """Measure the harness or the engine."""
    from harness import bench as benches
    from harness import folder
    from harness.report import progress

    chosen = benches.get(name)
    for wanted in relay or ():
        _checked(_bare_plan(tp or 2, wanted, None))
    folder.usable(out)
    with progress.Line() as line:
        options = benches.Options(
            rounds=rounds,
            messages=messages,
            lanes=lanes,
            tp=tp,
            relays=tuple(relay or ()),
            bugs=tuple(bug or ()),
            out=out,
            fresh=fresh,
            leave=leave,
            show=line.show,
        )
        result = benches.measure(name, options)
    _print(result if json else benches.table(chosen, result))
    raise typer.Exit(EXIT_PASSED if benches.good(chosen, result) else EXIT_FAILED)


def _resolve(
    name: str,
    relay: str | None,
    tp: int | None,
    sets: Sequence[str] | None,
    start: str | None,
    seed: int | None,
    faults: Sequence[str] | None = None,
    bug: str | None = None,
) -> tuple[Scenario, ...]:
    from harness import scenario as files

    seeded = files.bug(bug) if bug is not None else None
    overrides = _overrides(relay, tp, sets, start, seed, faults)
    if seeded is not None and seeded.relay:
        overrides.insert(0, ("engine.relay", seeded.relay))
    scenarios = files.resolve(name, overrides)
    if seeded is not None:
        scenarios = tuple(scenario.with_bug(seeded) for scenario in scenarios)
    for scenario in scenarios:
        for member in scenario.members:
            _checked(member.plan, f"{scenario.name} {member.name}".strip())
    return scenarios


def _overrides(
    relay: str | None,
    tp: int | None,
    sets: Sequence[str] | None,
    start: str | None,
    seed: int | None,
    faults: Sequence[str] | None,
) -> list[tuple[str, str]]:
    """What the options of a command set in a plan, as (dotted path, value) pairs. Raises PlanError."""
    from harness.plan import ONE_MORE, PlanError

    overrides = []
    for text in sets or ():
        path, equals, value = text.partition("=")
        if not equals or not path:
            raise PlanError(f"--set {text}: expected PATH=VALUE, for example --set engine.relay=handshake")
        overrides.append((path, value))
    short = (("engine.relay", relay), ("topology.tp", tp), ("topology.start", start), ("seed", seed))
    overrides += [(path, str(value)) for path, value in short if value is not None]
    return overrides + [(ONE_MORE, line) for line in faults or ()]


def _checked(plan: Plan, name: str = "") -> None:
    from harness.plan import PlanError
    from harness.targets import get

    try:
        get(plan.target).check(plan)
    except PlanError as error:
        raise PlanError(f"{name}: {error}" if name else str(error)) from None


def _recorded(file: Path) -> Replay:
    """What a replay file holds, which can be run. Raises ReplayError and PlanError."""
    from harness import replay as replays

    recorded = replays.load(file)
    _checked(recorded.plan, str(file))
    return recorded


def _bare_plan(tp: int, relay: str | None, start: str | None) -> Plan:
    from harness import plan as plans

    raw: dict[str, Any] = {"topology": {"tp": tp}, "engine": {}}
    if relay is not None:
        raw["engine"]["relay"] = relay
    if start is not None:
        raw["topology"]["start"] = start
    return plans.from_builtins(raw)


def _seeded(
    bug: str | None, relay: str | None, ranks: Sequence[int], start: str | None
) -> tuple[Bug | None, str | None]:
    """The bug of that id, and the relay asked for, else the bug's own. Raises PlanError for what cannot be run so."""
    from harness import scenario

    seeded = scenario.bug(bug) if bug is not None else None
    relay = relay or (seeded.relay if seeded is not None else "") or None
    for count in ranks:
        bare = _bare_plan(count, relay, start)
        _checked(seeded.put_into(bare) if seeded is not None else bare)
    return seeded, relay


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    if not low.isdecimal() or not (high or low).isdecimal() or int(low) > int(high or low):
        raise typer.BadParameter(f"'{text}' is neither a number of ranks such as 2 nor a range such as 1..4 (--tp)")
    return int(low), int(high or low)


def _print(what: RenderableType | dict[str, Any]) -> None:
    if isinstance(what, dict):
        from harness.report.json import encode

        typer.echo(encode(what))
        return
    from rich.console import Console

    Console(highlight=False).print(what, soft_wrap=True)


def _explain(error: BaseException) -> int:
    """Says on one line what went wrong and returns the exit code; raises what is nobody's known mistake."""
    from harness.errors import USER_ERRORS

    # typer's own mistakes derive from click or from a copy of it inside typer, as its version has it.
    message = getattr(error, "format_message", None)
    if callable(message) or isinstance(error, USER_ERRORS):
        text = str(message()) if callable(message) else str(error)
        print(f"nowedge: {' '.join(text.split())}", file=sys.stderr)
        return EXIT_USAGE
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        print("nowedge: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has gone; nothing is left to be said, and flushing at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PASSED
    from harness.errors import write_traceback

    print(f"nowedge: fault of the harness itself: {error!r}; see {write_traceback(error)}", file=sys.stderr)
    return EXIT_HARNESS


def invoke(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; user errors become one line on standard error."""
    try:
        code = app(args=list(arguments) if arguments is not None else None, prog_name="nowedge", standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error)
    if code == EXIT_INTERRUPTED:
        print("nowedge: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else EXIT_PASSED


def main() -> NoReturn:
    """The console script."""
    sys.exit(invoke())
