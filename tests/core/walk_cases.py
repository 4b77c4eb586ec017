"""The cases of the random walk, and the truth it is judged by: each sequence alone in a large cache."""

from __future__ import annotations

from typing import NamedTuple

from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.ipc.vocabulary import Vocabulary
from octavo_engine.sampling.settings import SamplingSettings
from octavo_engine.worker.backends.scripted import ScriptedExecutable, build_scripted
from octavo_engine.worker.backends.scripted_uri import EOS_TOKEN, MIN_VOCABULARY
from octavo_engine.worker.grammar import Grammar
from octavo_engine.worker.grammar_compiler import GrammarCompiler
from octavo_engine.worker.runner import Runner

BLOCK = 4
MAX_LEN = 64
SLOTS = 6
BUDGET = 24
WINDOW = 10
NAN_TOKEN, RAISE_TOKEN = 1, 2
MODEL = f"scripted://?block_size={BLOCK}&max_len={MAX_LEN}&eos=0.03&nan={NAN_TOKEN}&raise={RAISE_TOKEN}"


GRAMMARS = tuple(
    f'{{"grammars": [{{"lark_grammar": "%llguidance {{\\"no_forcing\\": true}}\\nstart: /{regex}/"}}]}}'
    for regex in ("[a-z ]{3,9}", "([a-m]|[n-z ][n-z ]?){2,12}[.!?]", "e{0,40}", "(the|of|a) [etaoin]+")
)


class Case(NamedTuple):
    """One way to run the engine."""

    policy: str = "continuous"
    depth: int = 1
    drafts: bool = False
    allocation: str = "paged"
    sharing: bool = True
    window: bool = False
    places: int = 0
    """Of the host tier."""


CASES = (
    *(
        Case(depth=depth, drafts=drafts, allocation=allocation, window=window)
        for depth in (1, 2)
        for drafts in (False, True)
        for allocation in ("paged", "contiguous")
        for window in (False, True)
    ),
    *(Case(depth=depth, drafts=depth == 1, sharing=False) for depth in (1, 2)),
    *(
        Case(policy="static", depth=depth, allocation=allocation, window=window)
        for depth in (1, 2)
        for allocation in ("paged", "contiguous")
        for window in (False, True)
    ),
    *(
        Case(policy, depth, drafts=policy == "continuous" and depth == 1, window=window, places=places)
        for policy, places in (("continuous", 9), ("continuous", 60), ("static", 9))
        for depth in (1, 2)
        for window in (False, True)
    ),
)


class Ending(NamedTuple):
    """What a sequence wrote, and how it ended."""

    tokens: tuple[int, ...]
    finish: str
    stop_reason: int
    prompt_logprobs: bytes = b""
    logprobs: bytes = b""
    pooled: bytes = b""


def build_model(case: Case, num_blocks: int) -> ScriptedExecutable:
    model = build_scripted(MODEL + (f"&window={WINDOW}" if case.window else ""))
    model.layout.allocate([num_blocks] * len(model.layout.groups))
    return model


def make_config(case: Case, model: ScriptedExecutable, num_blocks: int, **changes: object) -> SchedulerConfig:
    values = {
        "groups": tuple(CacheGroup(num_blocks, group.window, case.places) for group in model.layout.groups),
        "max_model_len": MAX_LEN,
        "block_size": BLOCK,
        "max_num_seqs": SLOTS,
        "max_num_batched_tokens": BUDGET,
        "eos_token_ids": model.eos_token_ids,
        "policy": case.policy,
        "kv_allocation": case.allocation,
        "prefix_sharing": case.sharing,
        "max_plans_in_flight": case.depth,
        "max_drafts": 4,
        "watermark": 0.1,
    }
    return SchedulerConfig(**(values | changes))  # type: ignore[arg-type]


def make_compiler() -> GrammarCompiler:
    tokens = [bytes([byte]) for byte in range(256)] + [b""] * (MIN_VOCABULARY - 256)
    special = tuple(range(256, MIN_VOCABULARY))
    return GrammarCompiler(lambda: Vocabulary(tokens, special), MIN_VOCABULARY, (EOS_TOKEN,))


class Alone:
    """The truth: each sequence run by itself in a large cache, one plan at a time, nothing shared."""

    def __init__(self, case: Case) -> None:
        model = build_model(case, 4 * MAX_LEN // BLOCK)
        plain = case._replace(policy="continuous", depth=1, drafts=False, allocation="paged", sharing=False, places=0)
        self.scheduler = Scheduler(make_config(plain, model, 4 * MAX_LEN // BLOCK, max_num_batched_tokens=MAX_LEN))
        self.runner = Runner(model, max_num_seqs=SLOTS, max_model_len=MAX_LEN)
        self._next = 0

    def run(self, request: Request, settings: SamplingSettings, grammar: Grammar | None) -> Ending:
        """Return what `request`'s one choice writes."""
        self._next += 1
        self.runner.register(self._next, settings, grammar)
        assert self.scheduler.submit(request._replace(sequences=(self._next,), blocked=None)) is None
        tokens: list[int] = []
        scores, logprobs = b"", b""
        while (plan := self.scheduler.schedule()) is not None:
            for event in self.scheduler.commit(plan, self.runner.execute(plan)):
                tokens += event.tokens
                scores += event.prompt_logprobs
                logprobs += event.logprobs
                if event.finish:
                    self.runner.forget(self._next)
                    return Ending(tuple(tokens), event.finish, event.stop_reason, scores, logprobs, event.pooled)
        raise AssertionError("the sequence did not end")
