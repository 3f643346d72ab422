"""proxy: what the ZMTP proxy adds to a round trip, and how many small frames it carries a second.

Three ways from one socket to another, over Unix sockets, with the other end in a process of its own, each measured in
its turn, several rounds in one run:

- `direct`: no process between them.
- `proxy`: the proxy as plans use it (:mod:`harness.proxy`), without a rule: it reads every frame, has the engine's own
  function name it, and keeps its ledger complete.
- `forwarder`: a proxy in Python that only copies bytes (:mod:`harness.bench.carriers`).

A frame is a step frame of the engine's relay. A round trip goes there and back; what is added to it is the difference
of the medians of one round. Figures are medians over rounds, intervals hold 95 %.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import zmq

from engine.relay.frames import FrameKind, Step, encode
from harness.bench import BenchError, Options, carriers
from harness.clock import SECOND, now, pause, seconds_since
from harness.proxy import Leg, Seen
from harness.proxy.address import listening, parse
from harness.proxy.handle import Proxy
from harness.statistics import interval

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "messages")
"""The options that apply."""

ROUNDS = 40
"""Rounds if nothing else is said."""

MESSAGES = 10_000
"""Frames of one measurement of throughput if nothing else is said."""

TRIPS = 300
"""Round trips of one measurement."""

MOST_ADDED = 60.0
"""Microseconds that a round trip may take longer than a direct one, at the median."""

FEWEST = 80_000
"""Small frames that have to be carried a second."""

LENIENCY = 1.5
"""The forwarder's figures, made worse by this factor, are enough too."""

LIMIT = 30.0
"""Seconds without an answer after which there is nothing to measure."""

WAYS = {
    "direct": "one socket connected to the other",
    "proxy": "the ZMTP proxy without a rule: every frame read, named and put in the ledger",
    "forwarder": "a plain proxy in Python: bytes copied, 64 KiB at a time",
}

FRAME = encode(FrameKind.STEP, 0x0123_4567_89AB_CDEF, 1, Step(1, [b"small request"]))

Sock = zmq.Socket[bytes]


