"""An instant is its text: what can be written can be read again, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.instant import Instant, InstantError, called
from tests.harness.test_plan import instants


@given(instants())
def test_an_instant_survives_its_text(at: Instant) -> None:
    if at.kind is not None and at.side == "before" and at.site.endswith(".recv"):
        return
    again = Instant.parse(str(at))
    assert again == at
    assert hash(again) == hash(at)


def test_a_function_is_a_site() -> None:
    at = Instant.parse("dp0.rank1:call(engine.core:EngineCore.step)#3:before")
    assert at == Instant("dp0.rank1", "call(engine.core:EngineCore.step)", None, 3, "before")
    assert called(at.site) == ("engine.core", "EngineCore.step")
    assert Instant.parse(str(at)) == at


def test_kind_and_number_may_be_left_out() -> None:
    assert Instant.parse("dp0.rank0:relay.send:before") == Instant("dp0.rank0", "relay.send", None, 1, "before")
    assert Instant.parse("dp0.rank0:relay.send") == Instant("dp0.rank0", "relay.send", None, 1, "after")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not an instant"),
        ("dp0.rank0", "not an instant"),
        ("dp0.rank0:relay", "is no site"),
        ("dp0.rank0:relay.send#0", "#1"),
        ("dp0.rank0:start#2", "start takes no"),
        ("dp0.rank1:relay.recv[step]#1:before", "not known yet"),
        ("dp0.rank0:relay.send:during", "not an instant"),
        ("dp0.rank0:call(engine.core)", "not an instant"),
        ("dp0.rank0:call(engine.core:EngineCore.step)[step]", "a call has no kind"),
    ],
)
def test_what_is_no_instant_is_refused_with_the_reason(text: str, word: str) -> None:
    with pytest.raises(InstantError, match=r".") as caught:
        Instant.parse(text)
    assert word in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        at = Instant.parse(text)
    except InstantError:
        return
    assert Instant.parse(str(at)) == at
