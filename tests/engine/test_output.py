"""The command line's output: it comes whole, or one line and an exit code say why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from engine import launch
from engine.model import reference

GENERATE = [sys.executable, "-m", "engine", "generate", "--max-tokens", "4"]
HELP = [sys.executable, "-m", "engine", "--help"]
OUTPUT_FAILED = 74


def run(command: Sequence[str | bytes], redirection: str = "", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command through a shell, which closes and redirects as it is told."""
    shell: list[str | bytes] = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command]
    return subprocess.run(shell, capture_output=True, timeout=60, env={**os.environ, **env})


def one_line(said: bytes) -> str:
    lines = said.decode().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("engine: standard output ")
    return lines[0]


@pytest.mark.parametrize("command", [[*GENERATE, "x"], [*GENERATE, "--json", "x"], HELP], ids=["text", "json", "help"])
@pytest.mark.parametrize(("redirection", "why"), [(">/dev/full", "No space left"), (">&-", "is closed")])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_74(
    command: list[str], redirection: str, why: str
) -> None:
    done = run(command, redirection)
    assert done.returncode == OUTPUT_FAILED
    assert why in one_line(done.stderr)


def test_text_that_the_encoding_cannot_show_is_one_line_and_exit_code_74() -> None:
    done = run([*GENERATE, "--max-tokens", "16", "hello"], PYTHONIOENCODING="latin-1")
    assert done.returncode == OUTPUT_FAILED
    assert "cannot show '\\ufffd' in its encoding iso8859-1: set PYTHONIOENCODING=utf-8" in one_line(done.stderr)


def test_a_prompt_that_is_not_utf_8_gets_its_json_whatever_the_encoding() -> None:
    done = run([*GENERATE, "--json", b"h\xff\xc3\xa9"], PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    said = json.loads(done.stdout.decode())
    assert said["prompt"] == "h\ufffdé"
    assert said["token_ids"] == reference.greedy("tiny", list(b"h\xff\xc3\xa9"), 4)


@pytest.mark.parametrize("command", [[*GENERATE, "x"], HELP], ids=["text", "help"])
def test_a_reader_that_has_gone_is_no_failure(command: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_that_cannot_be_said_still_has_its_exit_code(redirection: str) -> None:
    done = run([*GENERATE, "--tp", "5", "x"], redirection)
    assert (done.returncode, done.stdout) == (2, b"")


def target(fds: list[int]) -> None:
    """A rank's work, for the test below."""


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_rank_without_standard_streams_ends_with_its_own_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.process._current_process._name", "MainProcess")
    monkeypatch.setattr(sys, name, None)
    code = launch.run_target("dp0.rank0", f"{__name__}:target", (), [])
    monkeypatch.undo()
    assert code == 0


def test_an_engine_serves_a_program_whose_output_is_closed() -> None:
    code = """if True:
        import asyncio, sys
        from engine.config import EngineConfig
        from engine.llm import AsyncLLM
        from engine.messages import SamplingParams
        async def main():
            async with AsyncLLM(EngineConfig(tp_size=2)) as llm:
                tokens = [t async for o in llm.generate([1], SamplingParams(2)) for t in o.token_ids]
            print(*tokens, file=sys.stderr)
        if __name__ == "__main__":
            asyncio.run(main())
    """
    done = run([sys.executable, "-c", code], ">&-")
    assert (done.returncode, done.stderr.decode().split()) == (0, [str(t) for t in reference.greedy("tiny", [1], 2)])
