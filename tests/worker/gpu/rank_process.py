"""`python -m tests.worker.gpu.rank_process`: a follower whose model is a sum over the ranks, and whose faults are asked
for by the plans themselves.
"""

import os
import signal
from pathlib import Path
from typing import NamedTuple

import torch

from octavo_engine.core.step import Admission, Row, StepPlan
from octavo_engine.ipc.signals import leave_to_parent
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.failures import ContractError, StepError
from octavo_engine.worker.gpu.communicator import TorchCommunicator
from octavo_engine.worker.gpu.sharding import Shard
from octavo_engine.worker.ranks.follower import follow
from octavo_engine.worker.ranks.process import read_config

FAIL_FIRST, FAIL_LATER, KILL, BREAK, FAIL_READING = range(5)
EVERY_RANK = -1
UNKNOWN_MODEL = "a model that nobody serves"


def plan(number: int, fault: int = -1, rank: int = EVERY_RANK) -> StepPlan:
    """A step, and the fault that a rank, or every rank, is to have in it."""
    admitted = () if fault < 0 else (Admission(0, number, (fault, rank), 2, ((0,),)),)
    return StepPlan(number, (), admitted, (), (), (Row(0, number, 0, 2, True),))


class Named(NamedTuple):
    digest: str


class Summing:
    """Each step sums 2 ** rank over the ranks, twice; what set_adapter named is added to it."""

    def __init__(self, rank: int, size: int, folder: Path) -> None:
        self.rank = rank
        self.link = TorchCommunicator(Shard(rank, size), torch.device("cpu"), folder)
        self.begun, self.adapters = None, {}

    def begin(self, begin):
        self.begun = begin

    def execute(self, plan):
        try:
            self.compute(plan)
        except StepError as error:
            return [error]
        return []

    def finish(self):
        return []

    def compute(self, plan):
        fault, rank = plan.admitted[0].tokens if plan.admitted else (-1, 0)
        asked = fault if rank in (self.rank, EVERY_RANK) else -1
        try:
            total = self._sum(asked)
        except ContractError:
            raise
        except Exception as error:
            raise StepError(plan, error, self.link.calls) from error
        if asked == FAIL_READING:
            raise StepError(plan, ValueError("not read"), calls=None)
        return total

    def probe(self):
        self._sum(-1)

    def _sum(self, fault):
        if fault == FAIL_FIRST:
            raise ValueError("first")
        total = torch.tensor([2.0**self.rank, sum(len(adapter.digest) for adapter in self.adapters.values())])
        self.link.all_reduce(total)
        if fault == FAIL_LATER:
            raise ValueError("later")
        if fault == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == BREAK:
            raise ContractError("Slot 0 is somebody else's.")
        self.link.all_reduce(total)
        return tuple(total.int().tolist())

    def open_adapter(self, folder):
        only = folder / f"rank-{self.rank}"
        if only.exists():
            raise UnsupportedModelError(only.read_text())
        return Named((folder / "digest").read_text())

    def set_adapter(self, slot, adapter):
        self.adapters[slot] = adapter
        if adapter is None:
            del self.adapters[slot]


def load(config):
    if config.engine.model == UNKNOWN_MODEL:
        raise UnsupportedModelError("Nobody serves this model; use another.")
    return Summing(config.rank, config.size, Path(config.engine.socket_folder))


if __name__ == "__main__":
    leave_to_parent()
    torch.set_num_threads(1)
    from octavo_engine.worker.process import exit_now

    exit_now(follow(read_config(), load))
