"""The engine loop on a thread, its pipes queues of this process, and a client that keeps what it was told."""

import queue
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

import numpy as np

from octavo_engine.core.config import CacheGroup, SchedulerConfig
from octavo_engine.core.scheduler import create_scheduler
from octavo_engine.ipc.messages import (
    Abort,
    AdapterFailed,
    AdapterLoaded,
    AdapterUnloaded,
    LoadAdapter,
    Refused,
    SamplingParams,
    Shutdown,
    Snapshot,
    Step,
    StopRule,
    Submit,
    UnloadAdapter,
)
from octavo_engine.ipc.scores import read_scores
from octavo_engine.worker.executor import make_executor
from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.host_store import GpuHostStore
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_engine.worker.grammar import GrammarRows
from octavo_engine.worker.grammar_compiler import GrammarCompiler
from octavo_engine.worker.host_store import HostStore
from octavo_engine.worker.loop import EngineLoop
from octavo_engine.worker.queued_executor import QueuedExecutor
from octavo_engine.worker.runner import Runner

EOS = (256,)


def snapshot(**fields):
    """A snapshot of an engine in which nothing happens, but for `fields`."""
    counts = ("received", "blocks_active", "blocks_cached", "blocks_free", "running", "waiting", "waiting_tokens")
    totals = ("prefix_hit_tokens", "prefix_miss_tokens", "preemptions", "recomputed_tokens")
    return Snapshot(**(dict.fromkeys((*counts, *totals), 0) | {"time": 0.0, "oldest_wait_seconds": 0.0} | fields))


class Pipes:
    """An endpoint of queues. Counts how often the loop asked for messages."""

    def __init__(self):
        self.down, self.up, self.polls = queue.Queue(), queue.Queue(), 0

    def poll(self, timeout_seconds):
        self.polls += 1
        messages = []
        try:
            if timeout_seconds > 0:
                messages.append(self.down.get(timeout=timeout_seconds))
            while True:
                messages.append(self.down.get_nowait())
        except queue.Empty:
            return [message for message in messages if message is not None]

    def wake(self):
        self.down.put(None)

    def send(self, message):
        self.up.put(message)


class Client:
    """The API process's side: what was said about each choice, and the last snapshot."""

    def __init__(self, pipes):
        self.pipes, self.tokens, self.finish, self.detail, self.started, self.refused = pipes, {}, {}, {}, {}, {}
        self.snapshot, self.steps, self.prompt_logprobs, self.logprobs, self.pooled = None, 0, {}, {}, {}
        self.adapters, self.patience = [], 20

    def submit(
        self,
        request,
        prompt,
        *,
        max_tokens=10,
        n=1,
        min_tokens=0,
        stop_token_ids=(),
        prompt_logprobs=-1,
        adapter=-1,
        **sampling,
    ):
        self.pipes.down.put(
            Submit(
                request,
                np.array(prompt, dtype="<i4").tobytes(),
                SamplingParams(**({"seed": 3, "temperature": 0.0} | sampling)),
                StopRule(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop_token_ids),
                n=n,
                prompt_logprobs=prompt_logprobs,
                adapter=adapter,
            )
        )

    def load(self, slot, folder):
        """Load an adapter, and return what was said of it."""
        self.pipes.down.put(LoadAdapter(slot, str(folder)))
        return self.wait_adapter(slot)

    def unload(self, slot):
        self.pipes.down.put(UnloadAdapter(slot))

    def wait_adapter(self, slot):
        self.until(lambda: any(message.slot == slot for message in self.adapters))
        message = next(message for message in self.adapters if message.slot == slot)
        self.adapters.remove(message)
        return message

    def embed(self, request, prompt):
        """Ask for the prompt's embedding."""
        data = np.array(prompt, dtype="<i4").tobytes()
        self.pipes.down.put(Submit(request, data, SamplingParams(seed=0), StopRule(max_tokens=0), pooled=True))

    def abort(self, request, choice=-1):
        self.pipes.down.put(Abort(request, choice))

    def receive(self):
        message = self.pipes.up.get(timeout=20)
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Refused):
            self.refused[message.request] = message
            return
        if isinstance(message, AdapterLoaded | AdapterFailed | AdapterUnloaded):
            self.adapters.append(message)
            return
        assert isinstance(message, Step)
        self.snapshot = message.snapshot
        self.steps += 1
        for out in message.outputs:
            key = (out.request, out.choice)
            assert key not in self.finish
            self.tokens.setdefault(key, []).extend(out.tokens)
            told = [score.logprob for score in read_scores(out.prompt_logprobs, 0)]
            self.prompt_logprobs.setdefault(key, []).extend(told)
            self.logprobs[key] = self.logprobs.get(key, b"") + out.logprobs
            self.started[key] = self.started.get(key, 0) + out.started
            if out.finish:
                self.finish[key], self.detail[key], self.pooled[key] = out.finish, out.detail, out.pooled

    def until(self, done):
        deadline = time.monotonic() + self.patience
        while not done():
            assert time.monotonic() < deadline
            self.receive()

    def wait_finished(self, *keys):
        self.until(lambda: all(key in self.finish for key in keys))


def make_runner(executable, config, places):
    """The runner and the executor that fit an executable, of whichever engine."""
    host = any(places)
    if isinstance(executable, GpuModel):
        sizes = RunnerSizes(config.max_num_seqs, config.max_model_len, config.max_num_batched_tokens)
        store = GpuHostStore(executable.layout, places) if host else None
        gpu = GpuRunner(executable, sizes, grammars=GrammarRows(executable.vocab_size, 1), host=store)
        return gpu, QueuedExecutor(gpu)
    store = HostStore(executable.layout, places) if host else None
    runner = Runner(executable, max_num_seqs=config.max_num_seqs, max_model_len=config.max_model_len, host=store)
    return runner, make_executor(runner, config.max_plans_in_flight)


@contextmanager
def engine(executable, num_blocks, *, depth=1, drafts=None, tokens=None, places=0, **sizes):
    """`tokens`: a function that gives the model's Vocabulary, for requests with a grammar. `places`: of a host tier."""
    executable.layout.allocate([num_blocks] * len(executable.layout.groups))
    sizes = {"max_model_len": 256, "max_num_seqs": 8, "max_num_batched_tokens": 64} | sizes
    groups = tuple(CacheGroup(num_blocks, group.window, places) for group in executable.layout.groups)
    config = SchedulerConfig(groups=groups, eos_token_ids=EOS, max_plans_in_flight=depth, **sizes)
    scheduler, pipes = create_scheduler(config, drafts), Pipes()
    runner, executor = make_runner(executable, config, [places] * len(groups))
    compiler = tokens and GrammarCompiler(tokens, executable.vocab_size, EOS)
    vocab_size = executable.vocab_size
    loop = EngineLoop(
        pipes,
        scheduler,
        executor,
        vocab_size=vocab_size,
        eos_token_ids=EOS,
        depth=depth,
        compiler=compiler,
        open_adapter=executable.open_adapter,
    )

    thread = ThreadPoolExecutor(1)
    running = thread.submit(loop.run)
    # What ends the loop reaches a client that waits for an answer.
    running.add_done_callback(lambda ended: pipes.up.put(ended.exception()))
    client = Client(pipes)
    client.scheduler, client.runner, client.loop = scheduler, runner, loop
    try:
        yield client
    finally:
        pipes.down.put(Shutdown())
        wait([running], timeout=20)
        thread.shutdown(wait=False)
        executor.close()
    while not pipes.up.empty():
        assert not isinstance(pipes.up.get_nowait(), Exception)
