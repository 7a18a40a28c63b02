"""How training scales over the GPUs of a host, each rank with its own loader.

    torchrun --nproc-per-node 2 -m fastfeed_bench.ranks SHARDS... [--network resnet50] [--steps 200]

Each rank trains its replica under DDP; the first one prints one JSON object: images a second of all
ranks together, of each, what each would train from a batch that is there already, the waits, the
cores that workers run on, and memory that ranks hold on GPUs which are not theirs (there should be
none).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import fastfeed as ff
from fastfeed_bench.networks import NETWORKS
from fastfeed_bench.train import MEAN, STD

_LEAD, _MADE_UP = 60, 40


def main() -> None:
    """Train on this rank, and gather what all ranks saw."""
    parser = argparse.ArgumentParser(description="training over several GPUs")
    parser.add_argument("shards", nargs="+")
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet50")
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        found = _train(options.shards, options.network, options.steps)
        everything: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everything, found)
        if dist.get_rank() == 0:
            total = sum(one["rate"] for one in everything)
            print(json.dumps({"ranks": len(everything), "img_s": round(total), "each": everything}))
    finally:
        dist.destroy_process_group()


def _train(shards: list[str], name: str, steps: int) -> dict[str, Any]:
    """Return the rate of this rank and what belongs to it."""
    import torchvision

    network = NETWORKS[name]
    ranks, device = dist.get_world_size(), torch.device("cuda", torch.cuda.current_device())
    torch.backends.cudnn.benchmark = True
    module = getattr(torchvision.models, name)()
    module = module.to(device, torch.bfloat16, memory_format=torch.channels_last)
    model: Any = torch.compile(torch.nn.parallel.DistributedDataParallel(module))
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()
    once = ff.ShardDataset(shards, {"label": ff.Int("cls")})
    repeats = -(-network.batch * ranks * (_LEAD + steps + 60) // len(once))
    fields: dict[str, Any] = {
        "image": ff.Image(
            "jpg",
            ff.RandomResizedCrop(224),
            ff.HorizontalFlip(),
            ff.Normalize(MEAN, STD, dtype="bfloat16"),
        ),
        "label": ff.Int("cls"),
    }
    loader: Any = ff.DataLoader(
        ff.ShardDataset(shards * repeats, fields),
        batch_size=network.batch,
        shuffle=True,
        num_workers=ff.AUTO,
        device="cuda",
        drop_last=True,
    )

    def train(batch: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(batch["image"]).float(), batch["label"])
        loss.backward()
        optimizer.step()

    waits: list[float] = []
    batches = iter(loader)
    started = 0.0
    for step in range(_LEAD + steps):
        if step == _LEAD:
            torch.cuda.synchronize()
            started = time.perf_counter()
        asked = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - asked)
        train(batch)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    del batches  # the workers are to rest
    began = time.perf_counter()
    for _ in range(_MADE_UP):
        train(batch)
    torch.cuda.synchronize()
    made_up = time.perf_counter() - began
    placement = loader.device_path(None).placement()
    return {
        "rate": steps * network.batch / seconds,
        "synthetic": _MADE_UP * network.batch / made_up,
        "wait_p50_ms": float(np.percentile(waits[_LEAD:], 50)) * 1e3,
        "wait_p99_ms": float(np.percentile(waits[_LEAD:], 99)) * 1e3,
        "workers": int(loader.num_workers),
        "cores": [] if placement is None else list(placement.cores),
        "elsewhere": _elsewhere(device.index or 0),
        "device": loader.report(),
    }


def _elsewhere(own: int) -> list[int]:
    """Return the GPUs beside its own on which this process has a context."""
    import pynvml

    pynvml.nvmlInit()
    found = []
    for other in range(torch.cuda.device_count()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(other)
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if other != own and any(one.pid == os.getpid() for one in processes):
            found.append(other)
    return found


if __name__ == "__main__":
    main()
