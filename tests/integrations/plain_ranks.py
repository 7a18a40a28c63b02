"""Run by torchrun: a model under DistributedDataParallel, and what each of two ranks was given."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from ranks_common import Numbers, numbers_of, shards
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

import fastfeed as ff


def train(loader, model, *, epochs):
    """Return the batches of some epochs; every step waits for the other rank."""
    seen = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        batches = []
        for batch in loader:
            numbers = numbers_of(batch)
            model(torch.tensor(numbers, dtype=torch.float32).view(-1, 1)).sum().backward()
            batches.append(numbers)
        seen.append(batches)
    return seen


def main():
    """Write what this rank was given."""
    early = ff.DataLoader(shards(sys.argv[2]), batch_size=3, shuffle=True)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    found = {"shards before the group": train(early, model, epochs=2)}
    for workers in (0, 2):
        for count in (24, 21):
            data = Numbers(count)
            sampler = DistributedSampler(data, shuffle=True)
            loader = ff.DataLoader(data, batch_size=3, sampler=sampler, num_workers=workers)
            found[f"map {count} {workers}"] = train(loader, model, epochs=2)
        loader = ff.DataLoader(shards(sys.argv[2]), batch_size=5, shuffle=True, num_workers=workers)
        found[f"shards {workers}"] = train(loader, model, epochs=2)
    (Path(sys.argv[1]) / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


main()
