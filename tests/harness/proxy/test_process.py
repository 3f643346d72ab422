"""The proxy process: asked wrongly it refuses in a sentence, and it leaves nothing when it or its parent ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from harness.proxy import FrameRule, Leg, Proxy, ProxyError, Record, Status
from tests.harness.proxy.legs import LIMIT, Link, Sock, rule, until

ROOT = Path(__file__).resolve().parents[3]


def descriptors(pid: int) -> list[str]:
    return sorted(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0] for fd in os.listdir(f"/proc/{pid}/fd"))


def test_fifty_runs_leave_no_descriptor_and_no_path(proxy: Proxy, tmp_path: Path) -> None:
    before = None
    context: zmq.Context[Sock] = zmq.Context()
    for number in range(50):
        legs = [Leg("relay", f"dp0.rank{n}", "dp0.rank0", f"{tmp_path}/l{n}", f"{tmp_path}/up{number}") for n in (1, 2)]
        proxy.begin(legs, [FrameRule(1, "hold", "relay", "dp0.rank1", "*")])
        with context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as held, context.socket(zmq.PUSH) as push:
            pull.set(zmq.RCVTIMEO, int(LIMIT * 1000))
            pull.bind(f"ipc://{tmp_path}/up{number}")
            held.connect(f"ipc://{tmp_path}/l1")
            push.connect(f"ipc://{tmp_path}/l2")
            held.send(b"a", zmq.DONTWAIT)
            push.send(b"b")
            assert pull.recv() == b"b"
            proxy.end()
            for sock in (pull, held, push):
                sock.set(zmq.LINGER, 0)
        before = before or descriptors(proxy.pid)
        assert list(tmp_path.glob("l*")) == []
    assert descriptors(proxy.pid) == before
    context.term()


PARENT = """
import os, sys, time
from harness.proxy import Leg, Proxy
proxy = Proxy()
proxy.begin([Leg("relay", "c", "b", sys.argv[1], sys.argv[1] + ".up")])
if sys.argv[2] == "forked" and os.fork() == 0:
    time.sleep(60)  # keeps a copy of the control socket
    os._exit(0)
print(proxy.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "listen"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, str(path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd="/", start_new_session=True) as parent:
        if parent.stdout is None:
            pytest.fail("no pipe to the parent")
        pid = int(parent.stdout.readline())
        assert path.exists()
        parent.kill()
        until(lambda: not path.exists(), "the listening path to go")
        until(lambda: not alive(pid), "the proxy to end")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["stop", "sigterm"])
def test_stopping_removes_the_listening_paths(tmp_path: Path, how: str) -> None:
    proxy = Proxy()
    proxy.begin([Leg("relay", "c", "b", f"{tmp_path}/listen", f"{tmp_path}/up")])
    os.kill(proxy.pid, signal.SIGINT)  # Ctrl-C goes to the whole group: the parent decides
    assert proxy.status().quiet
    if how == "sigterm":
        os.kill(proxy.pid, signal.SIGTERM)
        until(lambda: not (tmp_path / "listen").exists(), "the listening path to go")
    assert proxy.stop() == (143 if how == "sigterm" else 0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProxyError):
        proxy.status()


def test_a_path_bound_by_another_is_left_alone(link: Link, tmp_path: Path) -> None:
    link.begin()
    path = tmp_path / "listen"
    path.unlink()
    path.touch()
    link.proxy.end()
    assert path.exists()


def test_the_proxy_process_is_light() -> None:
    code = "import sys, harness.proxy.server; print(*(n.partition('.')[0] for n in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    foreign = set(out.stdout.split()) - set(sys.stdlib_module_names)
    assert foreign & {"torch", "numpy", "zmq", "subprocess", "pytest", "hypothesis"} == set()
    assert {"harness", "msgspec"} <= foreign


def test_bad_requests_are_refused_in_one_sentence(proxy: Proxy, tmp_path: Path) -> None:
    leg = Leg("relay", "c", "b", f"{tmp_path}/listen", f"{tmp_path}/up")
    taken = tmp_path / "taken"
    taken.touch()

    def refused(expected: str, *legs: Leg, rules: tuple[FrameRule, ...] = (), classify: str | None = None) -> None:
        with pytest.raises(ProxyError, match=expected):
            proxy.begin(legs, rules, classify)
        assert not (tmp_path / "listen").exists()

    good = FrameRule(1, "drop", "relay", "c", "step")
    refused("no leg relay of dp0.rank1; there is: relay of c", leg, rules=(rule(),))
    refused("rule 1: the index is used twice", leg, rules=(good, good))
    refused("rule 1: nth must be 1 or more, not 0", leg, rules=(rule(nth=0),))
    refused("rule 1: after must be seconds", leg, rules=(rule(after=float("nan")),))
    refused("rule 1: kind is empty", leg, rules=(rule(kind=""),))
    refused("Invalid enum value 'melt'", leg, rules=(rule("melt"),))
    refused(f"cannot listen at {taken}", leg, Leg("x", "c", "b", str(taken), f"{tmp_path}/up"))
    refused("retry must be seconds above 0, not 0", Leg("x", "c", "b", leg.listen, leg.upstream, retry=0))
    refused("bad address 'udp://x'", leg, Leg("x", "c", "b", "udp://x", f"{tmp_path}/up"))
    refused("cannot load classify 'no.such:thing'", leg, classify="no.such:thing")
    refused("bad classify 'thing'", leg, classify="thing")
    with pytest.raises(ProxyError, match="no run is open"):
        proxy.end()
    proxy.begin([leg])
    with pytest.raises(ProxyError, match="a run is open"):
        proxy.begin([leg])
    with pytest.raises(ProxyError, match="no rule 3 to release; there is: none"):
        proxy.release(3)
    proxy.end()
    assert proxy.status() == Status(True, 0, [], [], None, [], 0, [])


def test_the_ledger_can_be_read_in_parts(link: Link) -> None:
    link.begin()
    push, pull = link.pair(zmq.PUSH, zmq.PULL)
    found: list[Record] = []
    at = 0
    for number in range(3):
        push.send(b"step %d" % number)
        pull.recv()
        part = link.proxy.ledger(at)
        found, at = found + part.records, part.next
    times = [record.t_ns for record in found]
    assert times == sorted(times)
    assert found == link.proxy.end().records[: len(found)]
