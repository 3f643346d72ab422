"""What holds for all oracles together; each one's own tests are in `tests.harness.oracles`."""

from __future__ import annotations

from pathlib import Path

from harness import oracles
from harness.oracles import ORACLES, check_all
from harness.targets import get
from tests.harness.synthetic import STARTED, history, mark, process, relay, request

TARGET = get("engine")


def test_a_healthy_history_breaks_no_rule() -> None:
    frames = relay(("go", 0), ("step", 1), ("step", 2), ("stop", 3))
    shutdown = [mark(800, "shutdown", "begin"), mark(850, "shutdown", "done")]
    assert check_all(history([*STARTED, *frames, *request(100, (7, 8)), *shutdown]), TARGET) == ()


def test_no_oracle_judges_a_run_that_the_world_stopped_for_a_wedge() -> None:
    processes = [process("client", -9, "cleanup"), process("dp0.rank0", -9, "cleanup")]
    stopped = history([mark(10, "request.sent", number=0)], ended="wedge", processes=processes, residue=["socket x"])
    assert check_all(stopped, TARGET) == ()


def test_every_oracle_is_a_file_that_says_what_it_is_and_which_invariants_it_covers() -> None:
    folder = Path(oracles.__file__).parent
    for code in ORACLES:
        said = (folder / f"{code.lower()}.py").read_text().partition('"""')[2].partition('"""')[0]
        assert said.startswith(f"{code}: ")
        assert "I" in said or "H" in said
