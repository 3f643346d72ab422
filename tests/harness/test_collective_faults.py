"""Faults of collectives and of the rendezvous store: what gloo makes of them, and what the engine does about it."""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist

from harness.faults import Block, Delay, Extra, Fault, Kill, Raise, Skip, Store, Swap, WrongRoot, WrongShape
from harness.history import Event, History
from harness.instant import Instant
from harness.plan import PlanError, from_builtins
from harness.seam import dist_seam, install, region
from harness.seam.flags import Flags
from harness.seam.region import Recorder, Region
from harness.seam.site import Outlets
from harness.targets import get
from harness.targets.engine import ENGINE, timeouts_of
from harness.world.real import RealWorld
from tests.harness.test_faults import SAFE, fired, plan, run, statuses, told

SECOND = 1_000_000_000
MEET, LIMIT = timedelta(seconds=30), timedelta(seconds=5)
"""For how long ranks look for each other, and for how long one waits in a collective."""


# bare process groups: what each rank has in its tensors


class Bare:
    """Ranks of a bare gloo group under the seam, each a forked process, and what each of them found."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        self._base, self._size = folder, size
        self._folder, self._memory = folder, -1
        self._runs = 0
        self.statuses: list[int] = []

    def run(self, program: Callable[[int], object], *faults: Fault) -> list[object]:
        """The results of ``program``, by rank; a name of an error where it raised one, None where it died."""
        self.close()
        self._runs += 1
        self._memory, self._folder = region.create(), self._base / f"run{self._runs}"
        self._folder.mkdir()
        pids = [self._fork(rank, program, faults) for rank in range(self._size)]
        self.statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        answers = [self._folder / f"{rank}" for rank in range(self._size)]
        return [msgspec.json.decode(answer.read_bytes()) if answer.exists() else None for answer in answers]

    def events(self, rank: int) -> list[Event]:
        return list(Region(self._memory, rank).events())

    def close(self) -> None:
        if self._memory >= 0:
            os.close(self._memory)

    def _fork(self, rank: int, program: Callable[[int], object], faults: tuple[Fault, ...]) -> int:
        pid = os.fork()
        if pid:
            return pid
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            (self._folder / f"{rank}").write_bytes(msgspec.json.encode(self._child(rank, program, faults)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _child(self, rank: int, program: Callable[[int], object], faults: tuple[Fault, ...]) -> object:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        install.install()
        recorder = Recorder(self._memory, rank, f"dp0.rank{rank}")
        flags = Flags(self._memory, region.FLAGS_AT)
        outlets = Outlets(flags=flags, change=dist_seam.change, before_store=dist_seam.before_store)
        install.begin(recorder, faults, outlets, ENGINE, {}, ENGINE.group_name)
        try:
            store = dist.FileStore(str(self._folder / "store"), self._size)  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=rank, world_size=self._size, timeout=MEET)
            return program(rank)
        except RuntimeError as error:
            return type(error).__name__


@pytest.fixture
def bare(tmp_path: Path) -> object:
    made = Bare(tmp_path)
    yield made
    made.close()


def at(site: str, n: int = 1, rank: int = 1) -> Instant:
    return Instant(f"dp0.rank{rank}", site, n=n, side="before")


def done(work: dist.Work | None) -> None:
    """Waits for a collective. Raises RuntimeError when it takes too long."""
    assert work is not None
    work.wait(LIMIT)


def sums(rank: int) -> list[float]:
    """Three sums; rank r gives 1, 2 and 3 times 10 to the r."""

    tensors = [torch.tensor([number * 10.0**rank]) for number in (1, 2, 3)]
    for tensor in tensors:
        done(dist.all_reduce(tensor, async_op=True))
    return [float(tensor) for tensor in tensors]


def two_sums(rank: int) -> list[float]:

    tensors = [torch.tensor([number * 10.0**rank]) for number in (1, 2)]
    for tensor in tensors[: 2 if rank else 1]:
        done(dist.all_reduce(tensor, async_op=True))
    return [float(tensor) for tensor in tensors]


def given(rank: int) -> list[float]:
    """A broadcast of rank 0 and a reduction to rank 0."""

    gift, sum_ = torch.tensor([5.0 + rank]), torch.tensor([10.0**rank])
    done(dist.broadcast(gift, src=0, async_op=True))
    done(dist.reduce(sum_, dst=0, async_op=True))
    return [float(gift), float(sum_)]


def gathered(rank: int) -> list[float]:

    parts = [torch.zeros(1), torch.zeros(1)]
    done(dist.all_gather(parts, torch.tensor([7.0 + rank]), async_op=True))
    return [float(part) for part in parts]


def test_a_group_without_faults_sums_alike(bare: Bare) -> None:
    assert bare.run(sums) == [[11.0, 22.0, 33.0], [11.0, 22.0, 33.0]]


def test_a_skipped_collective_leaves_the_rank_its_input_and_shifts_all_that_follow(bare: Bare) -> None:
    """Rank 1's second meets rank 0's first: gloo matches by order alone."""
    assert bare.run(two_sums, Skip(at("tp.all_reduce"))) == [[1.0 + 20.0, 2.0], [10.0, 1.0 + 20.0]]


def test_what_is_skipped_has_no_number_and_the_next_one_has_its(bare: Bare) -> None:
    bare.run(two_sums, Skip(at("tp.all_reduce")))
    issued = [(e.site, e.number) for e in bare.events(1) if e.side == "before" and e.site.startswith("tp.")]
    assert issued == [("tp.all_reduce", 1), ("tp.skipped", 1), ("tp.all_reduce", 1)]


def test_a_skipped_all_gather_has_the_ranks_own_part_everywhere(bare: Bare) -> None:
    assert bare.run(gathered) == [[7.0, 8.0], [7.0, 8.0]]
    _, skipper = bare.run(gathered, Skip(at("tp.all_gather")))
    assert skipper == [8.0, 8.0]


def test_an_extra_collective_meets_the_next_one_of_the_others(bare: Bare) -> None:
    """Rank 1's extra copy of its first, 10, meets rank 0's second, 2; its own second then finds nobody."""
    here, there = bare.run(sums, Extra(at("tp.all_reduce", 2)))
    assert bare.run(sums) == [[11.0, 22.0, 33.0]] * 2
    assert isinstance(here, list)
    assert here == [11.0, 22.0, 3.0 + 20.0]
    assert there == "RuntimeError", "its third waits for a fourth of rank 0 until its time is over"


def test_swapped_collectives_mix_the_data_of_both_silently(bare: Bare) -> None:
    here, there = bare.run(sums, Swap(at("tp.all_reduce")))
    assert here == [1.0 + 20.0, 2.0 + 10.0, 33.0]
    assert there == [10.0, 1.0 + 20.0, 33.0]
    assert bare.statuses == [0, 0]


@pytest.mark.parametrize("elements", [1, -1])
def test_another_number_of_elements_ends_the_rank_that_has_fewer(bare: Bare, elements: int) -> None:
    """Gloo aborts the process whose buffer is too small for what comes."""

    def program(rank: int) -> list[float]:
        tensor = torch.ones(64)
        done(dist.all_reduce(tensor, async_op=True))
        return tensor.tolist()

    assert bare.run(program) == [[2.0] * 64] * 2
    bare.run(program, WrongShape(at("tp.all_reduce"), elements))
    assert -signal.SIGABRT in bare.statuses


@pytest.mark.parametrize(("site", "own"), [("tp.broadcast", 6.0), ("tp.reduce", 10.0)])
def test_a_rank_with_another_root_has_not_what_the_root_gives(bare: Bare, site: str, own: float) -> None:
    """Both are their own roots then: what each says goes to a rank that does not listen."""
    assert bare.run(given) == [[5.0, 11.0], [5.0, 10.0]]
    answers = bare.run(given, WrongRoot(at(site), root=1))
    assert answers != [[5.0, 11.0], [5.0, 10.0]]
    there = answers[1]
    assert there == "RuntimeError" or own in there  # type: ignore[operator]


def test_a_root_that_is_the_same_is_no_fault(bare: Bare) -> None:
    assert bare.run(given, WrongRoot(at("tp.broadcast"), root=0)) == [[5.0, 11.0], [5.0, 10.0]]
    assert [e.site for e in bare.events(1) if e.site.startswith("fault.")] == ["fault.armed", "fault.reached"]


# the store


def test_every_call_to_the_store_is_a_site(bare: Bare) -> None:
    bare.run(sums)
    sites = [event.site for event in bare.events(1) if event.site.startswith("store.") and event.side == "after"]
    assert {"store.set", "store.wait", "store.get"} <= set(sites)


def test_a_store_that_answers_late_only_takes_its_time(bare: Bare) -> None:
    assert (
        bare.run(sums, Store(Instant("dp0.rank1", "store.set", side="before"), or_after=0.4))
        == [[11.0, 22.0, 33.0]] * 2
    )
    before = next(e.t for e in bare.events(1) if (e.site, e.side) == ("store.set", "before"))
    after = next(e.t for e in bare.events(1) if (e.site, e.side) == ("store.set", "after"))
    assert (after - before) / SECOND >= 0.4


# the engine


COLLECTIVES = [
    Skip(at("tp.all_reduce", 5)),
    Skip(at("tp.all_gather", 2)),
    Extra(at("tp.all_reduce", 5)),
    Extra(at("tp.all_gather", 1)),
    Swap(at("tp.all_reduce", 5)),
    Swap(at("tp.all_gather", 1)),
    WrongShape(at("tp.all_reduce", 5), 1),
    WrongShape(at("tp.all_reduce", 5), -1),
    WrongShape(at("tp.all_gather", 1), 1),
]


@pytest.mark.parametrize("tp", [2, 3])
@pytest.mark.parametrize("fault", COLLECTIVES, ids=str)
def test_a_wrong_collective_ends_with_an_error_in_time(world: RealWorld, fault: Fault, tp: int) -> None:
    history, verdict = run(world, plan(fault, tp=tp))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    kind, culprit, _ = told(history).split("|", 2)
    assert kind == "EngineDeadError"
    assert culprit in (*history.plan.topology.ranks, *([""] if tp > 2 else []))
    assert latency(history) < (timeouts_of(history.plan).step or 0.0) * 2 + 2


def latency(history: History) -> float:
    """Seconds from the fault to the client's error."""
    (struck,) = history.of(site="fault.fired")
    ended = next(event.t for event in history.of("client") if event.site == "request.failed")
    return (ended - struck.t) / SECOND


