"""LoRA adapters on the GPU: banks that grow, and the CPU's tokens for adapters of any rank side by side."""

from __future__ import annotations

import pytest
import torch

from octavo_kernels.triton.configurations import Configurations, Entry
from octavo_kernels.triton.lora import LoraTuning
from octavo_kernels.triton.targets import INTERPRETER
from tests.model.adapters import write_adapter
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, cpu, gpu, prompt_of, tiny_folder
from tests.worker.gpu.building import build_gpu

QUERY, DOWN = ("q_proj",), ("down_proj", "o_proj")


@pytest.fixture
def folders(tmp_path):
    """By name, adapters of different ranks and modules."""
    made = {"small": {"rank": 4}, "large": {"rank": 20, "lora_alpha": 3}, "query": {"rank": 8, "modules": QUERY}}
    made["down"] = {"rank": 5, "modules": DOWN}
    return {
        name: write_adapter(tmp_path / name, tiny_folder(), seed=seed, **how)
        for seed, (name, how) in enumerate(made.items())
    }


def alone(folder, prompt, count=3):
    """What the CPU's runner writes with an adapter, or without one."""
    model = cpu()
    if folder is not None:
        model.set_adapter(0, model.open_adapter(folder))
    driver = Driver(model)
    live = driver.live(prompt, **SAMPLED)
    admitted = [driver.admission(live)]
    while len(live.text) < count:
        driver.step([(live, driver.row(live, adapter=-1 if folder is None else 0))], admitted=admitted)
        admitted = []
    if folder is not None:
        model.set_adapter(0, None)
    return live.text


def run(driver, adapters, count=3):
    """Sequences of the same prompt in one batch, each with its adapter's slot; their texts."""
    lives = [driver.live(prompt_of(1, 12), slot=i, first_block=8 * i, **SAMPLED) for i in range(len(adapters))]
    pairs = list(zip(lives, adapters, strict=True))
    admitted = [driver.admission(live) for live in lives]
    for _ in range(count):
        driver.step([(live, driver.row(live, adapter=adapter)) for live, adapter in pairs], admitted=admitted)
        admitted = []
    released = [live.slot for live in lives]
    driver.runner.execute(driver.plan(released=released))
    return [live.text for live in lives]


def test_adapters_of_different_ranks_in_one_batch_while_banks_grow(folders):
    model = build_gpu(tiny_folder())
    opened = {name: model.open_adapter(folder) for name, folder in folders.items()}
    texts = {name: alone(folder, prompt_of(1, 12)) for name, folder in (*folders.items(), ("", None))}
    assert len({tuple(text) for text in texts.values()}) == 5
    driver = Driver(model)
    runner = driver.runner
    assert run(driver, [-1], 1) == [texts[""][:1]]
    assert model.bank.layers[0].qkv is None, "without adapters there is no bank"
    runner.set_adapter(0, opened["query"])
    assert (model.bank.slots, model.bank.layers[0].down) == (1, None)
    rank = model.bank.layers[0].qkv.rank
    assert run(driver, [0, -1], 1) == [texts["query"][:1], texts[""][:1]]
    runner.set_adapter(5, opened["large"])
    runner.set_adapter(2, opened["down"])
    runner.set_adapter(3, opened["small"])
    assert {bank.slots for bank in model.bank.layers[0]} == {6}
    assert model.bank.layers[0].qkv.rank > rank
    assert run(driver, [5, 0, -1, 3, 2], 2) == [texts[name][:2] for name in ("large", "query", "", "small", "down")]
    # Others in the same places: fewer ranks, other modules.
    runner.set_adapter(5, None)
    runner.set_adapter(5, opened["query"])
    runner.set_adapter(0, None)
    runner.set_adapter(0, opened["down"])
    assert run(driver, [0, 5], 2) == [texts["down"][:2], texts["query"][:2]]


def test_a_step_in_flight_keeps_the_adapter_it_was_queued_with(folders):
    model = build_gpu(tiny_folder())
    driver = Driver(model)
    driver.runner.set_adapter(0, model.open_adapter(folders["small"]))
    live = driver.live(prompt_of(1, 12), **SAMPLED)
    plan = driver.plan([driver.row(live, adapter=0)], admitted=[driver.admission(live)])
    launched = driver.runner.launch(plan)
    driver.runner.set_adapter(0, None)
    driver.runner.set_adapter(1, model.open_adapter(folders["large"]))
    assert launched.result().rows[0].tokens == tuple(alone(folders["small"], prompt_of(1, 12), 1))


def test_padding_and_discarded_rows_beside_adapters_change_nothing(folders):
    model = build_gpu(tiny_folder())
    driver = Driver(model)
    driver.runner.set_adapter(0, model.open_adapter(folders["small"]))
    live = driver.live(prompt_of(1, 12), **SAMPLED)
    other = driver.live(prompt_of(2, 9), slot=1, first_block=8, **GREEDY)
    admitted = [driver.admission(live), driver.admission(other)]
    row = driver.row(other, padding=11)
    driver.step([(other, row), (live, driver.row(live, adapter=0))], admitted=admitted)
    again = row._replace(start=8, num_tokens=1, padding=0, discard=True, adapter=0)
    driver.step([(other, again), (live, driver.row(live, adapter=0))])
    assert live.text == alone(folders["small"], prompt_of(1, 12), 2)
    assert other.text == alone_greedy(prompt_of(2, 9))


def alone_greedy(prompt):
    driver = Driver(cpu())
    return driver.generate(driver.live(prompt, **GREEDY), 1)


def test_an_adapter_that_scales_by_nothing_changes_nothing(tmp_path):
    model = build_gpu(tiny_folder())
    folder = write_adapter(tmp_path / "zero", tiny_folder(), lora_alpha=0)
    driver = Driver(model)
    driver.runner.set_adapter(0, model.open_adapter(folder))
    assert run(driver, [0], 1) == [alone(None, prompt_of(1, 12), 1)]
    assert gpu().bank.slots == 0
    assert model.bank.layers[0].qkv.a.dtype == torch.float32


def test_banks_of_different_ranks_may_be_tuned_differently(folders):
    """The tokens of a step are grouped once for all of them."""
    model = build_gpu(tiny_folder())
    tunings = {16: LoraTuning(16, 64, 64, 16, 8, 4, 2), 32: LoraTuning(32, 64, 64, 32, 8, 4, 2)}
    entries = [Entry("lora", {"rank": rank, "rows": 16, "bytes": 4}, of) for rank, of in tunings.items()]
    model.products.configurations = Configurations(INTERPRETER, entries)
    driver = Driver(model)
    driver.runner.set_adapter(0, model.open_adapter(folders["large"]))
    ranks = {bank.rank for bank in model.bank.layers[0]}
    assert max(ranks) > 32 >= min(ranks)
    assert run(driver, [0], 2) == [alone(folders["large"], prompt_of(1, 12), 2)]


def test_an_adapter_without_room_is_refused_and_the_others_stay(folders, monkeypatch):
    model = build_gpu(tiny_folder())
    bank = model.bank
    bank.set(0, bank.open(folders["small"]))
    before = (bank.slots, list(bank.layers))

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("octavo_engine.worker.gpu.adapters.make_bank", full)
    with pytest.raises(MemoryError, match=r"^The GPU has no room for the adapter in .*unload others, or start with"):
        bank.set(5, bank.open(folders["large"]))
    assert (bank.slots, list(bank.layers)) == before
