"""Machines that do anything to a client in any order: rules for Hypothesis, checked by a model after each."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.driving import Driver, LoopDriver, ThreadDriver
from tests.engine.lives import HASTY, PATIENT, Life, shape
from tests.engine.promises import PROMPTS, Promise, embedded
from tests.engine.questions import ORDERS, QUESTIONS

RANKS = st.integers(0, 1)
RULES_LATER = st.integers(0, 6)
"""How many rules run before what has been begun is over."""

TURNS = st.integers(0, 6)
SOME = st.integers(0, 11)
"""Which of a list, counted round and round."""

StepT = TypeVar("StepT", bound=Callable[..., None])


RULES: dict[str, set[str]] = {}
"""Names of the counted rules, by the class that has them."""


def noted(step: StepT) -> StepT:
    """A rule that is counted, and after which everything is checked."""
    RULES.setdefault(step.__qualname__.partition(".")[0], set()).add(step.__name__)

    @functools.wraps(step)
    def run(self: Machine, **arguments: Any) -> None:
        self.ran[step.__name__] += 1
        self.broken = True
        step(self, **arguments)
        self.after_each()
        self.broken = False

    return cast(StepT, run)


def within(*states: str) -> Callable[[Any], Any]:
    """A rule for an engine in one of these states; in any, if none is named.

    What decides about rules never depends on time, so that a run can be repeated.
    """
    return precondition(lambda self: self.life is not None and (not states or self.life.state in states))


def old(*states: str) -> Callable[[Any], Any]:
    """The same for a rule that ends the engine, which first lives for a while."""
    return precondition(
        lambda self: self.life is not None and self.age >= self.span and (not states or self.life.state in states)
    )


class Machine(RuleBasedStateMachine):
    """What can be done to either client."""

    kind: ClassVar[type[LoopDriver] | type[ThreadDriver]]
    driver: Driver
    ran: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.driver = self.kind()
        self.life: Life | None = None
        self.broken = False
        self.age = self.span = self.patience = self.names = 0

    @property
    def now(self) -> Life:
        assert self.life is not None
        return self.life

    def after_each(self) -> None:
        self.age += 1
        if self.life is None:
            return
        if self.life.state in ("halted", "dying") and self.patience == 0:
            self.life.get_over()
        self.patience -= 1
        self.life.check()

    # ---- beginning and end ----

    @precondition(lambda self: self.life is None or self.life.over)
    @rule(
        size=st.integers(1, 2),
        relay=st.sampled_from(["pushpull", "pushpull", "handshake", "subscribed"]),
        inside=st.booleans(),
        stats=st.booleans(),
        span=st.integers(0, 40),
    )
    @noted
    def start(self, size: int, relay: str, inside: bool, stats: bool, span: int) -> None:
        self.begin(lambda: Life(self.driver, shape(size, relay, PATIENT, stats=stats), inside=inside), span)

    def begin(self, make: Callable[[], Life], span: int) -> None:
        if self.life is not None:
            self.end()
        self.life = make()
        self.age, self.span = 0, span

    def end(self) -> None:
        """End whatever life there is, in the way that its state asks for."""
        self.now.get_over()
        self.now.go_on()
        self.now.shut("here", None, drain=False)
        self.forget()

    def forget(self) -> None:
        self.now.drop()
        self.life = None

    def teardown(self) -> None:
        life = self.life
        try:
            if life is not None and not self.broken:
                self.end()
        finally:
            if life is not None:
                life.go_on()
                life.factory.kill()
                with contextlib.suppress(Exception):
                    life.client.shutdown(0)
            self.driver.close()

    # ---- requests ----

    @within()
    @rule(
        prompt=st.integers(0, len(PROMPTS) - 1),
        count=st.sampled_from([1, 2, 3, 5, 12, 50]),
        kind=st.sampled_from(["ids", "ids", "logprobs", "embeds"]),
    )
    @noted
    def add(self, prompt: int, count: int, kind: str) -> None:
        self.now.finish([self.now.add(*self.promise(prompt, count, kind))])

    @within()
    @rule(which=SOME, kind=st.sampled_from(["ids", "embeds"]))
    @noted
    def add_of_the_same_name(self, which: int, kind: str) -> None:
        names = [promise.request.request_id for promise in self.now.promises.all] or ["first"]
        self.now.finish([self.now.add(*self.promise(1, 3, kind, names[which % len(names)]))])

    @within()
    @rule(which=st.lists(SOME, min_size=1, max_size=3), unknown=st.booleans())
    @noted
    def abort(self, which: list[int], unknown: bool) -> None:
        """Some that are under way or not, each perhaps twice, and one that nobody knows."""
        names = [promise.request.request_id for promise in self.now.promises.all]
        self.now.abort([names[one % len(names)] for one in which if names] + ["nobody"] * unknown)

    @within()
    @rule()
    @noted
    def read(self) -> None:
        """One batch, or the error, if it is certain to come, else what is there."""
        if self.now.certain:
            self.now.read_on()
        else:
            self.now.glance()

    @within("well")
    @rule(which=st.none() | SOME)
    @noted
    def read_to_the_end(self, which: int | None) -> None:
        """Of one request that is owed its end, or of all."""
        owed = self.now.promises.owed
        self.read_all(owed if which is None or not owed else [owed[which % len(owed)]])

    @within()
    @rule()
    @noted
    def start_to_read(self) -> None:
        if len(self.now.reads) < 4:
            self.now.read()
        self.driver.turn(1)

    # ---- utilities ----

    @within()
    @rule(name=st.sampled_from(sorted(QUESTIONS)))
    @noted
    def ask(self, name: str) -> None:
        self.now.finish([self.now.ask(QUESTIONS[name](self.now))])

    @within()
    @rule(name=st.sampled_from(sorted(QUESTIONS)))
    @noted
    def start_to_ask(self, name: str) -> None:
        self.now.ask(QUESTIONS[name](self.now))

    @within()
    @rule(name=st.sampled_from(sorted(QUESTIONS)), timeout=st.sampled_from([0.0, 0.001, 0.02]))
    @noted
    def ask_with_little_patience(self, name: str, timeout: float) -> None:
        self.driver.settle([self.now.ask(QUESTIONS[name](self.now), timeout)])

    @within()
    @rule(name=st.sampled_from(sorted(ORDERS)))
    @noted
    def order(self, name: str) -> None:
        self.now.finish([self.now.ask(ORDERS[name](self.now))])

    @within()
    @rule(name=st.sampled_from(sorted(ORDERS)))
    @noted
    def start_to_order(self, name: str) -> None:
        self.now.ask(ORDERS[name](self.now))

    @within()
    @rule(patient=st.booleans())
    @noted
    def let_it_run(self, patient: bool) -> None:
        """End every pause."""
        waits = [self.now.ask(ORDERS[name](self.now)) for name in ("wake up", "resume")]
        if patient:
            self.now.finish(waits)

    # ---- the engine's processes ----

    @old("well", "halted")
    @rule(rank=RANKS, rules=RULES_LATER)
    @noted
    def kill(self, rank: int, rules: int) -> None:
        self.now.kill(rank % self.now.size)
        self.patience = rules

    @within("well")
    @rule(rank=RANKS, rules=RULES_LATER)
    @noted
    def stop(self, rank: int, rules: int) -> None:
        """And let it go on later, long before anybody has to wait for it for too long."""
        self.now.halt(rank % self.now.size)
        self.patience = rules

    # ---- the end ----

    @old()
    @rule(
        where=st.sampled_from(["here", "without a loop", "thread", "at once"]),
        timeout=st.sampled_from([None, None, 0.0, 0.3]),
        drain=st.booleans(),
    )
    @noted
    def shut_down(self, where: str, timeout: float | None, drain: bool) -> None:
        if self.now.state == "halted" and timeout is None:
            timeout = 0.3  # a rank that is stopped does not hear of it
        self.now.shut(where, timeout, drain=drain)

    @old()
    @rule(stopped=st.sampled_from([False] * 4 + [True]))
    @noted
    def drop_the_last_reference(self, stopped: bool) -> None:
        if not stopped:
            self.now.go_on()  # or it takes seconds until a stopped rank is given up
        self.forget()

    # ---- what a rule needs ----

    def read_all(self, promises: list[Promise]) -> None:
        while any(promise.open for promise in promises):
            self.now.read_on()

    def promise(self, prompt: int, count: int, kind: str, name: str | None = None) -> tuple[Promise, Any]:
        """A request and the memory that it comes in, if it comes as embeddings."""
        if name is None:
            name = f"request {self.names}"
            self.names += 1
        rows = embedded(prompt) if kind == "embeds" else None
        return Promise.of(name, prompt, count, 2 if kind == "logprobs" else None, rows), rows


class LoopMachine(Machine):
    """The asyncio client, of which every call can also be cancelled, and its receiver."""

    kind = LoopDriver
    driver: LoopDriver

    @within()
    @rule(turns=TURNS)
    @noted
    def turn(self, turns: int) -> None:
        """The loop turns a few times, and all that waits gets on a little."""
        self.driver.turn(turns)

    @within()
    @rule(first=st.booleans(), turns=TURNS)
    @noted
    def cancel_a_read(self, first: bool, turns: int) -> None:
        """Before its first step or while it waits; the `first` that waits, or the last."""
        wait = self.now.read()
        self.driver.turn(turns)
        (self.now.reads[0] if first else wait).cancel()
        self.driver.settle([self.now.reads[0] if first else wait])

    @within("well")
    @rule(turns=st.integers(1, 4))
    @noted
    def cancel_the_read_of_a_last_batch(self, turns: int) -> None:
        """It is perhaps woken already, and cancelled before it goes on: then somebody else must have the batch."""
        self.read_all(self.now.promises.owed)
        self.now.finish([self.now.add(*self.promise(1, 1, "ids"))])
        while len(self.now.reads) < 2:
            self.now.read()
        self.driver.turn(1)
        wait = self.now.reads[0]
        self.driver.turn_when_something_comes(turns)
        wait.cancel()
        self.driver.settle([wait])
        self.now.collect()
        self.read_all(self.now.promises.owed)

    @within()
    @rule(name=st.sampled_from(sorted(QUESTIONS)), turns=TURNS)
    @noted
    def cancel_a_question(self, name: str, turns: int) -> None:
        question = QUESTIONS[name](self.now)
        if turns == 0:
            self.now.cancelled_before_it_began(self.driver.call(question.method, question.args))
            return
        wait = self.now.ask(question)
        self.driver.turn(turns - 1)
        wait.cancel()
        self.driver.settle([wait])

    @within()
    @rule(prompt=st.integers(0, len(PROMPTS) - 1), turns=TURNS)
    @noted
    def cancel_an_add(self, prompt: int, turns: int) -> None:
        """Once it has begun the request is under way all the same."""
        promise, rows = self.promise(prompt, 5, "embeds")
        if turns == 0:
            self.now.cancelled_before_it_began(self.driver.add(promise.request))
            return
        wait = self.now.add(promise, rows)
        self.driver.turn(turns - 1)
        wait.cancel()
        self.driver.settle([wait])

    @old("well", "halted")
    @rule(turns=TURNS, rules=RULES_LATER)
    @noted
    def cancel_the_receiver(self, turns: int, rules: int) -> None:
        """Also before its first step, if the client has not been used yet."""
        self.now.cancel_receiver(self.driver, turns)
        self.patience = rules

    @old()
    @rule(collected=st.booleans())
    @noted
    def close_the_loop(self, collected: bool) -> None:
        """Then the client is shut down all the same, or forgotten."""
        self.now.outlive_loop(self.driver, collected)
        self.life = None


class ThreadMachine(Machine):
    """The client for plain calls, of which none can be cancelled."""

    kind = ThreadDriver


class Late(Machine):
    """Begins with an engine of which a rank is stopped while the others wait for it, until it is too late."""

    @initialize(
        size=st.integers(1, 2),
        rank=RANKS,
        inside=st.booleans(),
        for_good=st.sampled_from([False, False, True]),
        rules=RULES_LATER,
    )
    @noted
    def start_and_stop_a_rank(self, size: int, rank: int, inside: bool, for_good: bool, rules: int) -> None:
        """It stays stopped, or goes on when it is too late."""
        self.begin(lambda: Life(self.driver, shape(size, "pushpull", HASTY, stats=False), inside=inside), 0)
        self.now.add(*self.promise(0, 450, "ids"))
        self.now.read_on()
        self.now.halt(rank % size)
        self.now.expect_deadline(for_good)
        self.patience = rules


class LateLoopMachine(Late, LoopMachine):
    """With the asyncio client."""


class LateThreadMachine(Late, ThreadMachine):
    """With the client for plain calls."""
