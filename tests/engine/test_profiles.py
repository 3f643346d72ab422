"""Profiles: what a rank does, in a file that can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.model import reference
from engine.model.llama import Llama
from tests.engine.calls import called, refused, request
from tests.engine.inline import Inline, PageModel, whole_model


@pytest.fixture
def inline() -> Inline:
    return Inline(PageModel(), num_pages=64, page_size=4, max_num_seqs=2)


@pytest.fixture(scope="module")
def model() -> Llama:
    return whole_model()


# ---- profiles ----


def test_a_profile_is_a_chrome_trace_of_what_ran_between_start_and_stop(model: Llama, tmp_path: Path) -> None:
    inline = Inline(model)
    assert called(inline, "profile", True, str(tmp_path)) is None
    assert refused(inline, "profile", True) == (
        "Call to profile method failed: dp0.rank0: a profile is being recorded already"
    )
    inline.add(request("a"))
    inline.drain()
    (path,) = called(inline, "profile", False)
    assert Path(path).parent == tmp_path
    assert Path(path).name.startswith("dp0.rank0.")
    assert [one.name for one in tmp_path.iterdir()] == [Path(path).name]
    events = json.loads(Path(path).read_text())["traceEvents"]
    assert any(event.get("name") == "aten::linear" for event in events)
    assert inline.tokens("a") == reference.greedy("tiny", [1, 2, 3], 3)


def test_a_profile_goes_into_the_directory_that_is_named_last(inline: Inline, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    paths = []
    for _ in range(2):
        called(inline, "profile", True, str(first))
        paths += called(inline, "profile", False, str(second))
    assert len(set(paths)) == 2
    assert sorted(paths) == sorted(str(path) for path in second.iterdir())
    assert list(first.iterdir()) == []


@pytest.mark.parametrize(
    ("directory", "text"),
    [("nothing/there", "No such file or directory"), ("file", "Not a directory"), ("\0", "embedded null byte")],
)
def test_a_directory_that_cannot_be_written_to_is_refused_at_the_start_and_at_the_end(
    inline: Inline, tmp_path: Path, directory: str, text: str
) -> None:
    (tmp_path / "file").touch()
    target = str(tmp_path / directory)
    said = f"Call to profile method failed: dp0.rank0: directory {target!r} cannot be written to: {text}"
    assert refused(inline, "profile", True, target) == said
    called(inline, "profile", True)
    assert refused(inline, "profile", False, target) == said
    text = "Call to profile method failed: dp0.rank0: no profile is being recorded"
    assert refused(inline, "profile", False, str(tmp_path)) == text


def test_a_profile_without_any_directory_is_refused_at_its_end(inline: Inline) -> None:
    called(inline, "profile", True)
    text = "Call to profile method failed: dp0.rank0: no directory was named, neither at the start nor now"
    assert refused(inline, "profile", False) == text
