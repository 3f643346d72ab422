"""Scheduling: every request ends once, nobody starves, memory never runs out, all ranks decide alike.

The model is :class:`tests.engine.inline.PageModel`, whose tokens come out wrong as soon as two requests share a page.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.messages import ErrorKind, FinishReason, Request, RequestOutput, SamplingParams
from tests.engine.inline import Inline, PageModel, page_tokens

IDS = [f"r{number}" for number in range(6)]


def request(name: str, prompt: int, count: int, stop: list[int] | None = None) -> Request:
    """A prompt of that many tokens, different for every name."""
    first = IDS.index(name) * 40 if name in IDS else 300
    return Request(name, list(range(first, first + prompt)), SamplingParams(count, stop_token_ids=stop or []))


class Serving(RuleBasedStateMachine):
    """Two cores that are fed alike, with a plain record of what must come out."""

    @initialize(
        page_size=st.integers(1, 5),
        num_pages=st.integers(1, 16),
        max_num_seqs=st.integers(1, 4),
        max_batched_tokens=st.integers(1, 12),
        max_waiting=st.integers(1, 3),
    )
    def start(self, **changes: int) -> None:
        self.room = changes["page_size"] * changes["num_pages"]
        self.one, self.other = (Inline(PageModel(), **changes) for _ in range(2))
        self.live: dict[str, Request] = {}
        self.got: dict[str, list[int]] = {}
        self.script: list[Request | list[str]] = []

    @rule(name=st.sampled_from(IDS), prompt=st.integers(0, 14), count=st.integers(0, 8), stop=st.integers(0, 383))
    def add(self, name: str, prompt: int, count: int, stop: int) -> None:
        wanted = request(name, prompt, count, [stop])
        for inline in (self.one, self.other):
            inline.add(wanted)
        self.script.append(wanted)

    @rule(names=st.lists(st.sampled_from([*IDS, "nobody"]), max_size=3))
    def abort(self, names: list[str]) -> None:
        for inline in (self.one, self.other):
            inline.abort(*names)
        self.script.append(names)

    @rule(late=st.frozensets(st.sampled_from(IDS), max_size=2))
    def step(self, late: frozenset[str]) -> None:
        started = {name: self.live[name] for name in self.got if self.got[name]}
        outputs = self.one.step(lambda: frozenset((0, name) for name in late))
        # Rank k hears nothing of late aborts.
        self.other.step()
        script, self.script = self.script, []
        rest = self._take_in(script, outputs)
        told = [output.request_id for output in rest]
        assert len(told) == len(set(told))
        # The same request, and not another of its name that came after its abort.
        still = [name for name, wanted in started.items() if self.live.get(name) is wanted]
        assert [name for name in still if name not in told] == [], "a running request starved"
        for output in rest:
            self._token(output, late)

    def _take_in(self, script: list[Request | list[str]], outputs: list[RequestOutput]) -> list[RequestOutput]:
        """Check what the messages brought, and return what the model's part of the step brought."""
        outputs = list(outputs)
        for message in script:
            if isinstance(message, list):
                for name in message:
                    if self.live.pop(name, None) is not None:
                        assert outputs.pop(0) == RequestOutput(name, [], FinishReason.ABORT)
                        del self.got[name]
            elif self._never(message) or (outputs and self._refused_as_busy(message, outputs[0])):
                refusal = outputs.pop(0)
                assert (refusal.request_id, refusal.finish_reason) == (message.request_id, FinishReason.ERROR)
                assert refusal.error
                wanted = ErrorKind.INVALID if self._never(message) else ErrorKind.BUSY
                assert refusal.error_kind == wanted
            else:
                self.live[message.request_id], self.got[message.request_id] = message, []
        return outputs

    def _never(self, message: Request) -> bool:
        prompt, count = len(message.prompt_ids), message.params.max_tokens
        return message.request_id in self.live or not prompt or not count or prompt + count > self.room

    def _refused_as_busy(self, message: Request, output: RequestOutput) -> bool:
        busy = output.request_id == message.request_id and output.error_kind is ErrorKind.BUSY
        if busy:
            assert len(self.live) > self.one.config.max_waiting, "refused although there was room to wait"
        return busy

    def _token(self, output: RequestOutput, late: frozenset[str]) -> None:
        name = output.request_id
        wanted, got = self.live[name], self.got[name]
        expected = page_tokens(wanted.prompt_ids, len(got) + 1)
        stops = expected[-1] in wanted.params.stop_token_ids
        reason = (
            FinishReason.STOP if stops else FinishReason.LENGTH if len(expected) == wanted.params.max_tokens else None
        )
        if reason is not None and name in late:
            assert output == RequestOutput(name, [], FinishReason.ABORT)
        else:
            assert (output.token_ids, output.finish_reason) == (expected[-1:], reason)
        if not got:
            # First come, first served: whoever came before has had its first token by now.
            before = list(self.live)[: list(self.live).index(name)]
            assert all(self.got[other] for other in before), "a later request overtook an earlier one"
        got.append(expected[-1])
        if reason is not None:
            del self.live[name], self.got[name]

    @invariant()
    def pages_add_up_and_ranks_agree(self) -> None:
        if hasattr(self, "one"):
            for inline in (self.one, self.other):
                inline.core.scheduler.check_pages()
            assert self.one.core.digest == self.other.core.digest
            scheduler = self.one.core.scheduler
            assert scheduler.running <= self.one.config.max_num_seqs
            assert scheduler.waiting <= self.one.config.max_waiting
            if not self.script:
                assert scheduler.running + scheduler.waiting == len(self.live)
                assert self.one.core.has_work() == bool(self.live)

    @precondition(lambda self: hasattr(self, "one"))
    @rule()
    def run_dry(self) -> None:
        """Each step computes at least one token, so the work that is left bounds the steps."""
        self.step(frozenset())
        left = sum(len(one.prompt_ids) + one.params.max_tokens for one in self.live.values())
        while self.live:
            assert left > 0, "steps without progress"
            left -= 1
            self.step(frozenset())
        assert not self.one.core.has_work()
        assert self.one.core.scheduler.pages.free == self.one.config.num_pages

    def teardown(self) -> None:
        if hasattr(self, "one"):
            self.run_dry()


