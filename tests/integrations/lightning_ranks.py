"""Run by torchrun: what two ranks see under Lightning's Trainer and Fabric."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import lightning
import torch
from ranks_common import Numbers, numbers_of, shards

import fastfeed as ff

OWN = {"worker_threads": 2, "restart_workers": 3, "snapshot_every_n_steps": 4}


class Watcher(lightning.LightningModule):
    """Notes the loaders it is trained with and their batches."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen, self.loader = {}, None

    def training_step(self, batch):
        self.loader = self.trainer.train_dataloader
        self.seen.setdefault(self.current_epoch, []).append(numbers_of(batch))
        return self.layer(torch.ones(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def about(loader, seen):
    """Return what a loader is and what came of it."""
    own = {name: getattr(loader, name) for name in OWN}
    sampler = type(loader.sampler).__name__
    return {"kind": type(loader).__module__, "own": own, "sampler": sampler, "epochs": seen}


def train(loader):
    """Return what a trainer makes of a loader in two epochs."""
    module = Watcher()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    return about(module.loader, list(module.seen.values()))


def main():
    """Write what this rank sees."""
    found = {}
    for name, data in (("map", Numbers(24)), ("shards", shards(sys.argv[2]))):
        for workers in (0, 2):
            loader = ff.DataLoader(data, batch_size=3, shuffle=True, num_workers=workers, **OWN)
            found[f"trainer {name} {workers}"] = train(loader)
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    for name, data in (("map", Numbers(24)), ("shards", shards(sys.argv[2]))):
        loader = ff.DataLoader(data, batch_size=3, shuffle=True, num_workers=2, **OWN)
        wrapped = fabric.setup_dataloaders(loader)
        epochs = [[numbers_of(batch) for batch in wrapped] for _ in range(2)]
        found[f"fabric {name} 2"] = about(wrapped._dataloader, epochs)
    (Path(sys.argv[1]) / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


main()
