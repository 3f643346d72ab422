"""What a person reads of one verdict: first the verdict, then one sentence, who waits for whom, what to type next.

Built as rich text with line breaks of its own, so that the same lines go to a terminal in colour, to a pipe without,
and to a file. Prose is wrapped at ``WIDTH``; names, numbers and commands never are.
"""

from __future__ import annotations

import textwrap

from rich.text import Text

from harness.bug import Sighting
from harness.history import FaultCount
from harness.verdict import BugTrace, Edge, Verdict

WIDTH = 80
_MARGIN = " " * 13

_STYLES = {"passed": "bold green", "vacuous": "bold yellow", "budget": "bold yellow"}
_FAILED = "bold red"


def style_of(word: str) -> str:
    """The rich style of a verdict's word, with or without its grade."""
    return _STYLES.get(word.partition(" ")[0], _FAILED)


def headline(verdict: Verdict) -> Text:
    """The verdict, the scenario and the size of the run on one line."""
    topology = verdict.plan.get("topology", {})
    engine = verdict.plan.get("engine", {})
    parts = [f"tp={topology.get('tp', '?')} relay={engine.get('relay', '?')}"]
    if verdict.proof is not None:
        parts.append(f"{_milliseconds(verdict.proof.after_progress_ms)} after the last progress")
    elif verdict.verdict == "passed":
        parts.append(_served(verdict))
    line = Text(verdict.word, style=style_of(verdict.verdict))
    for part in (verdict.scenario, *parts):
        if part:
            line.append(f"  {part}", style="default")
    return line


def finding(verdict: Verdict, again: str = "") -> Text:
    """One verdict in full. ``again`` says how it repeats (``20 of 20``), if it was run more than once."""
    blocks = [headline(verdict)]
    blame = verdict.blame
    if blame is not None:
        blocks.append(_prose(blame.sentence))
        rows = [_edge(edge) for edge in blame.waits] + [("owed", what, "", "") for what in blame.owed]
        blocks.append(_rows(rows))
    for one in verdict.findings:
        blocks.append(_prose(f"{one.oracle}: {one.sentence}" + (f" [{one.event}]" if one.event else "")))
    if verdict.verdict == "vacuous":
        blocks.append(_prose("Nothing was proved: a fault that the plan needs never fired."))
    tail = [_fault(count) for count in verdict.faults]
    tail += [Text(f"  bug        {trace.id}   {_roles(trace)}") for trace in verdict.bugs]
    tail += [Text(f"  {name:<9}  {path}") for name, path in verdict.files.items() if name in ("history", "stacks")]
    if "replay" in verdict.files:
        repeats = f"      ({again})" if again else ""
        tail.append(Text(f"  again      nowedge replay {verdict.files['replay']}{repeats}"))
        if verdict.verdict == "wedged" and _can_be_a_script(verdict):
            tail.append(Text(f"  script     nowedge script {verdict.files['replay']}"))
    if tail:
        blocks.append(Text("\n").join(tail))
    return Text("\n\n").join(blocks)


def _can_be_a_script(verdict: Verdict) -> bool:
    """Whether the plan can be told as a script of its own."""
    from harness import plan, script  # which write what is told here

    try:
        script.check(plan.from_builtins(verdict.plan))
    except (plan.PlanError, script.ScriptError):
        return False
    return True


def sighting_words(sighting: Sighting) -> str:
    """What several runs saw of a bug: ``H4 go-twice: reached in 3 of 3 runs · triggered in 2 ...``."""
    reached = f"reached in {sighting.reached} of {plural(sighting.runs, 'run')}"
    failed = "none failed"
    if sighting.failed:
        some = f"{sighting.named} of {sighting.failed} failures name it"
        failed = some if sighting.named else f"none of {plural(sighting.failed, 'failure')} names it"
    return f"{sighting.id} {sighting.name}: {reached} · triggered in {sighting.triggered} · {failed}"


def _roles(trace: BugTrace) -> str:
    reached = f"reached in {', '.join(trace.reached)}" if trace.reached else "not reached"
    return f"{reached} · triggered in {', '.join(trace.triggered)}" if trace.triggered else reached


def fault_words(count: FaultCount) -> str:
    """What became of a fault: ``armed · reached 1 · fired 1``."""
    armed = "armed" if count.armed else "not armed"
    return f"{armed} · reached {count.reached} · fired {count.fired}"


def _fault(count: FaultCount) -> Text:
    words = fault_words(count)
    style = "default" if count.fired else "yellow"
    line = f"  fault      {count.fault}"
    if len(line) + len(words) + 3 <= WIDTH:
        text = Text(f"{line:<55}   ").append(words, style=style)
    else:
        text = Text(f"{_filled(line)}\n{_MARGIN}").append(words, style=style)
    return text.append(f"\n{_filled(_MARGIN + count.why)}", style=style) if count.why else text


def _filled(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent=_MARGIN, break_long_words=False, break_on_hyphens=False)


def _edge(edge: Edge) -> tuple[str, str, str, str]:
    if edge.why:
        why = edge.why
    elif edge.ended_by:
        why = f"needs {', '.join(edge.ended_by)}"
    else:
        why = "nothing left can end it"
    # A rank waits for a frame, but in a collective: it is part of that itself.
    inside = edge.waits_for.startswith(edge.site)
    return edge.role, f"waits {'in' if inside else 'for'} {edge.waits_for}", f"{edge.since_ms / 1000:.2f} s", why


def _rows(rows: list[tuple[str, str, str, str]]) -> Text:
    roles = max((len(row[0]) for row in rows), default=0)
    whats = max((len(row[1]) for row in rows if row[2]), default=0)
    lines = []
    for role, what, since, why in rows:
        line = f"  {role:<{max(roles, 9)}}  {what:<{whats if since else 0}}"
        if since:
            line += f"  {since:>7}"
        if why and len(line) + len(why) + 3 > WIDTH:
            line += "\n" + " " * (max(roles, 9) + 6) + why
        elif why:
            line += f"   {why}"
        lines.append(Text(line.rstrip()))
    return Text("\n").join(lines)


def _prose(sentence: str) -> Text:
    return Text(textwrap.fill(sentence, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))


def _served(verdict: Verdict) -> str:
    parts = []
    if verdict.served or not verdict.refused:
        parts.append(f"{plural(verdict.served, 'request')} served")
    if verdict.refused:
        parts.append(f"{verdict.refused} refused with the right error")
    return f"{', '.join(parts)}  {verdict.seconds:.2f} s"


def plural(count: int, noun: str) -> str:
    """``1 plan``, ``2 plans``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _milliseconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