@pytest.mark.parametrize("relay", SAFE)
@pytest.mark.parametrize("tp", [2, 3])
def test_an_engine_without_such_faults_serves(world: RealWorld, relay: str, tp: int) -> None:
    _, verdict = run(world, plan(relay=relay, tp=tp))
    assert (verdict.ok, verdict.served) == (True, 1)


def test_data_mixed_silently_are_noticed_by_the_ranks_themselves(world: RealWorld) -> None:
    """Gloo sees nothing wrong in two collectives of one shape, and all ranks sample from the same logits."""
    history, verdict = run(world, plan(Swap(at("tp.all_reduce", 5)), tp=3))
    assert verdict.ok, verdict
    assert told(history).startswith("EngineDeadError|dp0.rank1|")
    assert "the ranks differ after step" in told(history)
    assert statuses(history)["dp0.rank1"] == 10


def test_a_relay_without_deadlines_waits_for_ever_and_the_proof_says_in_what(world: RealWorld) -> None:
    _, verdict = run(world, plan(Skip(at("tp.all_reduce", 5)), relay="unsynchronised"))
    assert (verdict.verdict, verdict.grade) == ("wedged", "proved")
    assert verdict.blame is not None
    assert "dp0.rank1 issued tp.all_gather instead" in verdict.blame.sentence


