"""The thread that watches the lifeline is part of the rank: without it the rank does not go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from engine.clock import Deadline
from engine.core import EngineCore
from engine.errors import ExitCode, PeerFailed, StopRequested
from engine.lifeline import LAST_ANSWERS, Lifeline, Reporter
from engine.messages import Notice
from tests.engine import wires
from tests.engine.bare import bare
from tests.engine.forks import ForkFactory, replace
from tests.engine.seats import QuietLifeline


def breaking(victim: str, when: Path) -> Callable[[str], None]:
    """The thread of that rank fails when the file is there."""

    def before(role: str) -> None:
        def wait_for_news(self: Lifeline) -> bool:
            wires.await_path(when)
            raise OSError("the poll broke")

        if role == victim:
            replace(Lifeline, "_wait_for_news", wait_for_news)

    return before


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", ["idle", "stuck"])
def test_a_lifeline_thread_that_fails_in_service_ends_its_rank_and_says_so(
    moment: str, victim: int, tmp_path: Path
) -> None:
    role, now = f"dp0.rank{victim}", tmp_path / "now"
    stuck = wires.instead(role, EngineCore, "step", lambda self, *args: threading.Event().wait())
    factory = ForkFactory(wires.all_of(breaking(role, now), *([stuck] if moment == "stuck" else [])))
    with bare(tmp_path, factory, 2) as engine:
        engine.until_ready()
        if moment == "stuck":
            engine.peers[0].ask("a", [1], 4)
            engine.await_that(lambda: engine.pulses.read()[victim].busy)
        now.touch()
        rank = engine.ranks.all[victim]
        engine.until(lambda: rank.ended and rank.silent)
        assert rank.exitcode == ExitCode.OWN_FAILURE
        assert rank.failed is not None
        assert (rank.failed.code, rank.failed.culprit) == (ExitCode.OWN_FAILURE, role)
        assert rank.failed.cause == "its lifeline thread failed: OSError: the poll broke"


def test_a_lifeline_thread_that_fails_in_the_start_ends_its_rank_and_says_so(tmp_path: Path) -> None:
    with bare(tmp_path, ForkFactory(breaking("dp0.rank0", tmp_path))) as engine:
        engine.start()
        assert engine.ended() == [ExitCode.OWN_FAILURE]
        assert engine.first.failed is not None
        assert engine.first.failed.cause == "its lifeline thread failed: OSError: the poll broke"


# ---- what the main thread reads ----


class Line:
    """A lifeline of this process, and the launcher's end of it."""

    def __init__(self) -> None:
        self._fd, write = os.pipe()
        self.lifeline = QuietLifeline(
            self._fd,
            Reporter(write),
            role="dp0.rank0",
            startup=Deadline.never(),
            stop_grace=60.0,
            remove_on_orphan=None,
        )
        self._write = write

    def draining(self) -> bool:
        return self.lifeline.draining

    def say(self, notice: Notice) -> None:
        os.write(self._write, msgspec.json.encode(notice) + b"\n")

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._write)


@pytest.fixture
def line() -> Iterator[Line]:
    made = Line()
    yield made
    made.close()


def test_departures_end_only_the_waits_that_ask_for_them(line: Line) -> None:
    line.say(Notice("gone", client=2))
    line.say(Notice("gone", client=1))
    assert not line.lifeline.wait([], Deadline.never(), departures=True)
    assert not line.lifeline.wait([], Deadline.after(0.01))
    assert line.lifeline.departed() == [2, 1]
    assert line.lifeline.departed() == []
    line.lifeline.check()


def test_a_notice_that_the_watching_thread_has_read_wakes_who_sleeps_in_a_wait(line: Line) -> None:
    lifeline = line.lifeline
    about_to_sleep = threading.Event()

    class Long(Deadline):
        def remaining_ms(self) -> int | None:
            about_to_sleep.set()
            return super().remaining_ms()

    # The sleeper looks at another descriptor: as if the pipe had been emptied before it could look at that.
    pipe, lifeline.fd = lifeline.fd, os.eventfd(0, os.EFD_NONBLOCK)
    sleeper = threading.Thread(target=lambda: lifeline.wait([], Long(None), departures=True), daemon=True)
    sleeper.start()
    assert about_to_sleep.wait(3.0)
    line.say(Notice("gone", client=2))
    os.close(lifeline.fd)
    lifeline.fd = pipe
    lifeline._noticed = True
    lifeline._pick_up()
    sleeper.join(3.0)
    assert not sleeper.is_alive()
    assert lifeline.departed() == [2]


def test_a_later_stop_can_hurry_an_earlier_one_and_never_make_it_kinder(line: Line) -> None:
    lifeline = line.lifeline
    assert not line.draining()
    line.say(Notice("stop", limit=30.0, drain=True))
    with pytest.raises(StopRequested):
        lifeline.check()
    lifeline.check(stop=False)
    assert line.draining()
    line.say(Notice("stop", limit=50.0))
    lifeline.check(stop=False)
    assert not line.draining()
    assert (lifeline._stop_until.remaining() or 0.0) <= 30.0
    line.say(Notice("stop", limit=50.0, drain=True))
    lifeline.check(stop=False)
    assert not line.draining()
    line.say(Notice("fail", "dp0.rank1", "it went wrong"))
    with pytest.raises(PeerFailed, match="it went wrong"):
        lifeline.check(stop=False)


@pytest.mark.parametrize(("limit", "kept"), [(60.0, LAST_ANSWERS), (0.2, 0.1)])
def test_a_drain_leaves_time_for_the_last_answers(limit: float, kept: float, line: Line) -> None:
    line.say(Notice("stop", limit=limit, drain=True))
    line.lifeline.check(stop=False)
    line.lifeline._stop_until = Deadline.after(kept + 30.0)
    assert line.draining()
    line.lifeline._stop_until = Deadline.after(kept)
    assert not line.draining()


def test_a_stop_without_a_limit_has_the_configured_time(line: Line) -> None:
    line.say(Notice("stop"))
    line.lifeline.check(stop=False)
    assert 50.0 < (line.lifeline._stop_until.remaining() or 0.0) <= 60.0
