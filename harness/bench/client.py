"""client: messages and tokens per second through the client, beside bare sockets and beside what it replaces.

Four readers of one kind of stream, over Unix sockets, each with a process of its own at the other end, and each on a
batch in its turn, several rounds in one run:

- `client`: the real :class:`engine.client.aio.AsyncMPClient` on an echo engine (:mod:`harness.bench.echo`), read by
  ``get_output_async`` in one task.
- `floor`: an asyncio PULL that awaits and decodes each message of an asyncio PUSH (:class:`harness.bench.bare.Floor`).
- `thread`: a receiver thread, a `queue.Queue`, an asyncio reader (:class:`harness.bench.bare.ThreadAndQueue`): the
  design that the client replaces, without any of a client's checks.
- `sync client`: the real :class:`engine.client.sync.SyncMPClient` on an echo engine, read by ``get_output``.

All carry equal bytes: one message for each token, in it one record of one request, in turns over 1 and over 1,000
streams that begin together. All readers count the tokens of each stream, and the clock runs from a batch's first
message to its last: requests and starts cost nothing here. A ratio is of two rates of the same round; figures are
medians.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import tempfile
from collections.abc import Callable, Coroutine
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.config import EngineConfig
from engine.errors import EngineError
from harness.bench import BenchError, Options
from harness.bench.bare import Floor, ThreadAndQueue
from harness.bench.echo import EchoFactory
from harness.bench.streams import Batch, Tally

if TYPE_CHECKING:
    from rich.console import RenderableType

USES = ("rounds", "messages")
"""The options that apply."""

ROUNDS = 5
"""Rounds if nothing else is said."""

MESSAGES = 20_000
"""Messages of a batch if nothing else is said."""

STREAMS = (1, 1000)
"""How many requests are under way together."""

NEEDED = 0.5
"""The share of the floor's rate at most streams that the client has to reach."""

TITLES = {
    "client": "AsyncMPClient.get_output_async on an echo engine",
    "floor": "bare asyncio PUSH and PULL, msgpack",
    "thread": "receiver thread, queue.Queue, asyncio reader: the design that the client replaces, without its checks",
    "sync client": "SyncMPClient.get_output on an echo engine",
}
"""The readers, in the order of the table."""

Reader = Callable[[Batch], Tally]
Run = Callable[[Coroutine[Any, Any, Tally]], Tally]