def test_a_wrong_root_is_for_the_one_relay_that_broadcasts(world: RealWorld) -> None:
    wrong = WrongRoot(at("tp.broadcast"), root=1)
    _, verdict = run(world, plan(wrong, relay="unsynchronised"))
    assert (verdict.verdict, fired(verdict)) == ("wedged", [1])
    with pytest.raises(PlanError, match="relay 'pushpull' and the model use no broadcast"):
        get("engine").check(plan(wrong))
    with pytest.raises(PlanError, match=r"root: 2; with tp=2 ranks count from 0"):
        get("engine").check(plan(WrongRoot(at("tp.broadcast"), root=2), relay="unsynchronised"))


@pytest.mark.parametrize("role", ["dp0.rank0", "dp0.rank1"])
def test_a_store_that_does_not_answer_a_rank_ends_the_start_in_time(world: RealWorld, role: str) -> None:
    history, verdict = run(world, plan(Store(Instant(role, "start"))))
    assert verdict.ok, verdict
    assert (verdict.refused, fired(verdict)) == (1, [1])
    assert told(history).startswith("StartupError|dp0.rank")
    _, late = run(world, plan(Store(Instant(role, "start"), or_after=0.4)))
    assert (late.ok, late.served, fired(late)) == (True, 1, [1])


