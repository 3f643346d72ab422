"""ORPHAN and RESIDUE: nothing runs and nothing lies about when the program is over that started it."""

from __future__ import annotations

from harness.faults import Stale
from harness.instant import Instant
from tests.harness.synthetic import mark, process, sentences


def test_what_outlives_the_client_program_is_found() -> None:
    processes = [process("client"), process("dp0.rank0", -9, "cleanup"), process("dp0.rank1")]
    found = sentences("ORPHAN", processes=processes)
    assert found == ["dp0.rank0 was still running after the client program had ended"]
    assert sentences("ORPHAN", processes=[process("client"), process("dp0.rank0", -9), process("dp0.rank1")]) == []


def test_what_is_left_in_the_folder_is_found() -> None:
    assert sentences("RESIDUE", residue=["socket e/relay"]) == ["the run left socket e/relay behind"]
    assert sentences("RESIDUE") == []
    killed = [process("client", -9), process("dp0.rank0", 13), process("dp0.rank1", 13)]
    assert sentences("RESIDUE", residue=["socket e/relay"], processes=killed) == []


def test_what_a_stranger_left_has_to_stay() -> None:
    stale = Stale(at=Instant.parse("client:start"), link="input", of="stranger")
    refused = mark(5, "startup", "failed", ok=False, text="ConfigError||socket_dir")
    removed = sentences("RESIDUE", [mark(1, "startup", "begin"), refused], faults=[stale], fired=[1])
    assert removed == ["the engine removed socket e/input, which was not its own"]
    there = sentences(
        "RESIDUE", [mark(1, "startup", "begin"), refused], faults=[stale], fired=[1], residue=["socket e/input"]
    )
    assert there == []