# Enough time to make a failing example small, which Hypothesis does for up to five minutes.
TestServing = pytest.mark.timeout(400)(Serving.TestCase)
TestServing.settings = settings(stateful_step_count=30)


def served(**changes: int) -> Inline:
    return Inline(PageModel(), **changes)


def batch_sizes(inline: Inline) -> list[int]:
    """Runs dry; how many tokens each step computed."""
    whole, sizes = inline.core.scheduler.batch, []

    def batch() -> object:
        chunks = whole()
        sizes.append(sum(chunk.count for chunk in chunks))
        return chunks

    inline.core.scheduler.batch = batch  # type: ignore[assignment, method-assign]
    inline.drain()
    return sizes


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes() -> None:
    inline = served(max_batched_tokens=8)
    inline.add(request("r0", 2, 6))
    inline.step()
    inline.add(request("r1", 20, 2))
    sizes = batch_sizes(inline)
    # One decode token and seven of the prompt, twice; the rest of the prompt; then both decode.
    assert sizes == [8, 8, 7, 2, 1]
    assert [len(output.token_ids) for output in inline.outputs["r0"]] == [1] * 6
    assert inline.tokens("r1") == page_tokens(request("r1", 20, 2).prompt_ids, 2)


def test_there_are_never_more_seats_than_tokens_in_a_step() -> None:
    inline = served(max_batched_tokens=2, max_num_seqs=4)
    for name in IDS[:4]:
        inline.add(request(name, 1, 4))
    assert {output.request_id for output in inline.step()} == {"r0", "r1"}
    assert (inline.core.scheduler.running, inline.core.scheduler.waiting) == (2, 2)
    inline.drain()
    for name in IDS[:4]:
        assert inline.tokens(name) == page_tokens(request(name, 1, 4).prompt_ids, 4)


