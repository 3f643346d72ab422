"""The client benchmark: the echo engine answers as it should, all readers get equal bytes, nothing lost is a figure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from rich.console import Console

from engine.client.aio import AsyncMPClient
from engine.client.sync import SyncMPClient
from engine.config import EngineConfig
from engine.errors import UtilityError
from engine.messages import ErrorKind, FinishReason, Outputs, Request, RequestOutput, SamplingParams
from harness import cli
from harness.bench import BenchError, client
from harness.bench.bare import Floor, Sender, ThreadAndQueue
from harness.bench.echo import EchoFactory
from harness.bench.streams import ECHOED, Batch, Tally, Turns
from tests.engine.forks import ForkFactory
from tests.engine.wires import behind_the_order

BATCH = Batch(3, ECHOED + 2)


def expected(batch: Batch) -> list[RequestOutput]:
    """The answers in their turns, said in another way than the engine says them."""
    requests = batch.requests()
    return [
        RequestOutput(
            request.request_id,
            [request.prompt_ids[1 + index % ECHOED]],
            FinishReason.LENGTH if index == batch.tokens - 1 else None,
        )
        for index in range(batch.tokens)
        for request in requests
    ]


def tally_of(batch: Batch, outputs: list[RequestOutput]) -> Tally:
    tally = Tally(batch)
    for number, output in enumerate(outputs, 1):
        tally.count(Outputs(number, 0, [output]))
    return tally


@pytest.fixture
def echo() -> Iterator[AsyncMPClient]:
    made = AsyncMPClient(EngineConfig(), EchoFactory(ForkFactory()))
    yield made
    made.shutdown()


def test_requests_begin_together_and_take_turns() -> None:
    turns = Turns()
    for request in BATCH.requests():
        assert not turns
        turns.add(request)
    said = []
    while turns:
        said.append(turns.take())
    assert said == [(0, output) for output in expected(BATCH)]


def test_the_echo_engine_answers_with_the_prompt_and_the_bare_sender_sends_the_same_bytes(
    echo: AsyncMPClient, tmp_path: Path
) -> None:
    resources = echo._resources
    arrived: list[list[bytes]] = []
    original = resources.drain_output

    def noted() -> Iterator[list[bytes]]:
        for frames in original():
            arrived.append(frames)
            yield frames

    resources.drain_output = noted  # type: ignore[method-assign]

    async def ask() -> list[Outputs]:
        for request in BATCH.requests():
            await echo.add_request_async(request)
        return [await echo.get_output_async() for _ in range(BATCH.messages)]

    answers = expected(BATCH)
    assert asyncio.run(ask()) == [Outputs(number, 0, [answer]) for number, answer in enumerate(answers, 1)]
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        socket.bind(f"ipc://{tmp_path}/bare")
        sender = Sender(f"ipc://{tmp_path}/bare")
        sender.send(BATCH)
        assert [socket.recv_multipart() for _ in range(BATCH.messages)] == arrived[: BATCH.messages]
        sender.close()
    assert sender.process.returncode == 0


def test_the_echo_engine_keeps_the_rest_of_the_protocol_too(echo: AsyncMPClient) -> None:
    async def ask() -> None:
        await echo.add_request_async(Request("held", [2, 5], SamplingParams(max_tokens=3)))
        await echo.abort_requests_async(["held", "unknown"])
        assert (await echo.get_output_async()).outputs == [RequestOutput("held", [], FinishReason.ABORT)]
        await echo.add_request_async(Request("empty", []))
        (refused,) = (await echo.get_output_async()).outputs
        assert (refused.finish_reason, refused.error_kind) == (FinishReason.ERROR, ErrorKind.INVALID)
        with pytest.raises(UtilityError, match="reset_prefix_cache: an echo engine has no methods"):
            await echo.call_utility_async("reset_prefix_cache")
        echo.check_health()
        await echo.add_request_async(Request("left", [2, 5], SamplingParams(max_tokens=3)))
        echo.shutdown()
        (ended,) = (await echo.get_output_async()).outputs
        assert (ended.request_id, ended.finish_reason) == ("left", FinishReason.ABORT)

    asyncio.run(ask())


def test_a_draining_stop_lets_the_echo_engine_finish() -> None:
    echo = SyncMPClient(EngineConfig(), EchoFactory(ForkFactory()))
    for request in BATCH.requests():
        echo.add_request(request)
    echo.shutdown(drain=True)
    assert [echo.get_output().outputs for _ in range(BATCH.messages)] == [[answer] for answer in expected(BATCH)]


def test_a_draining_stop_waits_for_what_was_sent_before_it() -> None:
    echo = SyncMPClient(EngineConfig(), EchoFactory(ForkFactory(behind_the_order)))
    for request in BATCH.requests():
        echo.add_request(request)
    echo.shutdown(drain=True)
    assert [echo.get_output().outputs for _ in range(BATCH.messages)] == [[answer] for answer in expected(BATCH)]


def test_every_bare_reader_counts_all(tmp_path: Path) -> None:
    for kind in (Floor, ThreadAndQueue):
        reader = kind(f"ipc://{tmp_path}/{kind.__name__}")
        for _ in range(2):
            assert asyncio.run(reader.read(BATCH)).messages_per_second() > 0
        reader.close()
        assert reader.sender.process.returncode == 0


def test_a_sender_that_has_ended_is_one_sentence(tmp_path: Path) -> None:
    floor = Floor(f"ipc://{tmp_path}/floor")
    floor.sender.process.kill()
    floor.sender.process.wait()
    with pytest.raises(BenchError, match="the bare sender has ended"):
        asyncio.run(floor.read(BATCH))
    floor.close()


def test_what_was_lost_or_came_twice_is_no_figure() -> None:
    answers = expected(BATCH)
    assert tally_of(BATCH, answers).done
    with pytest.raises(BenchError, match="stream-0 came to 9 tokens, expected 10"):
        tally_of(BATCH, answers[1:]).messages_per_second()
    with pytest.raises(BenchError, match="stream-1 came to 11 tokens, expected 10"):
        tally_of(BATCH, [answers[1], *answers]).messages_per_second()
    with pytest.raises(BenchError, match="31 messages came, expected 30"):
        tally_of(BATCH, [RequestOutput("stream-2", []), *answers]).messages_per_second()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--messages 999", "999 messages are too few for 1000 streams"),
        ("--messages 0", "--messages"),
        ("--messages many", "--messages"),
        ("--rounds 0", "--rounds"),
        ("--tp 2", "leave --tp out; it takes --rounds, --messages"),
        ("--relay pushpull", "leave --relay out"),
        ("--lanes 2", "leave --lanes out"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    options: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.invoke(["bench", "client", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err


def test_one_run_tells_rates_and_ratios_of_all_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.invoke(["bench", "client", "--rounds", "2", "--messages", "2000", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["name"], result["rounds"], result["messages"], result["needed"]) == ("client", 2, 2000, 0.5)
    rows = {(row["reader"], row["streams"]): row for row in result["rows"]}
    assert list(rows) == [(reader, streams) for streams in (1, 1000) for reader in client.TITLES]
    for (reader, streams), row in rows.items():
        low, high = row["messages_per_second_range"]
        assert 0 < low <= row["messages_per_second"] <= high
        assert row["tokens_per_second"] == row["messages_per_second"]
        if reader == "floor":
            assert (row["ratio"], row["ratio_range"]) == (1.0, [1.0, 1.0])
        if reader == "client":
            assert row["ratio"] == result[f"ratio_{streams}"] > 0
    assert result["reached"] is (result["ratio_1000"] >= 0.5)
    for reached, word in ((True, "reaches"), (False, "does not reach")):
        with (console := Console(width=200)).capture() as told:
            console.print(client.table({**result, "ratio_1000": 0.75, "reached": reached}))
        text = told.get()
        assert f"at 1,000 streams the client has 0.75 of the floor's rate: it {word} the 0.5 that it needs" in text
        assert all(reader in text for reader in client.TITLES)


def test_a_batch_goes_to_the_sender_as_it_is() -> None:
    assert msgspec.json.decode(msgspec.json.encode(BATCH), type=Batch) == BATCH