def measure(options: Options) -> dict[str, Any]:
    """Measures all readers in rounds. Raises BenchError for options that do not apply, or if a message is lost."""
    rounds, messages = options.rounds or ROUNDS, options.messages or MESSAGES
    if messages < max(STREAMS):
        raise BenchError(f"client: {messages} messages are too few for {max(STREAMS)} streams (--messages)")
    batches = [Batch(streams, messages // streams) for streams in STREAMS]
    tallies: dict[tuple[str, int], list[Tally]] = {(name, batch.streams): [] for batch in batches for name in TITLES}
    try:
        with contextlib.ExitStack() as stack:
            options.show("measuring  starting the echo engines")
            readers = _readers(stack)
            for batch in batches:  # the first time is slower for everybody
                for read in readers.values():
                    read(Batch(batch.streams, 1))
            for index in range(rounds):
                options.show(f"measuring  round {index + 1} of {rounds}")
                for batch in batches:
                    for name in _turned(list(readers), index):
                        tallies[name, batch.streams].append(readers[name](batch))
    except EngineError as error:
        raise BenchError(f"client: {error}") from error
    rows = [_row(name, batch.streams, tallies) for batch in batches for name in TITLES]
    ratios = {row["streams"]: row["ratio"] for row in rows if row["reader"] == "client"}
    return {
        "name": "client",
        "rounds": rounds,
        "messages": messages,
        "rows": rows,
        **{f"ratio_{streams}": ratio for streams, ratio in ratios.items()},
        "needed": NEEDED,
        "reached": ratios[max(STREAMS)] >= NEEDED,
        "versions": {
            "python": platform.python_version(),
            "pyzmq": zmq.__version__,
            "libzmq": zmq.zmq_version(),
            "msgspec": msgspec.__version__,
        },
        "cores": len(os.sched_getaffinity(0)),
    }


def table(result: dict[str, Any]) -> RenderableType:
    """A line for each reader and number of streams, then whether the client is fast enough."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("")
    for heading in ("streams", "tokens/s", "messages/s", "range", "of floor", "range"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for row in result["rows"]:
        grid.add_row(
            row["reader"],
            f"{row['streams']:,}",
            f"{row['tokens_per_second']:,}",
            f"{row['messages_per_second']:,}",
            _range(row["messages_per_second_range"], ",.0f"),
            f"{row['ratio']:.2f}",
            _range(row["ratio_range"], ".2f"),
        )
    notes = [Text(f"{name:<12} {title}") for name, title in TITLES.items()]
    most = max(STREAMS)
    word = "reaches" if result["reached"] else "does not reach"
    verdict = Text(
        f"at {most:,} streams the client has {result[f'ratio_{most}']:.2f} of the floor's rate: "
        f"it {word} the {result['needed']:g} that it needs",
        style="bold" if result["reached"] else "bold red",
    )
    how = f"medians and ranges of {result['rounds']} rounds of {result['messages']:,} messages; {result['cores']} cores"
    return Group(grid, Text(""), *notes, Text(""), Text(how), verdict)


def _readers(stack: contextlib.ExitStack) -> dict[str, Reader]:
    """The four of them, started; closed with the stack."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="nowedge-bench-"))
    run: Run = stack.enter_context(asyncio.Runner()).run
    config = EngineConfig(max_waiting=max(STREAMS))
    client = AsyncMPClient(config, EchoFactory())
    stack.callback(client.shutdown)
    sync = SyncMPClient(config, EchoFactory())
    stack.callback(sync.shutdown)

    floor = stack.enter_context(contextlib.closing(Floor(f"ipc://{directory}/floor")))
    thread = stack.enter_context(contextlib.closing(ThreadAndQueue(f"ipc://{directory}/thread")))
    return {
        "client": lambda batch: run(_read(client, batch)),
        "floor": lambda batch: run(floor.read(batch)),
        "thread": lambda batch: run(thread.read(batch)),
        "sync client": lambda batch: _read_plainly(sync, batch),
    }


async def _read(client: AsyncMPClient, batch: Batch) -> Tally:
    tally = Tally(batch)
    for request in batch.requests():
        await client.add_request_async(request)
    while not tally.done:
        tally.count(await client.get_output_async())
    return tally


def _read_plainly(client: SyncMPClient, batch: Batch) -> Tally:
    tally = Tally(batch)
    for request in batch.requests():
        client.add_request(request)
    while not tally.done:
        tally.count(client.get_output())
    return tally


def _turned(names: list[str], index: int) -> list[str]:
    """Each round begins with another one, so that none is always the first."""
    first = index % len(names)
    return names[first:] + names[:first]


def _row(name: str, streams: int, tallies: dict[tuple[str, int], list[Tally]]) -> dict[str, Any]:
    own, floor = tallies[name, streams], tallies["floor", streams]
    messages = [tally.messages_per_second() for tally in own]
    tokens = [tally.tokens_per_second() for tally in own]
    ratios = [mine / its.messages_per_second() for mine, its in zip(messages, floor, strict=True)]
    return {
        "reader": name,
        "streams": streams,
        "messages_per_second": round(median(messages)),
        "messages_per_second_range": [round(min(messages)), round(max(messages))],
        "tokens_per_second": round(median(tokens)),
        "tokens_per_second_range": [round(min(tokens)), round(max(tokens))],
        "ratio": round(median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
    }


def _range(edges: list[float], how: str) -> str:
    return "-".join(format(edge, how) for edge in edges)
