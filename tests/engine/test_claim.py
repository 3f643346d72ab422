"""A socket directory belongs to one engine at a time, and to the next one as soon as the last process has gone."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from pathlib import Path

import pytest

from engine import claim as claims
from engine.claim import LOCK, PREFIX, Claim
from engine.endpoints import Endpoints
from engine.errors import ConfigError
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.model import reference
from tests.engine.forks import ForkFactory, config_for
from tests.engine.residue import leave_as_if_killed


def test_a_second_engine_on_the_same_directory_is_refused_and_named_who_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CLAIM_LIMIT", 0.1)
    first = Endpoints.create(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"no running engine uses \(pid {os.getpid()}\)"):
        Endpoints.create(str(tmp_path))
    first.remove()
    second = Endpoints.create(str(tmp_path))
    first.remove()  # a late second call must not take anything from the engine that has it now
    assert (tmp_path / LOCK).exists()
    second.remove()


def test_whoever_comes_next_waits_for_the_last_process_of_the_engine_before(tmp_path: Path) -> None:
    first = Claim.of(str(tmp_path))
    last = os.dup(first.fileno())  # what a rank of it still holds
    first.release()
    got: list[Claim] = []
    thread = threading.Thread(target=lambda: got.append(Claim.of(str(tmp_path))))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    os.close(last)
    thread.join(5.0)
    assert not thread.is_alive()
    got[0].release()


def test_a_lock_file_that_was_removed_while_it_was_waited_for_holds_nothing(tmp_path: Path) -> None:
    first = Endpoints.create(str(tmp_path))
    claimed: list[Claim] = []
    threads = [threading.Thread(target=lambda: claimed.append(Claim.of(str(tmp_path)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    first.remove()
    threads[0].join(0.5)
    threads[1].join(0.5)
    assert len(claimed) == 1, "two hold the same directory"
    claimed[0].release()
    for thread in threads:
        thread.join(5.0)
    assert len(claimed) == 2
    claimed[1].release()


def test_stale_private_directories_go_away_and_those_in_use_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    used, held = Claim.fresh()
    assert stat.S_IMODE(os.stat(used).st_mode) == 0o700
    stale, dropped = Claim.fresh()
    dropped.release()
    young = tmp_path / f"{PREFIX}young"  # made, but not yet locked: somebody is just starting
    young.mkdir()
    other, latest = Claim.fresh()
    assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, [used, str(young), other]))
    assert not os.path.exists(stale)
    held.release()
    latest.release()


def test_leftovers_of_a_killed_engine_do_not_disturb_the_next_one(tmp_path: Path, factory: ForkFactory) -> None:
    """A store with addresses of the dead, and socket files that nobody serves."""
    leave_as_if_killed(tmp_path, "input", "output", "relay", "relay.1", "relay.5", "control")
    (tmp_path / "relay.notes").touch()

    async def run() -> list[int]:
        async with AsyncLLM(config_for(2, socket_dir=str(tmp_path)), factory) as llm:
            return [t async for output in llm.generate([1], SamplingParams(2)) for t in output.token_ids]

    assert asyncio.run(run()) == reference.greedy("tiny", [1], 2)
    assert os.listdir(tmp_path) == ["relay.notes"]


def test_two_engines_at_once_answer_their_own_callers(factory: ForkFactory) -> None:
    other = ForkFactory()

    async def ask(llm: AsyncLLM, prompt: list[int]) -> list[int]:
        return [t async for output in llm.generate(prompt, SamplingParams(6)) for t in output.token_ids]

    async def run() -> None:
        async with AsyncLLM(config_for(2), factory) as one, AsyncLLM(config_for(3), other) as two:
            answers = await asyncio.gather(*(ask(llm, [n]) for n in range(4) for llm in (one, two)))
            assert answers == [reference.greedy("tiny", [n], 6) for n in range(4) for _ in range(2)]
            assert one.client.endpoints.directory != two.client.endpoints.directory
            other.processes["dp0.rank1"].send_signal(9)
            assert await ask(one, [9]) == reference.greedy("tiny", [9], 6)

    asyncio.run(run())
    other.kill()
