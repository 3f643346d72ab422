"""Which of several deaths is the cause of the others.

When one rank dies the others leave because of it, and nothing says in which order the launcher sees them. Rule: a rank
that was killed by a signal, failed by itself, or left unasked is a primary cause; one that left because of a peer, a
deadline or the launcher is not. Without a primary one, a rank that ran into a deadline accuses whom it waited for: the
one it names, or the only one that says nothing itself, or of several silent ones the one that is stopped. If all say
something and none names anybody, a start is blamed on the rank that is furthest behind; in service nobody is named,
rather than somebody at random. Before that, one that came to a collective only when another's deadline in it had passed
is the one that was waited for.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from engine.clock import Deadline
from engine.errors import ExitCode
from engine.health import is_stopped
from engine.launch import LOST_STATUS, Rank, Ranks
from engine.messages import CLIENT_ROLE, PHASES
from engine.relay.frames import Place

SETTLE = 0.5
"""Seconds to wait for a primary cause when the first thing seen is a rank that left because of another."""

SECONDARY = (ExitCode.PEER_FAILED, ExitCode.DEADLINE, ExitCode.LAUNCHER_GONE)


@dataclass(frozen=True, slots=True)
class Death:
    """The one cause of the engine's death. `phase` is the last start-up phase that the culprit reported.

    `culprit` is empty if nobody can be named.
    """

    culprit: str
    cause: str
    exit_code: int | None
    phase: str


def has_failed(rank: Rank) -> bool:
    """Whether the rank has ended or said that it is about to."""
    return rank.ended or rank.failed is not None


def is_primary(rank: Rank) -> bool:
    """Whether the rank's end is its own doing or nobody's."""
    code = _code(rank)
    return code is not None and code not in SECONDARY


def settle(ranks: Ranks) -> Death:
    """Wait, at most :data:`SETTLE` seconds, until the cause is clear, and name it. Some rank must have failed."""
    deadline = Deadline.after(SETTLE)
    while not deadline.expired() and not any(is_primary(rank) and rank.ended for rank in ranks.all):
        if all(has_failed(rank) for rank in ranks.all) and not any(is_primary(rank) for rank in ranks.all):
            break
        ranks.wait(deadline)
    return judge(ranks.all)


def judge(ranks: Sequence[Rank]) -> Death:
    """Name the cause from what is known now."""
    failed = [rank for rank in ranks if has_failed(rank)]
    primary = next((rank for rank in failed if is_primary(rank)), None)
    if primary is not None:
        return _death(primary, _how(primary))
    witnesses = sorted(failed, key=lambda rank: _code(rank) != ExitCode.DEADLINE)
    for witness in witnesses:
        report = witness.failed
        if report is not None and (report.code, report.culprit) == (ExitCode.DEADLINE, CLIENT_ROLE):
            return Death(CLIENT_ROLE, f"{witness.role} waited for it: {_how(witness)}", None, witness.phase)
        accused = _accused(witness, ranks)
        if accused is not None:
            halted = "it is stopped by a signal, and " if is_stopped(accused.process.pid) else ""
            return _death(accused, f"{halted}{witness.role} waited for it: {_how(witness)}")
    late = _late(failed)
    if late is not None:
        return _death(late, f"it came too late to what {witnesses[0].role} waited for: {_how(witnesses[0])}")
    last = furthest_behind(failed)
    if last.ready is not None:
        return Death("", f"{witnesses[0].role}: {_how(witnesses[0])}", None, last.phase)
    return _death(last, _how(last))


def furthest_behind(ranks: Sequence[Rank]) -> Rank:
    """Whom the others most likely wait for in a start that does not end: one that is stopped, else by its phase."""
    halted = _halted(ranks)
    return halted or min(ranks, key=lambda rank: (rank.ready is not None, PHASES.index(rank.phase)))


def _accused(witness: Rank, ranks: Sequence[Rank]) -> Rank | None:
    named = witness.failed.culprit if witness.failed is not None else ""
    for rank in ranks:
        if rank.role == named and rank is not witness:
            return rank
    quiet = [rank for rank in ranks if not has_failed(rank)]
    return quiet[0] if len(quiet) == 1 else _halted(quiet)


def _late(failed: Sequence[Rank]) -> Rank | None:
    """A rank that came late to the collective in which the first deadline passed."""
    reports = [(rank, rank.failed) for rank in failed if rank.failed is not None]
    passed = [report for _, report in reports if report.code == ExitCode.DEADLINE and report.begun]
    if not passed:
        return None
    first = min(passed, key=lambda report: report.at)
    late = [
        (report.begun, -report.since, rank.role, rank)
        for rank, report in reports
        if Place(report.begun, report.since, report.inside).came_late(first.begun, first.at)
    ]
    return min(late)[-1] if late else None


def _halted(ranks: Sequence[Rank]) -> Rank | None:
    """A rank that lives and is stopped, and so keeps others waiting: it can be seen though it cannot say anything."""
    return next((rank for rank in ranks if not rank.ended and is_stopped(rank.process.pid)), None)


def _death(rank: Rank, cause: str) -> Death:
    return Death(rank.role, cause, rank.exitcode, rank.phase)


def _code(rank: Rank) -> int | None:
    """What the rank's end means: its report's code, unless the process ended in another way than it said."""
    if rank.ended and (rank.failed is None or (rank.exitcode or 0) < 0):
        return rank.exitcode
    return rank.failed.code if rank.failed is not None else None


def _how(rank: Rank) -> str:
    if rank.ended and rank.exitcode is not None and rank.exitcode < 0:
        try:
            name = signal.Signals(-rank.exitcode).name
        except ValueError:
            name = f"signal {-rank.exitcode}"
        return f"killed by {name}"
    if rank.failed is not None:
        return rank.failed.cause
    if rank.exitcode == LOST_STATUS:
        return "ended, and its exit status was lost (is SIGCHLD ignored in this program?)"
    return f"left unasked with exit code {rank.exitcode}"