GET = Instant("dp0.rank1", "store.get", side="before")


@pytest.mark.parametrize(
    ("fault", "status"), [(Raise(GET), 10), (Kill(GET), -signal.SIGKILL)], ids=lambda value: type(value).__name__
)
def test_a_rank_that_ends_in_a_call_to_the_store_is_named(world: RealWorld, fault: Fault, status: int) -> None:
    history, verdict = run(world, plan(fault))
    assert verdict.ok, verdict
    assert told(history).startswith("StartupError|dp0.rank1|")
    assert statuses(history)["dp0.rank1"] == status


@pytest.mark.parametrize("fault", [Delay(GET, 0.3), Block(GET, or_after=0.3)], ids=lambda value: type(value).__name__)
def test_a_call_to_the_store_can_be_late(world: RealWorld, fault: Fault) -> None:
    history, verdict = run(world, plan(fault))
    assert (verdict.ok, verdict.served) == (True, 1)
    before, after = (
        next(event.t for event in history.of("dp0.rank1", "store.get") if event.side == side)
        for side in ("before", "after")
    )
    assert (after - before) / SECOND >= 0.3


# what cannot be


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "skip", "at": "dp0.rank1:relay.send#1:before"}, "relay.send is no collective"),
        ({"kind": "skip", "at": "dp0.rank1:start"}, "start is no collective"),
        ({"kind": "swap", "at": "dp0.rank1:tp.all_reduce#1:after"}, "is behind the collective; write :before"),
        ({"kind": "wrong_root", "at": "dp0.rank1:tp.all_reduce#1:before", "root": 1}, "one of broadcast, reduce"),
        ({"kind": "wrong_root", "at": "dp0.rank1:tp.broadcast#1:before", "root": -1}, "ranks count from 0"),
        ({"kind": "wrong_shape", "at": "dp0.rank1:tp.all_reduce#1:before", "elements": 0}, "that changes nothing"),
        ({"kind": "store", "at": "dp0.rank1:start", "or_after": 0}, "outside 0..600 seconds"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault: dict[str, object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        from_builtins({"faults": [fault]})


def test_a_misspelt_call_of_the_store_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(PlanError, match=r"did you mean store\.get\?"):
        get("engine").check(plan(Delay(Instant.parse("dp0.rank1:store.gt#1:before"), 1)))


def test_a_collective_with_too_few_elements_to_take_away_is_left_as_it_is(world: RealWorld) -> None:
    """The digests are compared as one integer each."""
    _, verdict = run(world, plan(WrongShape(at("tp.all_gather", 2), -1)))
    assert (verdict.verdict, verdict.served) == ("vacuous", 1)
