"""The stillness test: what is asleep, what ticks, what is armed, and what nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness import stillness
from harness.history import DoubleLook, Look, Outsiders, Snapshot, Thread, Wait
from harness.targets import Slice

MS = 1_000_000
HORIZON = 30_000 * MS
QUIET = Outsiders()
WATCHES = {"lifeline": "word from the launcher"}
SLICES = (Slice("tp.", 0.05, 1.0), Slice("endless.", 0.05, None))


def thread(
    tid: int = 1, name: str = "python", state: str = "S", runs: int = 5, call: str = "poll", ends: int | None = -1
) -> Thread:
    return Thread(tid, name, state, runs, call, ends)


def wait(
    tid: int = 1, site: str = "relay.recv", since: int = 950 * MS, ends: int = -1, held: bool = False, progress: int = 3
) -> Wait:
    return Wait(tid, site, since=since, gives_up=ends, held=held, progress=progress)


def looks(
    first: Sequence[Thread],
    second: Sequence[Thread],
    waits: Sequence[Wait] = (wait(),),
    later: Sequence[Wait] | None = None,
    gap: int = 20,
    outsiders: Outsiders = QUIET,
) -> DoubleLook:
    began = 1000 * MS
    a = Look(began, began + MS, (Snapshot("dp0.rank1", 1, tuple(first), tuple(waits)),))
    after = tuple(waits if later is None else later)
    b = Look(began + (1 + gap) * MS, began + (2 + gap) * MS, (Snapshot("dp0.rank1", 1, tuple(second), after),))
    return DoubleLook(a, outsiders, b, HORIZON)


def judge(both: DoubleLook, names: dict[tuple[str, int], str] | None = None) -> stillness.Stillness:
    return stillness.test(both, names or {}, WATCHES, SLICES)


def test_threads_that_slept_through_are_still() -> None:
    result = judge(looks([thread()], [thread()]))
    assert (result.still, result.ends_at, result.doubts) == (True, None, ())


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([thread(state="R")], [thread()]),
        ([thread()], [thread(state="R")]),
        ([thread()], [thread(state="T")]),
        ([thread()], [thread(state="D")]),
        ([thread(runs=5)], [thread(runs=6)]),
        ([thread()], [thread(), thread(2)]),
        ([thread(), thread(2)], [thread()]),
    ],
)
def test_anything_that_ran_or_came_or_went_is_not_still(first: list[Thread], second: list[Thread]) -> None:
    assert not judge(looks(first, second)).still


def test_another_wait_in_the_second_look_is_not_still() -> None:
    for other in (wait(since=11 * MS), wait(progress=4), wait(site="tp.broadcast")):
        assert not judge(looks([thread()], [thread()], later=[other])).still
    assert not judge(looks([thread()], [thread()], later=[])).still


def test_a_process_that_is_stopped_is_held_and_nothing_is_proved_meanwhile() -> None:
    frozen = [thread(state="T"), thread(2, state="T", call="epoll_wait", ends=1100 * MS)]
    result = judge(looks(frozen, frozen, waits=[wait(site="fault.stop", held=True)]))
    assert (result.still, result.ends_at, result.doubts, result.stopped) == (False, None, (), ("dp0.rank1",))
    for outside in (Outsiders(harness_due=1), Outsiders(proxy_quiet=False)):
        other = judge(looks(frozen, frozen, outsiders=outside))
        assert (other.still, other.stopped) == (False, ())
    moved = judge(looks(frozen, [thread(state="T"), thread(2, state="S")]))
    assert (moved.still, moved.stopped) == (False, ())


def test_a_ticker_may_run_if_it_had_the_time_to_tick() -> None:
    gloo = [thread(), thread(2, "gloo_tcp_loop", runs=100, call="epoll_wait", ends=1010 * MS)]
    ticked = [thread(), thread(2, "gloo_tcp_loop", runs=102, call="epoll_wait", ends=1040 * MS)]
    result = judge(looks(gloo, ticked, gap=20))
    assert result.still
    assert result.ends_at is None
    assert any("ticks every 10 ms" in fact for fact in result.facts)
    assert not judge(looks(gloo, ticked, gap=3)).still


def test_a_ticker_that_is_awake_is_not_still() -> None:
    gloo = [thread(), thread(2, "gloo_tcp_loop", state="R")]
    assert not judge(looks([thread(), thread(2, "gloo_tcp_loop")], gloo)).still


def test_a_reconnecting_socket_must_have_tried_again_in_vain() -> None:
    def io(runs: int, now: int) -> list[Thread]:
        return [thread(), thread(2, "ZMQbg/IO/0", runs=runs, call="epoll_wait", ends=now + 120 * MS)]

    early = judge(looks(io(5, 1000 * MS), io(5, 1021 * MS), gap=20))
    assert early.ends_at is not None
    waited = judge(looks(io(5, 1000 * MS), io(6, 1131 * MS), gap=130))
    assert (waited.still, waited.ends_at) == (True, None)


def test_an_armed_timer_within_the_horizon_ends_the_silence() -> None:
    ends = 1500 * MS
    assert judge(looks([thread()], [thread(ends=ends)])).ends_at == ends
    assert judge(looks([thread()], [thread()], waits=[wait(ends=ends)])).ends_at == ends
    assert judge(looks([thread()], [thread()], outsiders=Outsiders(proxy_timer=ends))).ends_at == ends


def test_a_timer_beyond_the_horizon_counts_as_never_and_is_stated() -> None:
    result = judge(looks([thread()], [thread(ends=1_800_000 * MS)]))
    assert (result.still, result.ends_at) == (True, None)
    assert any("beyond the horizon" in fact for fact in result.facts)


@pytest.mark.parametrize(
    "outsiders", [Outsiders(unannounced_deaths=1), Outsiders(proxy_quiet=False), Outsiders(harness_due=1)]
)
def test_what_is_in_flight_outside_is_not_still(outsiders: Outsiders) -> None:
    assert not judge(looks([thread()], [thread()], outsiders=outsiders)).still


def test_a_wait_that_the_harness_itself_will_end_is_not_still() -> None:
    assert not judge(looks([thread()], [thread()], waits=[wait(site="zygote.start", held=True)])).still


def test_a_wait_that_nobody_declared_is_a_doubt() -> None:
    silent = [thread(), thread(2, "python", call="read")]
    assert judge(looks(silent, silent)).doubts
    assert not judge(looks(silent, silent), {("dp0.rank1", 2): "lifeline"}).doubts
    parked = [thread(), thread(2, "python", call="futex")]
    assert not judge(looks(parked, parked)).doubts
    unknown = [thread(), thread(2, "pt_gloo_runloop", call="call 999", ends=None)]
    assert judge(looks(unknown, unknown)).doubts


def test_a_main_thread_outside_the_seam_is_a_doubt_even_in_a_futex() -> None:
    main = [thread(call="futex")]
    assert judge(looks(main, main, waits=[])).doubts


def sliced(site: str, since: int = 950) -> Wait:
    """A wait that gives up within its slice."""
    return wait(site=site, since=since * MS, ends=1030 * MS)


def test_a_wait_in_endless_slices_needs_a_whole_slice_between_the_looks() -> None:
    first, second = [thread(runs=5, ends=1030 * MS)], [thread(runs=7, ends=1080 * MS)]
    result = judge(looks(first, second, [sliced("endless.wait")], gap=60))
    assert (result.still, result.ends_at, result.doubts) == (True, None, ())
    assert any("again every 50 ms" in fact for fact in result.facts)
    assert not judge(looks(first, second, [sliced("endless.wait")], gap=30)).still
    assert not judge(looks(first, second, [sliced("relay.recv")], gap=60)).still, "these slices nobody has declared"


def test_a_wait_in_slices_that_has_got_on_is_not_still() -> None:
    first, second = [thread(runs=5)], [thread(runs=7)]
    later = wait(site="endless.wait", ends=1080 * MS, progress=4)
    assert not judge(looks(first, second, [sliced("endless.wait")], [later], gap=60)).still


def test_a_wait_in_slices_ends_by_its_own_limit_until_that_is_long_over() -> None:
    first, second = [thread(runs=5)], [thread(runs=7)]
    result = judge(looks(first, second, [sliced("tp.all_reduce", since=900)], gap=60))
    assert (result.still, result.ends_at) == (True, 1900 * MS)
    just_over = judge(looks(first, second, [sliced("tp.all_reduce", since=-100)], gap=60))
    assert just_over.ends_at == 900 * MS
    long_over = judge(looks(first, second, [sliced("tp.all_reduce", since=-1000)], gap=60))
    assert (long_over.still, long_over.ends_at, long_over.doubts) == (True, None, ())
    assert any("after its own limit of 1 s" in fact for fact in long_over.facts)


def test_a_gap_has_room_for_a_tick_and_for_a_whole_slice() -> None:
    def needed(process: Snapshot) -> int:
        return stillness.gap_needed(process, HORIZON, 0, SLICES)

    assert needed(Snapshot("dp0.rank1", 1, (thread(),), (wait(),))) == 0
    assert needed(Snapshot("dp0.rank1", 1, (thread(name="gloo_tcp_loop"),), (wait(),))) == 15 * MS
    assert needed(Snapshot("dp0.rank1", 1, (thread(),), (sliced("tp.all_reduce"),))) == 55 * MS
    assert needed(Snapshot("dp0.rank1", 1, (thread(),), (wait(site="tp.all_reduce"),))) == 0, "no slice: without end"
    assert needed(Snapshot("dp0.rank1", 1, (thread(),), (wait(site="store.get"),))) == 15 * MS
