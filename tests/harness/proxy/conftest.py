"""One proxy process for the tests of a module, and a fresh link through it for each test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.proxy import Proxy, ProxyError
from tests.harness.proxy.legs import Link, Raw

CLASSIFY = """
from harness.proxy.records import Kind

def classify(link, direction, frames):
    word, _, number = frames[0].partition(b" ")
    if word == b"bad":
        raise RuntimeError("no such kind")
    if word == b"odd":
        return Kind(b"bytes")
    return Kind(word.decode() if word.isalpha() else "?", int(number) if number.isdigit() else None)

def foreign(link, frames):
    if frames[0].startswith(b"bad"):
        raise RuntimeError("no such run")
    return [b"foreign " + frames[0]]
"""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    folder = tmp_path_factory.mktemp("classify")
    (folder / "relay_kinds.py").write_text(CLASSIFY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with Proxy() as started:
            yield started


@pytest.fixture(params=[False])
def link(proxy: Proxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Link]:
    made = Link(proxy, tmp_path, request.param)
    yield made
    with contextlib.suppress(ProxyError):
        proxy.end()
    made.context.destroy(linger=0)


@pytest.fixture
def raw(link: Link) -> Iterator[Raw]:
    link.begin()
    made = Raw(link)
    yield made
    made.close()
