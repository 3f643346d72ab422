"""The folder of a finding: what a person needs to see it, to run it again, and to judge it again.

``replay.json`` (run it again), ``history.json.gz`` (judge it again), ``finding.txt`` (read it), ``stacks.txt`` (where
each process of a wedge stood) and one ``ROLE.log`` per process that wrote anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import structs

from harness import history, replay
from harness.report.terminal import finding
from harness.trial import Trial
from harness.verdict import Verdict

DEFAULT = Path(".nowedge")

EXAMPLES = "examples"
"""The folder in it of plans that failed, with which the next hunt begins."""


class FolderError(ValueError):
    """A folder that cannot be written; one clear sentence."""


def usable(out: Path) -> Path:
    """Makes sure, before anything is run, that findings can be written to ``out``. Raises FolderError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".probe"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise FolderError(f"cannot write to {out}: {error.strerror or error}") from None
    return out


def path_of(out: Path, verdict: Verdict) -> Path:
    """Where a finding goes: named after its scenario and the first digits of its plan's digest."""
    return out / f"{verdict.scenario or verdict.target}-{verdict.digest[:4]}"


def write(out: Path, trial: Trial, more: Sequence[Trial] = ()) -> Verdict:
    """Writes a finding and returns its verdict with the names of the files. Raises FolderError.

    Of further runs of the same plan, ``more``, only the histories are written: ``history-2.json.gz`` and so on.
    """
    folder = path_of(out, trial.verdict)
    files = {"replay": folder / "replay.json", "history": folder / "history.json.gz", "text": folder / "finding.txt"}
    if trial.history.stacks:
        files["stacks"] = folder / "stacks.txt"
    verdict = structs.replace(trial.verdict, files={name: str(path) for name, path in files.items()})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files["replay"].write_bytes(replay.dump(replay.of(trial)))
        history.save(trial.history, files["history"])
        for number, other in enumerate(more, 2):
            history.save(other.history, folder / f"history-{number}.json.gz")
        files["text"].write_text(finding(verdict).plain + "\n", "utf-8")
        if trial.history.stacks:
            told = [f"== {role}\n\n{text.strip()}\n" for role, text in trial.history.stacks.items()]
            files["stacks"].write_text("\n".join(told), "utf-8")
        for process in trial.history.processes:
            if process.log:
                (folder / f"{process.role}.log").write_text(process.log, "utf-8", errors="replace")
    except OSError as error:
        raise FolderError(f"cannot write to {folder}: {error.strerror or error}") from None
    return verdict
