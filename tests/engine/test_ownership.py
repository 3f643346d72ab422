"""Whose engine it is: forks of its owner, signals to all of a group, lost exit statuses, shutdowns that meet."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from engine.client.aio import AsyncMPClient
from engine.config import Timeouts
from engine.errors import EngineDeadError, ExitCode
from engine.launch import LOST_STATUS
from engine.llm import AsyncLLM
from engine.messages import SamplingParams
from engine.model import reference
from engine.relay.handshake import HandshakeRelay
from tests.engine.forks import ForkFactory, config_for, replace
from tests.engine.narration import Listener, Narrator, TellingFactory, in_child

PROMPT = [1, 2, 3]


async def tokens_of(llm: AsyncLLM, count: int) -> list[int]:
    return [token async for output in llm.generate(PROMPT, SamplingParams(count)) for token in output.token_ids]


def test_a_fork_of_the_owner_neither_has_the_engine_nor_ends_it(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(2), factory) as llm:
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    llm.shutdown()
                    with pytest.raises(EngineDeadError, match="a fork of the one that the engine belongs to"):
                        llm.check_health()
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert os.path.isdir(llm.client.endpoints.directory)
            assert await tokens_of(llm, 3) == reference.greedy("tiny", PROMPT, 3)

    asyncio.run(run())


def test_a_fork_that_outlives_its_killed_owner_keeps_no_rank_and_no_directory(
    tmp_path: Path, factory: ForkFactory
) -> None:
    """As a helper that was started with multiprocessing's fork method, which is the default of Python 3.11."""
    narration, told = os.pipe()
    stay, go = os.pipe()

    def wait() -> None:
        os.read(stay, 1)

    def program() -> None:
        narrator = Narrator(told)
        client = AsyncMPClient(config_for(2, socket_dir=str(tmp_path)), TellingFactory(narrator, lambda role: None))
        helper = os.fork()
        if helper == 0:
            in_child(wait, keep=(stay,))
        narrator.say("process", "helper", helper)
        narrator.say("ready", client.dead)
        signal.pause()

    launcher = os.fork()
    if launcher == 0:
        os.close(go)
        in_child(program, keep=(told, stay))
    os.close(told)
    os.close(stay)
    listener = Listener(narration)
    try:
        assert listener.wait_for("ready")
        os.kill(launcher, signal.SIGKILL)
        assert listener.wait_until_gone(["dp0.rank0", "dp0.rank1"])
        assert not select.select([listener.pidfds["helper"]], [], [], 0)[0], "the helper was to outlive the launcher"

        async def again() -> None:
            async with AsyncLLM(config_for(2, socket_dir=str(tmp_path)), factory) as llm:
                assert await tokens_of(llm, 2) == reference.greedy("tiny", PROMPT, 2)

        asyncio.run(again())
    finally:
        os.close(go)
        os.waitpid(launcher, 0)
        assert listener.wait_until_gone(["helper"])
        listener.close()


def test_signals_to_the_whole_group_are_the_launchers_business(factory: ForkFactory) -> None:
    async def run() -> None:
        async with AsyncLLM(config_for(3), factory) as llm:
            stream = llm.generate(PROMPT, SamplingParams(20))
            tokens = (await anext(stream)).token_ids
            for signum in (signal.SIGTERM, signal.SIGINT):
                for process in factory.processes.values():
                    process.send_signal(signum)
            async for output in stream:
                tokens = tokens + output.token_ids
            assert tokens == reference.greedy("tiny", PROMPT, 20)

    asyncio.run(run())
    assert factory.exits() == [ExitCode.STOPPED] * 3


LOST = """
import select, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from engine.launch import SpawnFactory
process = SpawnFactory().start("child", "builtins:print", ("hello",), [])
select.select([process.fileno()], [], [])
print(process.exitcode())
"""


def test_an_exit_whose_status_is_lost_is_still_an_exit() -> None:
    """Where SIGCHLD is ignored, also by whoever started the program, no child can be waited for."""
    done = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[-2] == str(LOST_STATUS)


def test_a_second_shutdown_returns_when_the_first_has_ended_everything(factory: ForkFactory) -> None:
    timeouts = Timeouts(startup=5.0, handshake=2.0, step=1.0, shutdown=1.0)
    client = AsyncMPClient(config_for(2, timeouts=timeouts), factory)
    directory = client.endpoints.directory
    factory.processes["dp0.rank1"].send_signal(signal.SIGSTOP)  # it makes the first shutdown take its time
    first = threading.Thread(target=client.shutdown)
    first.start()
    while not client._resources.released:
        time.sleep(0.001)
    client.shutdown()
    assert factory.living() == []
    assert not os.path.exists(directory)
    first.join()


@pytest.mark.parametrize("late", [0.52, 0.6, 0.8])
def test_a_rank_that_comes_late_to_the_handshake_is_named(late: float) -> None:
    def before(role: str) -> None:
        connect = HandshakeRelay.connect

        def slow(self: HandshakeRelay) -> None:
            time.sleep(late)
            connect(self)

        if role == "dp0.rank2":
            replace(HandshakeRelay, "connect", slow)

    factory = ForkFactory(before)
    timeouts = Timeouts(startup=10.0, handshake=0.5, step=1.0, shutdown=2.0)
    with pytest.raises(EngineDeadError) as caught:
        AsyncMPClient(config_for(3, relay="handshake", timeouts=timeouts), factory)
    assert caught.value.culprit == "dp0.rank2", caught.value
    assert factory.living() == []
