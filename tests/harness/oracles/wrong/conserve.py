"""Rank 0's outputs have two readers: what a stray one takes never comes to the client (vLLM, a second binder)."""

from __future__ import annotations

import multiprocessing
from typing import Any

import zmq

from engine.ports import Port

_connect = Port.connect
_strays: list[Any] = []


def _with_a_stray(self: Port, input_address: str, output_address: str, welcome: Any) -> None:
    stray = zmq.Context().socket(zmq.PULL)
    stray.bind(f"{output_address}@stray")
    _strays.append(stray)
    _connect(self, input_address, output_address, welcome)
    self.output.connect(f"{output_address}@stray")


if multiprocessing.current_process().name == "dp0.rank0":
    Port.connect = _with_a_stray  # type: ignore[method-assign]
