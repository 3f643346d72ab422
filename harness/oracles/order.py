"""ORDER: the done-frame rule, and outputs in the order of production (I2, I3; H2 of the relay's clauses).

On every rank >= 1: the opening of the relay, then step frames 1, 2, 3 ... and nothing of the opening ever again. The
opening is hellos and exactly one done after the last of them, or exactly one go, or nothing where rank 0 sends neither.
To the client: output messages 1, 2, 3 ..., and no token after a request's end. What is judged is what a process
*acts* on: a rank that sees a wrong frame and leaves has done right, and so has a client that reads no further.
"""

from __future__ import annotations

from harness.history import Event, History
from harness.oracles import outcome
from harness.targets import Target
from harness.verdict import Finding


def check(history: History, target: Target) -> list[Finding]:
    """Findings for ranks that acted on a frame out of order, and for outputs out of order."""
    sent = {event.kind for event in history.of("dp0.rank0", "relay.send")}
    last_of_opening = "done" if "hello" in sent else "go" if "go" in sent else ""
    findings = []
    for role in history.plan.topology.ranks[1:]:
        findings += _relay(history, role, last_of_opening)
    findings += _outputs(history)
    for request in outcome.requests(history):
        if request.tokens_after_end:
            sentence = f"request {request.name} got {request.tokens_after_end} tokens after its end"
            findings.append(Finding("ORDER", sentence, "client", request.sent))
    return findings


def _relay(history: History, role: str, last_of_opening: str) -> list[Finding]:
    joined, last = not last_of_opening, 0
    for event in history.of(role, "relay.recv", "after"):
        if not event.ok:
            continue
        wrong = ""
        if event.kind == "hello":
            wrong = "a hello after the done frame" if joined and last_of_opening else ""
        elif event.kind in ("done", "go"):
            wrong = f"a second {event.kind} frame" if joined else ""
            joined = True
        elif event.kind == "step":
            if not joined:
                wrong = f"step frame {event.number} before the {last_of_opening} frame"
            elif event.number >= 0 and event.number != last + 1:
                wrong = f"step frame {event.number} after step frame {last}"
            last = event.number
        if wrong and _acted(history, role, event):
            return [Finding.of("ORDER", f"{role} acted on {wrong}", event)]
    return []


def _acted(history: History, role: str, wrong: Event) -> bool:
    """Whether the role went on with the work of the engine after the wrong frame."""
    later = (event for event in history.of(role, side="before") if event.t > wrong.t)
    return any(event.site.startswith("tp.") or event.site == "relay.recv" for event in later)


def _outputs(history: History) -> list[Finding]:
    expected = 1
    for event in history.of("client", "output.recv", "after"):
        if event.kind != "outputs" or event.number < 0:
            continue
        if event.number != expected and not _refused(history, event, expected - 1):
            return [Finding.of("ORDER", f"output message {event.number} came where {expected} was due", event)]
        expected += 1
    return []


def _refused(history: History, wrong: Event, accepted: int) -> bool:
    """Whether the client read no further than the wrong message, and gave nothing of it to anybody.

    What came in one go is read before any of it is given out. A message holds at most one token of each request.
    """
    later = (event for event in history.of("client", "output.recv", "after") if event.t > wrong.t)
    read_on = any(event.ok for event in later)
    return not read_on and all(len(request.tokens) <= accepted for request in outcome.requests(history))
