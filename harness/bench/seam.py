"""seam: what the seam costs an engine that runs under it with nothing armed.

One engine, `tiny` on two ranks, serves batches of eight requests; in every process of it, the client's included, the
seam is installed once and then switched on and off in turn. The cost is judged on CPU time (of all threads of all
processes, as the kernel counts it) for equal work, since the wall time of gloo's rounds varies more than the seam
costs.
Beside it the cost of one wrapped call, a send or a receive on an ``inproc`` socket pair in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import zmq

from engine.client.aio import AsyncMPClient
from engine.config import EngineConfig
from engine.errors import EngineError
from engine.launch import Process, SpawnFactory, run_target
from engine.messages import Request, SamplingParams
from harness.bench import BenchError, Options
from harness.clock import now
from harness.seam import install, region, site
from harness.seam.region import Recorder, Region
from harness.seam.site import Outlets, Seam
from harness.statistics import interval
from harness.targets import get

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds",)
"""The options that apply."""

ROUNDS = 300
"""Rounds if nothing else is said; in each the engine serves four batches: without, with, with, without."""

BATCH = 8
TOKENS = 25
"""Tokens of each of the :data:`BATCH` requests of a batch, which takes as many steps.

Few, so that what the machine does meanwhile falls on both sides of a comparison alike.
"""

CALLS = 20_000
"""Sends, and as many receives, that one figure for a call is made of."""

CALL_ROUNDS = 20
"""Rounds of them at most."""

NEEDED = 0.97
"""The share of the throughput without the seam that is needed with it."""

_TARGET = "harness.bench.seam:run_under_seam"
_ON, _OFF = signal.SIGUSR1, signal.SIGUSR2
_HERE = 15
"""The region of this process."""


class SeamFactory:
    """Starts ranks that have the seam, switched on: so it knows their sockets, as it does in a run."""

    def __init__(self, memory: int) -> None:
        self._inner = SpawnFactory()
        self._memory = memory
        self.pids: list[int] = []

    def start(self, role: str, target: str, args: tuple[str | int | bytes, ...], fds: Sequence[int]) -> Process:
        index = len(self.pids)
        process = self._inner.start(role, _TARGET, (role, index, target, *args), [*fds, self._memory])
        self.pids.append(process.pid)
        return process


def run_under_seam(role: str, index: int, target: str, *rest: Any) -> None:
    """A rank with the seam: SIGUSR1 switches it on, with no event recorded, and SIGUSR2 off."""
    *args, fds = rest
    *own, memory = fds
    install.install()
    seam = _begin(memory, index, role)
    signal.signal(_ON, lambda *_: _switch_on(seam))
    signal.signal(_OFF, lambda *_: site.deactivate())
    raise SystemExit(run_target(role, target, tuple(args), own))


def _begin(memory: int, index: int, role: str) -> Seam:
    target = get("engine")
    return install.begin(Recorder(memory, index, role), (), Outlets(), target, {}, target.group_name)


def _switch_on(seam: Seam) -> None:
    seam.recorder.clear()
    site.activate(seam)


def measure(options: Options) -> dict[str, Any]:
    """Measures in rounds. Raises BenchError if an event found no room."""
    rounds = options.rounds or ROUNDS
    memory = region.create()
    install.install()
    seam = _begin(memory, _HERE, "client")
    try:
        ratios, lost = asyncio.run(_rounds(memory, seam, rounds, options))
        calls = [_call_cost(seam) for _ in range(min(rounds, CALL_ROUNDS))]
    except EngineError as error:
        raise BenchError(f"seam: {error}") from error
    finally:
        site.deactivate()
        os.close(memory)
    if lost:
        raise BenchError(f"seam: {lost} events found no room, so that what was measured is not what the seam costs")
    ratio, edges = median(ratios), interval(ratios)
    return {
        "name": "seam",
        "rounds": rounds,
        "ratio": round(ratio, 4),
        "interval": [round(edge, 4) for edge in edges],
        "needed": NEEDED,
        "reached": ratio >= NEEDED,
        "call_microseconds": round(median(calls), 2),
        "call_interval": [round(edge, 2) for edge in interval(calls)],
        "versions": {"python": platform.python_version(), "pyzmq": zmq.__version__},
        "cores": len(os.sched_getaffinity(0)),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether the engine keeps enough of its throughput."""
    return bool(result["reached"])


