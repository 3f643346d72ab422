"""TERM: everything that a user asked for ends exactly once (I1 of the client's invariants; H12 of the relay's clauses).

A request that was sent ends with one finish or one error, never with both, with two, or with none. One that the client
gave up ends with that, when its reader has really left it: a task that is cancelled must not go on. The client program
itself ends in order. A run that the world stopped for a wedge or for its budget is not judged here.
"""

from __future__ import annotations

from harness.faults import Cancel
from harness.history import History
from harness.oracles import outcome
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """One finding per request that ended not at all or more than once, and one for a client program that broke."""
    if history.ended != "done" or outcome.client_was_killed(history):
        return []
    findings = []
    cancelled = {fault.request for fault in outcome.fired(history) if isinstance(fault, Cancel) and not fault.fatal}
    for request in outcome.requests(history):
        ends = len(request.finished) + len(request.failed) + (request.given_up is not None)
        if ends != 1:
            how = "never ended" if not ends else f"ended {ends} times"
            findings.append(Finding("TERM", f"request {request.name} {how}", "client", request.sent))
        elif request.finished and request.finished[0].kind == "none":
            findings.append(Finding("TERM", f"request {request.name} stopped without a reason", "client", request.sent))
        elif request.number in cancelled and request.given_up is None:
            findings.append(
                Finding("TERM", f"request {request.name} went on although its task was cancelled", "client")
            )
    client = history.process("client")
    if client is None:
        findings.append(Finding("TERM", "the client program was never started"))
    elif client.status:
        last = client.log.strip().splitlines()[-1:] or ["it said nothing"]
        findings.append(
            Finding(
                "TERM", f"the client program ended with status {client.status}: {last[0]}", "client", client.ended or 0
            )
        )
    return findings