def test_a_request_starts_only_when_all_that_it_can_ever_need_is_free() -> None:
    inline = served(page_size=2, num_pages=8)
    inline.add(request("r0", 4, 6))  # five pages
    inline.add(request("r1", 4, 4))  # four: has to wait, although six pages are free now
    inline.add(request("r2", 1, 1))  # one: would fit, but does not overtake
    inline.step()
    assert (inline.core.scheduler.running, inline.core.scheduler.waiting) == (1, 2)
    inline.drain()
    assert [name for name in inline.outputs if inline.outputs[name][-1].finish_reason == FinishReason.LENGTH] == [
        "r0",
        "r1",
        "r2",
    ]


def test_more_than_may_wait_are_told_that_the_engine_is_busy() -> None:
    inline = served(max_num_seqs=1, max_waiting=2)
    for name in IDS[:4]:
        inline.add(request(name, 1, 2))
    inline.step()
    assert [output.error_kind for output in inline.outputs["r3"]] == [ErrorKind.BUSY]
    assert "2 requests are waiting" in (inline.outputs["r3"][0].error or "")
    inline.drain()
    inline.add(request("r3", 1, 2))
    inline.drain()
    assert inline.tokens("r3") == page_tokens(request("r3", 1, 2).prompt_ids, 2)


@pytest.mark.parametrize("steps", range(8))
def test_an_abort_at_any_moment_frees_everything_and_its_id_can_be_used_at_once(steps: int) -> None:
    inline = served(max_batched_tokens=4, page_size=2, num_pages=16)
    inline.add(request("r0", 14, 3))  # four steps of prefill, two of decode
    inline.add(request("r1", 2, 3))  # waits for budget behind it
    for _ in range(steps):
        inline.step()
    ended = {name for name in inline.outputs if inline.outputs[name][-1].finish_reason is not None}
    inline.abort("r0", "r0", "nobody", "r1")
    inline.abort("r0")
    inline.outputs.clear()
    inline.add(request("r0", 5, 4))
    inline.step()
    aborted = [name for name in inline.outputs if inline.outputs[name][0].finish_reason == FinishReason.ABORT]
    assert aborted == [name for name in ("r0", "r1") if name not in ended]
    inline.drain()
    assert inline.tokens("r0") == page_tokens(request("r0", 5, 4).prompt_ids, 4)
    assert inline.core.scheduler.pages.free == 16


def test_a_step_without_messages_and_work_does_nothing() -> None:
    inline = served()
    assert inline.step() == []
    assert not inline.core.has_work()
    inline.abort("nobody")
    assert inline.step() == []


def digest_after(*requests: Request, epoch: int = 1, aborts: tuple[str, ...] = (), **changes: int) -> int:
    inline = Inline(PageModel(), epoch, **changes)
    for one in requests:
        inline.add(one)
    inline.step()
    inline.abort(*aborts)
    inline.drain()
    return inline.core.digest


def test_the_digest_tells_apart_what_differs_in_any_decision() -> None:
    first, second = request("r0", 3, 4), request("r1", 3, 4)
    hot = Request("r0", first.prompt_ids, SamplingParams(4, temperature=50.0))
    histories = {
        "plain": digest_after(first, second),
        "order": digest_after(second, first),
        "name": digest_after(first, Request("other", second.prompt_ids, second.params)),
        "prompt": digest_after(first, Request("r1", [9, 9, 9], second.params)),
        "chunks": digest_after(first, second, max_batched_tokens=2),
        "pages": digest_after(first, second, page_size=2),
        "abort": digest_after(first, second, aborts=("r1",)),
        "refusal": digest_after(first, second, request("r2", 0, 1)),
        "drawn": digest_after(hot, second),
        "drawn in another run": digest_after(hot, second, epoch=2),
    }
    assert len(set(histories.values())) == len(histories)
    assert histories["plain"] == digest_after(first, second)
    assert all(0 <= value < 2**64 for value in histories.values())