def table(result: dict[str, Any]) -> RenderableType:
    """Two figures with their intervals, and whether they are good enough."""
    from rich.console import Group
    from rich.text import Text

    word = "reaches" if result["reached"] else "does not reach"
    low, high = result["interval"]
    least, most = result["call_interval"]
    return Group(
        Text(f"throughput with the seam   {result['ratio']:.1%} of that without   ({low:.1%} to {high:.1%})"),
        Text(f"one wrapped call           {result['call_microseconds']:.2f} us   ({least:.2f} to {most:.2f})"),
        Text(""),
        Text(
            f"by CPU time; medians of {result['rounds']} rounds of {4 * BATCH} requests; {result['cores']} cores: "
            f"it {word} the {NEEDED:.0%} that it needs",
            style="bold" if result["reached"] else "bold red",
        ),
    )


async def _rounds(memory: int, seam: Seam, rounds: int, options: Options) -> tuple[list[float], int]:
    """For each round the share of the throughput; and how many events were lost in all."""
    factory = SeamFactory(memory)
    options.show("measuring  starting the engine")
    client = AsyncMPClient(EngineConfig(tp_size=2, max_num_seqs=BATCH), factory)
    ratios, lost = [], 0
    try:
        engine = _Engine(client, [*factory.pids, os.getpid()])
        await engine.batch()  # the first is slower
        for index in range(rounds):
            options.show(f"measuring  round {index + 1} of {rounds}")
            spent = {True: 0, False: 0}
            for on in (False, True, True, False):
                engine.switch(seam if on else None)
                await engine.batch(tokens=1)  # now every rank has passed the switch
                spent[on] += await engine.batch()
                lost += sum(_lost(memory, place) for place in (0, 1, _HERE)) if on else 0
            ratios.append(spent[False] / spent[True])
    finally:
        site.deactivate()
        client.shutdown()
    return ratios, lost


class _Engine:
    """The engine under measurement. `pids` are all its processes, with the client's."""

    def __init__(self, client: AsyncMPClient, pids: list[int]) -> None:
        self._client = client
        self._pids = pids
        self._served = 0

    def switch(self, seam: Seam | None) -> None:
        """The seam on or off, everywhere."""
        for pid in self._pids[:-1]:
            os.kill(pid, _ON if seam is not None else _OFF)
        if seam is not None:
            _switch_on(seam)
        else:
            site.deactivate()

    async def batch(self, tokens: int = TOKENS) -> int:
        """Serve a batch; the nanoseconds of CPU time that it took."""
        began = sum(map(_cpu_time, self._pids))
        names = {f"{self._served}-{place}" for place in range(BATCH)}
        self._served += 1
        for place, name in enumerate(sorted(names)):
            # Never the same prompt twice: the prefix cache would take work away.
            prompt = [self._served % 250 + 1, self._served // 250 + 1, place + 1]
            await self._client.add_request_async(Request(name, prompt, SamplingParams(tokens)))
        while names:
            batch = await self._client.get_output_async()
            names -= {output.request_id for output in batch.outputs if output.finish_reason is not None}
        return sum(map(_cpu_time, self._pids)) - began


def _cpu_time(pid: int) -> int:
    """Nanoseconds that all threads of a process have run."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            total += int((task / "schedstat").read_text().split()[0])
    return total


def _lost(memory: int, place: int) -> int:
    found = Region(memory, place)
    try:
        return found.lost
    finally:
        found.close()


def _call_cost(seam: Seam) -> float:
    """Microseconds that the seam adds to a send or a receive."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    pull.bind("inproc://calls")
    push.connect("inproc://calls")
    try:
        site.deactivate()
        plain = _calls(push, pull)
        _switch_on(seam)
        wrapped = _calls(push, pull)
    finally:
        site.deactivate()
        context.destroy(linger=0)
    return (wrapped - plain) / (2 * CALLS) / 1000


def _calls(push: zmq.Socket[bytes], pull: zmq.Socket[bytes]) -> int:
    began = now()
    for _ in range(CALLS):
        push.send(b"x", zmq.NOBLOCK)
        pull.recv(zmq.NOBLOCK)
    return now() - began
