"""GOLD: tokens are those of the reference, whatever was broken on the way (I2 of the client's invariants).

A request that was served has exactly the reference's tokens; one that ended with an error has a beginning of them.
"""

from __future__ import annotations

from harness.history import History
from harness.oracles import outcome
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per request whose tokens differ from the reference."""
    findings = []
    for request in outcome.requests(history):
        golden = history.golden.get(request.like)
        if golden is None:
            continue
        golden = golden[: request.shorter or None]
        whole = request.served and request.tokens == golden
        if whole or (not request.served and request.tokens == golden[: len(request.tokens)]):
            continue
        sentence = f"request {request.name} got tokens {list(request.tokens)}, the reference says {list(golden)}"
        findings.append(Finding("GOLD", sentence, "client", request.sent))
    return findings
