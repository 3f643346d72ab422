"""What the harness knows of the engine: its endpoints, frames and settings, as pure functions."""

from __future__ import annotations

import msgspec
import pytest

from engine.config import EngineConfig
from engine.relay import frames as relay_frames
from engine.relay.frames import FrameKind
from harness.plan import EngineOptions, Plan, PlanError, Topology, from_toml
from harness.targets.engine import ENGINE, config_of, foreign

EPOCH = 0x0123_4567_89AB_CDEF


def plan(relay: str = "pushpull") -> Plan:
    return Plan(topology=Topology(tp=3), engine=EngineOptions(relay=relay))


@pytest.mark.parametrize(
    ("endpoint", "link"),
    [
        ("ipc:///tmp/x/relay", "relay"),
        ("ipc:///tmp/x/relay.1", "relay"),
        ("ipc:///tmp/x/relay.12", "relay"),
        ("ipc:///tmp/x/relay.2@dp0.rank2", "relay"),
        ("ipc:///tmp/x/relay@dp0.rank1", "relay"),
        ("relay.2", "relay"),
        ("ipc:///tmp/x/control", "control"),
        ("ipc:///tmp/relay.1/input", "input"),
        ("ipc:///tmp/x/relay.backup", "relay.backup"),
    ],
)
def test_every_endpoint_carries_a_link(endpoint: str, link: str) -> None:
    assert ENGINE.link_of(endpoint) == link


@pytest.mark.parametrize("relay", ["pushpull", "subscribed", "handshake", "unsynchronised"])
def test_a_connector_meets_the_binder_at_an_endpoint_that_carries_the_link(relay: str) -> None:
    here = plan(relay)
    for link in ("relay", "control"):
        assert ENGINE.connectors(link, here) == ("dp0.rank1", "dp0.rank2")
        assert ENGINE.binder(link) == "dp0.rank0"
        met = [ENGINE.endpoint(link, connector, here) for connector in ENGINE.connectors(link, here)]
        assert met == (["relay.1", "relay.2"] if (relay, link) == ("pushpull", "relay") else [link] * 2)
        assert {ENGINE.link_of(f"ipc:///tmp/{name}") for name in met} == {link}


def test_a_join_is_what_each_strategy_makes_of_it() -> None:
    assert ENGINE.frame("relay", "join", plan("pushpull")) == "READY"
    assert ENGINE.frame("relay", "join", plan("subscribed")) == "SUBSCRIBE"
    assert ENGINE.frame("relay", "join", plan("handshake")) == "SUBSCRIBE"
    assert ENGINE.frame("control", "join", plan("pushpull")) == "join"
    assert ENGINE.frame("relay", "step", plan("pushpull")) == "step"


@pytest.mark.parametrize("kind", list(FrameKind))
@pytest.mark.parametrize("link", ["relay", "control"])
def test_every_kind_of_frame_has_a_name_and_a_number(link: str, kind: FrameKind) -> None:
    found = ENGINE.classify(link, "recv", [relay_frames.encode(kind, EPOCH, 7)])
    assert (found.kind, found.number, found.epoch) == (kind.name.lower(), 7, EPOCH)


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (b"\x01", "subscribe"),
        (b"\x00", "unsubscribe"),
        (b"\x01rank:0123456789abcdef:2", "subscribe"),
        (b"\x01\x93\x01\x91\xa2r0\xc0", "step"),
        (b"\x00\x94\x01\x02\x03\x04", "step"),
        (b"\x06", "stop"),
        (b"", "?"),
        (b"\xc1", "?"),
    ],
)
def test_what_has_no_envelope_is_told_apart_by_its_head(frame: bytes, kind: str) -> None:
    assert ENGINE.classify("relay", "recv", [frame]).kind == kind


def test_a_frame_of_a_foreign_run_differs_in_its_epoch_alone_and_is_whole() -> None:
    step = relay_frames.Step(1, [b"raw"])
    own = relay_frames.encode(FrameKind.STEP, EPOCH, 3, step)
    (moved,) = foreign("relay", [own])
    before, after = relay_frames.decode(own), relay_frames.decode(moved)
    assert after.epoch != before.epoch
    assert msgspec.structs.replace(after, epoch=before.epoch) == before
    assert foreign("relay", [b"raw"]) == [b"raw"]
    assert foreign("input", [own]) == [own]


def test_settings_of_the_engine_come_from_the_plan_and_digests_are_compared_every_step() -> None:
    assert config_of(plan(), None).digest_interval == 1
    set_ = config_of(from_toml("[engine.config]\ndigest_interval = 9\nmax_num_seqs = 2\n"), "/tmp/x")
    assert (set_.digest_interval, set_.max_num_seqs, set_.socket_dir) == (9, 2, "/tmp/x")
    assert set_.relay == EngineOptions().relay == EngineConfig().relay


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"max_num_seq": 2}, ["engine.config.max_num_seq", "no such setting", "max_num_seqs"]),
        ({"max_num_seqs": 0}, ["engine.config.max_num_seqs", "got 0"]),
        ({"max_num_seqs": "two"}, ["engine.config.max_num_seqs", "got 'two'"]),
        ({"relay_high_water": True}, ["engine.config.relay_high_water", "got True"]),
        ({"log_level": "LOUD"}, ["engine.config.log_level", "LOUD"]),
        ({"relay": "pushpull"}, ["engine.config.relay", "engine.relay"]),
        ({"tp_size": 2}, ["engine.config.tp_size", "topology.tp"]),
        ({"timeouts": 2}, ["engine.config.timeouts", "engine.timeouts"]),
        ({"socket_dir": "/tmp"}, ["engine.config.socket_dir", "the world"]),
    ],
)
def test_a_setting_that_is_unknown_or_wrong_or_made_elsewhere_is_refused(
    config: dict[str, bool | int | float | str], words: list[str]
) -> None:
    with pytest.raises(PlanError) as caught:
        ENGINE.check(Plan(engine=EngineOptions(config=config)))
    for word in words:
        assert word in str(caught.value)
