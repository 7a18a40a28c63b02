"""A whole training step as one CUDA graph, fed by a loader whose batches are always in one place.

    python examples/cuda_graph.py [SHARDS...]

Without shards the data is made up. The network is small on purpose: launching its many little
kernels one by one costs more than running them, which is what a graph takes away.
"""

from __future__ import annotations

import sys
import time

import torch

import fastfeed as ff

BATCH, CLASSES = 64, 10


class MadeUp(torch.utils.data.Dataset):
    """Pictures of noise, each with a class."""

    def __len__(self) -> int:
        return 16_384

    def __getitem__(self, index: int) -> dict[str, object]:
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=generator)
        return {"image": image, "label": index % CLASSES}


def make_dataset(shards: list[str]) -> torch.utils.data.Dataset:
    """Return the data set of some shards, or a made-up one."""
    if not shards:
        return MadeUp()
    image = ff.Image("jpg", ff.RandomResizedCrop(32), ff.HorizontalFlip())
    return ff.ShardDataset(shards, {"image": image, "label": ff.Int("cls")})


def make_network() -> torch.nn.Module:
    """Return twenty small layers."""
    layers: list[torch.nn.Module] = [torch.nn.Conv2d(3, 32, 3, padding=1)]
    for _ in range(9):
        layers += [torch.nn.ReLU(), torch.nn.Conv2d(32, 32, 3, padding=1)]
    return torch.nn.Sequential(
        *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, CLASSES)
    )


def main() -> None:
    """Train for an epoch, first step by step, then by the graph."""
    loader = ff.DataLoader(
        make_dataset(sys.argv[1:]),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=ff.AUTO,
        device="cuda",
        output="static",
    )
    network = make_network().cuda()
    optimizer = torch.optim.SGD(network.parameters(), lr=torch.tensor(0.01), momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    batches = iter(loader)
    batch = next(batches)  # the tensors of every batch to come

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(network(batch["image"].float().div(255)), batch["label"])
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # a few steps, for what is allocated only once
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    for name, run in (("step by step", step), ("as a graph", graph.replay)):
        torch.cuda.synchronize()
        started, count = time.perf_counter(), 0
        for _ in range(100):
            next(batches)
            run()
            count += BATCH
        torch.cuda.synchronize()
        print(f"{name}: {count / (time.perf_counter() - started):,.0f} img/s, loss {loss:.3f}")


if __name__ == "__main__":
    main()
