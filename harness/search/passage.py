"""Passages: what a run of the engine passes for certain, so that a fault that is drawn there will fire.

From the table of `harness.search.sites`, which needs no run, or learnt from dry runs: then it holds every instant of
every role and every frame of every link.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import product
from typing import TypeAlias

from msgspec import Struct, structs

from harness.bug import Bug
from harness.history import History
from harness.instant import Instant
from harness.plan import Request, Workload
from harness.search import sites
from harness.search.phases import Mark, Phase
from harness.search.places import FramePlace, instants, learn
from harness.targets import get
from harness.trial import trials
from harness.world import World

TOKENS = (1, 4)
"""Tokens of the first request for which passages are learnt; a plan uses the largest that it has."""


class Passage(Struct, frozen=True):
    """What every run passes: instants of the ranks, of the client program and of the demand at the end, and frames.

    ``learnt``: from runs, so that another run may know a place more or less.
    """

    ranks: tuple[Instant, ...]
    client: tuple[Instant, ...]
    late: tuple[Instant, ...]
    frames: tuple[FramePlace, ...]
    learnt: bool = False


Passages: TypeAlias = Callable[[int, str, int], Passage]
"""The passage of a run of so many ranks, of that relay, whose first request is for so many tokens."""


def of_table(ranks: int, relay: str, tokens: int) -> Passage:
    """What the table knows."""
    victims = [f"dp0.rank{rank}" for rank in range(1, ranks)]
    steps = sites.certain_steps(relay, tokens)
    frames = [
        FramePlace(link, frame, victim, nth, "either")
        for link, frame in (sites.frames(relay) if ranks > 1 else ())
        for victim in victims
        # Only step frames come a known number of times; of hellos there may be one.
        for nth in range(1, (steps if frame == "step" else 1) + 1)
    ]
    return Passage(
        sites.instants(ranks, relay, tokens), sites.client_instants(tokens), sites.late_instants(), tuple(frames)
    )


def learnt(
    world: World,
    relays: Iterable[str],
    sizes: Iterable[int],
    *,
    target: str = "engine",
    start: str = "fork",
    bug: Bug | None = None,
) -> Passages:
    """Learns the passages of runs of those relays and sizes, from two runs for each, one with every link observed.

    ``bug`` is seeded in the engine. Where a run does not come through by itself, the table has to do.
    """
    known: dict[tuple[int, str, int], Passage] = {}
    wanted = product(sizes, relays, TOKENS)
    plans = {
        (size, relay, tokens): _work(tokens).plan(size, relay, target=target, start=start)
        for size, relay, tokens in wanted
    }
    if bug is not None:
        plans = {key: bug.put_into(plan) for key, plan in plans.items()}
    observed = {key: structs.replace(plan, observe=get(target).links(plan)) for key, plan in plans.items()}
    seen: dict[str, History] = {}
    with closing(trials(world, [*plans.values(), *observed.values()])) as runs:
        for trial in runs:
            seen[trial.plan.digest] = trial.history
    for key, plan in plans.items():
        with contextlib.suppress(ValueError):
            known[key] = _passage(_work(key[-1]), seen[plan.digest], seen[observed[key].digest])

    def passage(ranks: int, of: str, tokens: int) -> Passage:
        enough = max(count for count in TOKENS if count <= tokens)
        return known.get((ranks, of, enough)) or of_table(ranks, of, tokens)

    return passage


def _work(tokens: int) -> Phase:
    """All of a run with one request of so many tokens, but for the demand at its end."""
    asked = Workload(requests=(Request(prompt=(1,), max_tokens=tokens),))
    return Phase("work", "until all that was asked is over", asked, until=Mark("demand", "begin"))


def _passage(work: Phase, plain: History, watched: History) -> Passage:
    """What both runs pass; ValueError if one of them has not come through."""
    places = learn(work, [plain], [watched])
    asked, passed = Mark("request.sent").first(plain) or 0, dict(instants(plain))
    client = [at for at in places.instants if at.role == "client" and passed[at] >= asked]
    ranks = [at for at in places.instants if at.role != "client" and at.site != "exit"]
    return Passage(tuple(ranks), tuple(client), sites.late_instants(), places.frames, learnt=True)
