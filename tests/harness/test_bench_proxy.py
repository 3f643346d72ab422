"""The proxy benchmark: each way carries what it should, what is lost is no figure, and the verdict follows its rule."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from harness import bench, cli
from harness.bench import BenchError, carriers, proxy
from harness.proxy import ProxyError
from harness.proxy.handle import Proxy

LIMIT = 20.0


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_one_run_tells_what_each_way_takes_and_carries_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proxy, "TRIPS", 100)
    before = children()
    code = cli.invoke(["bench", "proxy", "--rounds", "2", "--messages", "2000", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["quick"] and result["wide"] else 1)
    assert children() == before
    assert (result["name"], result["rounds"], result["messages"]) == ("proxy", 2, 2000)
    rows = {row["way"]: row for row in result["rows"]}
    assert list(rows) == list(proxy.WAYS)
    for row in rows.values():
        for figure in ("trip_us", "added_us", "frames_per_second"):
            low, high = row[f"{figure}_interval"]
            assert low <= row[figure] <= high
        assert row["trip_us"] > 0
        assert row["frames_per_second"] > 0
    assert rows["direct"]["added_us"] == 0
    assert rows["proxy"]["added_us"] > 0, "two more processes to wake cannot cost nothing"
    with (console := Console(width=200)).capture() as told:
        console.print(proxy.table(result))
    assert all(way in told.get() for way in proxy.WAYS)


def rows(added: float, rate: int, forwarder_added: float, forwarder_rate: int) -> dict[str, dict[str, Any]]:
    return {
        "proxy": {"added_us": added, "frames_per_second": rate},
        "forwarder": {"added_us": forwarder_added, "frames_per_second": forwarder_rate},
    }


@pytest.mark.parametrize(
    ("figures", "quick", "wide"),
    [
        ((59.0, 81_000, 20.0, 500_000), True, True),
        ((61.0, 79_000, 20.0, 500_000), False, False),
        ((89.0, 79_000, 60.0, 500_000), True, False),
        ((91.0, 41_000, 60.0, 60_000), False, True),
        ((59.0, 39_000, 20.0, 60_000), True, False),
    ],
)
def test_the_easier_of_two_limits_counts(figures: tuple[float, int, float, int], quick: bool, wide: bool) -> None:
    verdict = proxy._verdict(rows(*figures))
    assert (verdict["quick"], verdict["wide"]) == (quick, wide)
    assert proxy.good(verdict) is (quick and wide)
    assert bench.good(proxy, verdict) is (quick and wide)


@pytest.mark.parametrize("reached", [True, False])
def test_the_table_says_in_words_whether_it_is_enough(reached: bool) -> None:
    row = {
        "trip_us": 100.0,
        "added_us": 50.0,
        "added_us_interval": [40.0, 60.0],
        "frames_per_second": 90_000,
        "frames_per_second_interval": [80_000, 95_000],
    }
    result = {
        "rounds": 3,
        "messages": 1000,
        "frame_bytes": 45,
        "cores": 2,
        "rows": [{"way": way, **row} for way in proxy.WAYS],
        "most_added_us": 60.0,
        "fewest_frames_per_second": 80_000,
        "quick": reached,
        "wide": reached,
    }
    with (console := Console(width=200)).capture() as told:
        console.print(proxy.table(result))
    assert ("at most the 60.0 us that it may" in told.get()) is reached
    assert ("fewer than the 80,000 that it must" in told.get()) is not reached


def test_the_forwarder_copies_both_ways_and_pushes_back(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as far, socket.socket(socket.AF_UNIX) as near:
        far.bind(str(tmp_path / "far"))
        far.listen()
        process = carriers.start("forward", str(tmp_path / "near"), str(tmp_path / "far"))
        proxy._await(tmp_path / "near")
        near.settimeout(LIMIT)
        near.connect(str(tmp_path / "near"))
        far.settimeout(LIMIT)
        end, _ = far.accept()
        with end:
            end.settimeout(LIMIT)
            data = os.urandom(1 << 20)
            near.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while sent < 64 << 20:
                    sent += near.send(data[sent % len(data) :])
            assert sent < 64 << 20, "the sender could send what nobody reads"
            near.settimeout(LIMIT)
            end.sendall(b"back")
            assert near.recv(4) == b"back"
            got = bytearray()
            while len(got) < sent:
                got += end.recv(1 << 16)
            assert got == (data * (sent // len(data) + 1))[:sent]
            near.shutdown(socket.SHUT_WR)
            assert end.recv(1) == b""
    assert process.wait(LIMIT) == 0


def test_what_is_not_in_the_ledger_is_no_figure(tmp_path: Path) -> None:
    with Proxy() as started, proxy._way("proxy", tmp_path, started) as sock:
        proxy._round_trip(sock, 3)
        with pytest.raises(BenchError, match="6 frames are in the ledger, 7 were sent"):
            proxy._check_ledger(started, 7)
        with pytest.raises(ProxyError, match="no run is open"):
            started.end()


def test_a_frame_that_does_not_arrive_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "LIMIT", 0.3)
    monkeypatch.setattr(carriers, "start", _stopped(carriers.start))
    with pytest.raises(BenchError, match=r"proxy: nobody listened at .* within 0.3 s"):
        proxy.measure(bench.Options(rounds=1, messages=10))


def _stopped(start: Any) -> Any:
    def stopped(*arguments: str) -> Any:
        process = start(*arguments)
        process.send_signal(signal.SIGSTOP)
        return process

    return stopped
