"""`python -m tests.worker.gpu.communicating RANK SIZE FOLDER`: one rank, which prints as JSON what it was told."""

import json
import sys
from pathlib import Path

import torch

from octavo_engine.worker.gpu.communicator import TorchCommunicator
from octavo_engine.worker.gpu.sharding import Shard, vocabulary_rows

LOGITS = torch.arange(70, dtype=torch.float32).reshape(2, 35)


def told(rank: int, size: int, folder: Path) -> dict[str, object]:
    shard = Shard(rank, size)
    link = TorchCommunicator(shard, torch.device("cpu"), folder)
    found: dict[str, object] = {"least": link.least(10 - rank), "before": link.calls}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        x = torch.full((3, 4), 2.0**rank, dtype=dtype)
        link.all_reduce(x)
        found[name] = x.unique().tolist()
    for vocab_size in (35, 5, 1):
        whole, out = LOGITS[:, :vocab_size], torch.full((2, vocab_size), -1.0)
        part = whole[:, vocabulary_rows(vocab_size, shard)]
        link.all_gather_columns(part, out)
        found[f"columns of {vocab_size}"] = bool((out == whole).all())
    tokens = torch.tensor([rank + 7, rank + 8])
    link.broadcast(tokens)
    found["tokens"] = tokens.tolist()
    found["calls"] = link.calls
    try:
        link.all_gather_columns(torch.zeros(2, 30), torch.zeros(2, 35))
    except ValueError as error:
        found["refused"] = str(error)
    link.close()
    return found


def ordered(rank: int, size: int, folder: Path) -> dict[str, object]:
    """Sums, added in the order of the ranks, of parts whose sum depends on that; in a large and in a small tensor."""
    link = TorchCommunicator(Shard(rank, size), torch.device("cpu"), folder, invariant=True)
    random = torch.Generator().manual_seed(rank)
    part = torch.randn(64, 48, generator=random) * 10.0**rank
    large, small = part.clone(), part[5:6].clone()
    link.all_reduce(large)
    link.all_reduce(small)
    link.close()
    parts = [torch.randn(64, 48, generator=torch.Generator().manual_seed(at)) * 10.0**at for at in range(size)]
    total = parts[0].clone()
    for each in parts[1:]:
        total += each
    return {"in order": bool((large == total).all()), "rows apart": bool((small == large[5:6]).all())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    plain, in_order = folder / "plain", folder / "ordered"
    for each in (plain, in_order):
        each.mkdir(exist_ok=True)
    print(json.dumps(told(rank, size, plain) | ordered(rank, size, in_order)))
