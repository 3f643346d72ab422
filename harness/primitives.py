"""The primitives that public reports of hangs need: what has to be done to an engine so that it hangs in their way.

Counted over a hundred reports (vLLM, SGLang, Triton, Ray, pyzmq, libzmq, torch and others). A scenario says by its tags
which of them it uses; of those that no scenario uses it is said why.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.scenario import Scenario

PRIMITIVES: dict[str, str] = {
    "S1": "freeze a process, or block its loop, for a while",
    "K1": "kill a rank in a step or in a collective",
    "D1": "perturb a decision that each rank makes for itself: clock, order, early return",
    "Z2": "drop, delay or reorder one chosen control message",
    "K5": "kill a rank, or let it fail, before it is ready",
    "T1": "a signal at a chosen phase: twice, in warm-up, in the tear-down",
    "C1": "a client leaves: in the stream, before the first token",
    "C3": "asyncio cancellation at a chosen await",
    "R1": "an error in a rank at step n; the process stays",
    "E2": "a stale resource of an earlier life, or a foreign unlink",
    "K2": "kill the scheduler with requests in flight, or let it exit with 0",
    "S2": "a slow or stopped consumer with a small high-water mark",
    "Z1": "a slow joiner: SUBSCRIBE or connect is late for the first send",
    "C4": "an overload: burst, full queue, a request at the limit",
    "S3": "a rank starts or connects too late, or never",
    "C2": "an abort around add, finish or the use of its id again",
    "D3": "topologies: 11 ranks and more, data by tensor parallel, a cold first request",
    "K3": "kill the parent",
    "E1": "somebody takes the address between pick and bind",
    "D2": "an uneven drain: one data-parallel rank is idle, or has a step without tokens",
    "R2": "poison: one message makes a decoder, a validator or a handler fail",
    "X1": "two tasks or threads on one socket or queue",
    "K4": "kill an auxiliary process: detokenizer, coordinator, store",
    "E4": "no descriptors left",
    "K6": "kill a process while it holds a lock, or between two frames",
    "Z3": "an address is taken over: second binder, lingering peer",
    "Z4": "restart one peer with the same identity or address",
    "E3": "a path that is too long for a socket",
    "E5": "fork while another thread holds a lock",
    "N1": "an address that one rank cannot reach",
    "Z5": "close with unsent messages to a dead or absent peer",
}
"""By code, in the order of how many reports need them."""

WITHOUT: dict[str, str] = {
    "D3": "plans have 1 to 4 ranks and no data parallelism yet",
    "D2": "there is no data parallelism yet",
    "K4": "the engine has no process but its client and its ranks, and its store is a file",
    "E5": "the engine never forks; a fork of a client's program is tested in `tests/invariants/test_signals.py`",
    "N1": "ranks meet over Unix sockets and loopback only",
}
"""Why no scenario uses them."""


def uses(scenarios: Iterable[Scenario]) -> dict[str, list[str]]:
    """The names of the scenarios that use each primitive."""
    found: dict[str, list[str]] = {code: [] for code in PRIMITIVES}
    for scenario in scenarios:
        for tag in scenario.tags:
            if tag in found:
                found[tag].append(scenario.name)
    return found
