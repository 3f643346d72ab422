"""Tables: the end of a hunt, the members of a group, the list of scenarios, the sites that a run passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from harness.bug import Bug, Sighting
from harness.faults.catalogue import Entry
from harness.history import History
from harness.outcome import Outcome
from harness.primitives import PRIMITIVES, WITHOUT
from harness.report.terminal import finding, plural, sighting_words, style_of
from harness.scenario import Scenario
from harness.search.score import Found, HuntResult
from harness.trial import Tally


def tally_line(outcome: Outcome) -> Text:
    """``wedged (proved) 20 of 20``, and beside it what the file expects, where that is something else."""
    line = Text("  ").join(_tally(outcome.tally))
    expected = outcome.expected
    if expected is not None and not outcome.as_expected:
        blame = f" ({outcome.member.blame})" if expected == "wedged" and outcome.member.blame else ""
        line.append(f"   the file expects {expected}{blame}", style="yellow")
    return line


def outcomes_report(outcomes: Sequence[Outcome], *, single: bool) -> RenderableType:
    """The tally and the first finding of one plan; of several, the table and each finding that no file expects."""
    parts: list[RenderableType] = []
    if single:
        for outcome in outcomes:
            tally = outcome.tally
            word = outcome.shown.verdict.word
            if tally.runs > 1:
                parts += [tally_line(outcome), Text()]
            again = f"{tally.words.get(word, 0)} of {tally.runs}" if tally.runs > 1 else ""
            parts.append(finding(outcome.shown.verdict, again))
            if tally.runs == 1 and outcome.expected and not outcome.as_expected:
                parts.append(Text(f"\n  the file expects {outcome.expected}", style="yellow"))
            if outcome.sighting is not None:
                parts += [Text(), Text(f"bug        {sighting_words(outcome.sighting)}")]
        return Group(*parts)
    parts.append(outcomes_table(outcomes))
    for outcome in outcomes:
        if not outcome.as_expected:
            parts += [Text(), finding(outcome.shown.verdict)]
    right = sum(outcome.as_expected for outcome in outcomes)
    parts += [Text(), Text(f"{right} of {plural(len(outcomes), 'plan')} ended as expected")]
    parts += [Text(f"bug        {sighting_words(seen)}") for seen in _sightings(outcomes)]
    return Group(*parts)


def _sightings(outcomes: Sequence[Outcome]) -> list[Sighting]:
    """What all plans together saw of each bug."""
    found: dict[str, Sighting] = {}
    for outcome in outcomes:
        seen = outcome.sighting
        if seen is not None:
            found[seen.id] = found[seen.id].and_then(seen) if seen.id in found else seen
    return list(found.values())


def outcomes_table(outcomes: Sequence[Outcome]) -> Table:
    """One line per plan of a family or group: its name, whether its fault fired, its verdict."""
    table = _table("plan", ">fired", "verdict", "expected")
    before = ""
    for outcome in outcomes:
        if outcome.member.name and outcome.scenario != before:
            _add(table, outcome.scenario)
        before = outcome.scenario
        label = f"  {outcome.member.name}" if outcome.member.name else outcome.scenario
        runs = len(outcome.verdicts)
        fired = f"{outcome.fired} of {runs}" if runs > 1 else ("yes" if outcome.fired else "no")
        if not outcome.member.plan.faults:
            fired = "-"
        right = outcome.expected is None or outcome.as_expected
        expected = Text(outcome.expected or "-", style="default" if right else "bold red")
        _add(table, label, fired, Text("\n").join(_tally(outcome.tally)), expected)
    return table


def hunt_table(result: HuntResult) -> RenderableType:
    """The end of a hunt: one table of what was run and what fired, then each finding in full."""
    table = _table("fault", ">plans", ">armed", ">reached", ">fired")
    for fired in result.faults:
        _add(table, fired.kind, *(str(number) for number in (fired.plans, fired.armed, fired.reached, fired.fired)))
    sums = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    sums.add_column(no_wrap=True)
    sums.add_column(overflow="fold")
    low, high = result.tp
    size = f"tp={low}" if low == high else f"tp={low}..{high}"
    share = 100 * result.vacuous / result.plans if result.plans else 0
    _add(sums, "hunted", f"{result.target} {size} relay={result.relay}")
    _add(
        sums,
        "plans",
        f"{result.plans} in {result.seconds:.0f} s   {result.rate:.1f}/s   {plural(result.lanes, 'lane')}   "
        f"seed {result.seed}",
    )
    words = "   ".join(f"{word} {count}" for word, count in result.verdicts.items())
    _add(sums, "verdicts", words or "none")
    _add(sums, "vacuous", f"{result.vacuous} ({share:.1f} %)")
    _add(sums, "requests", f"{result.served} served   {result.refused} refused with a typed error")
    _add(sums, "instants", f"{result.instants} covered")
    _add(sums, "canary", _canary(result))
    if result.bug is not None:
        _add(sums, "bug", sighting_words(result.bug))
    _add(sums, "found", _found_words(result))
    parts: list[RenderableType] = [table, Text(), sums]
    for found in result.found:
        met = f"met by {plural(found.met, 'plan')} of the hunt"
        parts += [Text(), finding(found.verdict, _again(found)), Text(f"  {'; '.join([met, *_shrunk(found)])}", "dim")]
    return Group(*parts)


def found_report(found: Found) -> RenderableType:
    """One failure that was shrunk."""
    return Group(finding(found.verdict, _again(found)), *(Text(f"  {words}", "dim") for words in _shrunk(found)))


def list_table(scenarios: Iterable[Scenario]) -> Table:
    """Every scenario on one line."""
    table = _table("!scenario", ">plans", "report", "title")
    for scenario in scenarios:
        _add(table, scenario.name, str(len(scenario.members)), scenario.report or "-", scenario.title)
    return table


def bugs_table(bugs: Iterable[Bug]) -> Table:
    """Every seeded bug on one line: how many faults show it, by which rules it is named, what is wrong, as reported."""
    table = _table("!bug", ">faults", "!named by", "!scenario", "title")
    for bug in bugs:
        title = Text(bug.title).append(f" ({bug.report})" if bug.report else "", style="dim")
        _add(table, bug.id, str(bug.faults), ", ".join(bug.rules), bug.name, title)
    return table


def primitives_table(users: Mapping[str, Sequence[str]]) -> Table:
    """What public reports need, each with the scenarios that use it, or the reason why none does."""
    table = _table("!", "primitive", "!scenarios")
    for code, words in PRIMITIVES.items():
        said = (
            Text("\n".join(users[code])) if users[code] else Text(f"none: {WITHOUT.get(code, 'not yet')}", style="dim")
        )
        _add(table, code, words, said)
    return table


class SiteCount(Struct, frozen=True):
    """How often a role passes a site with frames of a kind."""

    role: str
    site: str
    kind: str
    times: int

    @property
    def instant(self) -> str:
        """The first instant, as plans write it."""
        if self.site in ("start", "exit"):
            return f"{self.role}:{self.site}"
        kind = f"[{self.kind}]" if self.kind else ""
        return f"{self.role}:{self.site}{kind}#1:after"


def sites_of(history: History) -> list[SiteCount]:
    """Every site that a run passed, by role, in the order of first passing."""
    counts: dict[tuple[str, str, str], int] = {}
    for event in history.events:
        life = event.site in ("start", "exit")
        if event.t <= history.cleanup and event.ok and event.n > 0 and (life or event.side == "after"):
            key = (event.role, event.site, event.kind)
            counts[key] = max(counts.get(key, 0), event.n)
    roles = {role: place for place, role in enumerate(history.plan.topology.roles)}
    found = [SiteCount(*key, times) for key, times in counts.items()]
    return sorted(found, key=lambda count: (roles.get(count.role, len(roles)), count.role))


def sites_table(counts: Sequence[SiteCount]) -> Table:
    """The sites of one run, each as its first instant: role by role, with how often it is passed."""
    table = _table("!instant", ">times")
    before = ""
    for count in counts:
        if before and count.role != before:
            table.add_section()
        _add(table, count.instant, str(count.times))
        before = count.role
    return table


_FAMILY_WORDS = {
    "process": "done by a process to itself, or by the harness to another one, at an instant",
    "frames": "done by the proxy of a link to frames on their way",
    "client": "done by the client program to its own requests",
}


def faults_table(entries: Sequence[Entry]) -> Group:
    """The catalogue of faults, a table for each family: what each does, and an example."""
    parts: list[Table | Text] = []
    for family, words in _FAMILY_WORDS.items():
        table = _table(f"!{family}", words)
        for entry in entries:
            if entry.family == family:
                _add(table, entry.kind, Text(entry.sentence).append(f"\n{entry.example}", style="dim"))
        parts += [table, Text()]
    return Group(*parts, Text("One in full: nowedge faults KIND     To try one: nowedge run healthy --fault '...'"))


def fault_page(entry: Entry) -> Group:
    """One kind of fault in full."""
    table = _table("!setting", "is", "if left out")
    for setting in entry.settings:
        _add(table, setting.name, setting.type, "needed" if setting.default is None else setting.default)
    head = Text(entry.kind, style="bold").append(f": {entry.sentence}", style="default")
    paragraphs = entry.about.replace("``", "`").split("\n\n")
    about = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    kind, *words = entry.example.split()
    plan = "\n".join(["[[faults]]", f'kind = "{kind}"', *map(_toml, words)])
    return Group(head, Text(), Text(about), Text(), table, Text(), Text(entry.command), Text(), Text(plan))


def _toml(word: str) -> str:
    name, _, value = word.partition("=")
    plain = value in ("true", "false") or value.replace(".", "", 1).lstrip("-").isdigit()
    return f"{name} = {value}" if plain else f'{name} = "{value}"'


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    # What is long is folded, so that no other column has to go; not a figure (>), nor a name that is to be typed (!).
    for head in heads:
        right, whole = head.startswith(">"), head.startswith("!")
        table.add_column(
            head.lstrip(">!"), justify="right" if right else "left", no_wrap=right or whole, overflow="fold"
        )
    return table


def _add(table: Table, *cells: str | Text) -> None:
    # Instants have brackets, which rich would read as markup.
    table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def _tally(tally: Tally) -> list[Text]:
    if tally.runs == 1:
        return [Text(word, style=style_of(word)) for word in tally.words]
    return [Text(f"{word} {count} of {tally.runs}", style=style_of(word)) for word, count in tally.words.items()]


def _canary(result: HuntResult) -> Text:
    canary = result.canary
    if canary is None:
        return Text("not over", style="yellow")
    if canary.found:
        return Text(f"{canary.relay} relay: wedge proved after {plural(canary.plans, 'plan')}")
    return Text(
        f"{canary.relay} relay: NOT caught in {plural(canary.plans, 'plan')}; this hunt is blind", style="bold red"
    )


def _found_words(result: HuntResult) -> Text:
    if not result.found:
        return Text("0", style="bold green" if result.plans else "default")
    return Text(str(len(result.found)), style="bold red")


def _again(found: Found) -> str:
    confirmed = found.confirmed
    return f"{confirmed.words.get(found.verdict.word, 0)} of {confirmed.runs}" if confirmed.runs else "not repeated"


def _shrunk(found: Found) -> list[str]:
    """How a failure was shrunk, if it was."""
    if not found.shrink_runs:
        return []
    after = len(found.verdict.plan.get("faults", ()))
    faults = plural(found.faults_before, "fault")
    return [f"shrunk from {faults} to {after} in {plural(found.shrink_runs, 'run')}"]