def measure(options: Options) -> dict[str, Any]:
    """Measures in interleaved rounds. Raises BenchError for options that do not apply, or if a frame is lost."""
    rounds, messages = options.rounds or ROUNDS, options.messages or MESSAGES
    trips: dict[str, list[float]] = {way: [] for way in WAYS}
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        with contextlib.ExitStack() as stack:
            options.show("measuring  starting the processes")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="nowedge-bench-"))
            proxy = stack.enter_context(Proxy())
            ways = {way: stack.enter_context(_way(way, Path(folder), proxy)) for way in WAYS}
            for sock in ways.values():  # the first time is slower for everybody
                _round_trip(sock, TRIPS // 10)
            for index in range(rounds):
                options.show(f"measuring  round {index + 1} of {rounds}")
                for way in _turned(list(WAYS), index):
                    trips[way].append(_round_trip(ways[way], TRIPS))
                    rates[way].append(_rate(ways[way], messages))
            _check_ledger(proxy, 2 * (TRIPS // 10 + rounds * TRIPS) + rounds * (messages + 2))
    except zmq.Again:
        raise BenchError(f"proxy: a frame did not arrive within {LIMIT:g} s") from None
    rows = [_row(way, trips, rates) for way in WAYS]
    return {
        "name": "proxy",
        "rounds": rounds,
        "messages": messages,
        "frame_bytes": len(FRAME),
        "rows": rows,
        **_verdict({row["way"]: row for row in rows}),
        "versions": {
            "python": platform.python_version(),
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
        },
        "cores": len(os.sched_getaffinity(0)),
    }


def good(result: dict[str, Any]) -> bool:
    """Whether the proxy adds little enough and carries enough."""
    return bool(result["quick"] and result["wide"])


def table(result: dict[str, Any]) -> RenderableType:
    """A line for each way, then whether the proxy is good enough."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("", no_wrap=True)
    for heading in ("round trip, us", "added, us", "95 %", "frames/s", "95 %"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        direct = row["way"] == "direct"
        grid.add_row(
            row["way"],
            f"{row['trip_us']:.1f}",
            "-" if direct else f"{row['added_us']:.1f}",
            "-" if direct else "{:.1f} to {:.1f}".format(*row["added_us_interval"]),
            f"{row['frames_per_second']:,}",
            "{:.0f}k to {:.0f}k".format(*(edge / 1000 for edge in row["frames_per_second_interval"])),
        )
    notes = [Text(f"{way:<10} {title}") for way, title in WAYS.items()]
    mine = next(row for row in result["rows"] if row["way"] == "proxy")
    words = [
        f"the proxy adds {mine['added_us']:.1f} us to a round trip: {'at most' if result['quick'] else 'more than'} "
        f"the {result['most_added_us']:.1f} us that it may",
        f"the proxy carries {mine['frames_per_second']:,} frames/s: {'at least' if result['wide'] else 'fewer than'} "
        f"the {result['fewest_frames_per_second']:,} that it must",
    ]
    how = (
        f"medians of {result['rounds']} rounds of {TRIPS:,} round trips and {result['messages']:,} frames of "
        f"{result['frame_bytes']} bytes; {result['cores']} cores"
    )
    verdicts = [
        Text(word, style="bold" if fine else "bold red")
        for word, fine in zip(words, (result["quick"], result["wide"]), strict=True)
    ]
    return Group(grid, Text(""), *notes, Text(""), Text(how), *verdicts)


@contextlib.contextmanager
def _way(way: str, folder: Path, proxy: Proxy) -> Iterator[Sock]:
    """A socket whose frames go this way to the other end and back."""
    far, near = folder / way, folder / f"{way}.near"
    with contextlib.ExitStack() as stack:
        stack.enter_context(_program("echo", f"ipc://{far}"))
        _await(far)
        address = f"ipc://{far}"
        if way == "proxy":
            leg = Leg("relay", "dp0.rank1", "dp0.rank0", f"ipc://{near}", f"ipc://{far}")
            (address,) = proxy.begin([leg], classify="harness.targets.engine:classify")
        elif way == "forwarder":
            stack.enter_context(_program("forward", str(near), str(far)))
            _await(near)
            address = f"ipc://{near}"
        context = stack.enter_context(zmq.Context())
        sock = stack.enter_context(context.socket(zmq.PAIR))
        sock.set_hwm(0)
        for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
            sock.set(option, int(LIMIT * 1000))
        sock.connect(address)
        yield sock


@contextlib.contextmanager
def _program(*arguments: str) -> Iterator[None]:
    process = carriers.start(*arguments)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _await(path: Path) -> None:
    """Return once somebody listens there. Raises BenchError."""
    began, address = now(), parse(str(path))
    while not listening(address):
        if seconds_since(began) > LIMIT:
            raise BenchError(f"proxy: nobody listened at {path} within {LIMIT:g} s")
        pause(0.005)


def _round_trip(sock: Sock, trips: int) -> float:
    """The median of so many round trips, in microseconds."""
    times = []
    for _ in range(trips):
        began = now()
        sock.send(FRAME)
        if sock.recv() != FRAME:
            raise BenchError("proxy: a frame came back changed; there is nothing to measure")
        times.append(now() - began)
    return median(times) / 1000


def _rate(sock: Sock, messages: int) -> float:
    """Frames a second, from the first to the word that all have come."""
    sock.send(carriers.COUNT + b"%d" % messages)
    began = now()
    for _ in range(messages):
        sock.send(FRAME)
    if sock.recv() != carriers.DONE:
        raise BenchError("proxy: not every frame arrived; there is nothing to measure")
    return messages * SECOND / (now() - began)


def _check_ledger(proxy: Proxy, expected: int) -> None:
    """Raises BenchError if the proxy has missed a frame: what it does not note costs it nothing."""
    noted = sum(isinstance(record, Seen) and not record.kind.isupper() for record in proxy.end().records)
    if noted != expected:
        raise BenchError(f"proxy: {noted} frames are in the ledger, {expected} were sent")


def _turned(ways: list[str], index: int) -> list[str]:
    """Each round begins with another one, so that none is always the first."""
    first = index % len(ways)
    return ways[first:] + ways[:first]


def _row(way: str, trips: dict[str, list[float]], rates: dict[str, list[float]]) -> dict[str, Any]:
    added = [mine - direct for mine, direct in zip(trips[way], trips["direct"], strict=True)]
    return {
        "way": way,
        "trip_us": round(median(trips[way]), 2),
        "trip_us_interval": [round(edge, 2) for edge in interval(trips[way])],
        "added_us": round(median(added), 2),
        "added_us_interval": [round(edge, 2) for edge in interval(added)],
        "frames_per_second": round(median(rates[way])),
        "frames_per_second_interval": [round(edge) for edge in interval(rates[way])],
    }


def _verdict(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What the proxy may add and must carry, and whether it does."""
    most = max(MOST_ADDED, LENIENCY * rows["forwarder"]["added_us"])
    fewest = min(FEWEST, round(rows["forwarder"]["frames_per_second"] / LENIENCY))
    return {
        "most_added_us": round(most, 2),
        "fewest_frames_per_second": fewest,
        "quick": rows["proxy"]["added_us"] <= most,
        "wide": rows["proxy"]["frames_per_second"] >= fewest,
    }
