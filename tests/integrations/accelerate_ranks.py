"""Run by torchrun: what two ranks see of prepared loaders, written as json for the tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import accelerate
import datasets
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from ranks_common import Numbers, numbers_of, shards
from torch.utils.data import IterableDataset

import fastfeed as ff

FOLDER, SHARDS = Path(sys.argv[1]), sys.argv[2]


class Counter(IterableDataset):
    """Counts; keeps its place, which a loader may ask for."""

    def __init__(self, count):
        self.count, self.at = count, 0

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            yield torch.tensor(self.at - 1)
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def accelerator(**options):
    """Return an accelerator for the process group that there is."""
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))


def seen(loader, *, seed=3, epochs=1, skip=0, dispatch=None):
    """Return the kind and the batches of a loader once it is prepared."""
    torch.manual_seed(seed)
    prepared = accelerator(dispatch_batches=dispatch).prepare(loader)
    kinds = {type(prepared.base_dataloader).__module__}
    epochs = [[numbers_of(batch) for batch in prepared] for _ in range(epochs)]
    if skip:
        prepared = accelerate.skip_first_batches(prepared, skip)
        prepared.set_epoch(0)
        kinds.add(type(prepared.base_dataloader).__module__)
        epochs.append([numbers_of(batch) for batch in prepared])
    return {"kinds": sorted(kinds), "epochs": epochs}


def resumed(make, *, batches, dispatch=None):
    """Return an epoch's rest after some batches: as it went on, and as it is resumed."""
    folder = str(FOLDER / f"state-{batches}-{dispatch}")
    torch.manual_seed(5)
    whole = accelerator(dispatch_batches=dispatch)
    prepared = whole.prepare(make())
    whole.register_for_checkpointing(prepared)
    going = iter(prepared)
    for _ in range(batches):
        next(going)
    whole.save_state(folder)
    rest = [numbers_of(batch) for batch in going]
    torch.manual_seed(6)
    again = accelerator(dispatch_batches=dispatch)
    prepared = again.prepare(make())
    again.register_for_checkpointing(prepared)
    again.wait_for_everyone()
    again.load_state(folder)
    kind = type(prepared.base_dataloader).__module__
    return {"kind": kind, "rest": rest, "resumed": [numbers_of(batch) for batch in prepared]}


def streaming(count):
    """Return a streaming data set of Hugging Face with a shard for each rank."""
    rows = datasets.Dataset.from_dict({"n": list(range(count))})
    return rows.to_iterable_dataset(num_shards=2).with_format("torch")


def main():
    """Write what this rank sees."""
    torch_loader = torch.utils.data.DataLoader
    found = {}
    for workers in (0, 2):
        for count in (24, 21):
            for kind, name in ((torch_loader, "torch"), (ff.DataLoader, "ours")):
                loader = kind(Numbers(count), batch_size=3, shuffle=True, num_workers=workers)
                found[f"map {count} {workers} {name}"] = seen(loader, epochs=2, skip=2)
        loader = ff.DataLoader(shards(SHARDS), batch_size=3, shuffle=True, num_workers=workers)
        found[f"shards {workers}"] = seen(loader, epochs=2, skip=2)
    for dispatch in (True, False):
        for kind, name in ((torch_loader, "torch"), (ff.DataLoader, "ours")):
            loader = kind(Counter(24), batch_size=3)
            found[f"iterable {dispatch} {name}"] = seen(loader, dispatch=dispatch)
    loader = ff.DataLoader(shards(SHARDS), batch_size=3, shuffle=True)
    found["shards dispatched"] = seen(loader, epochs=2, dispatch=True)
    found["streaming"] = seen(ff.DataLoader(streaming(24), batch_size=3), dispatch=False)
    for batches in (1, 2, 3):
        found[f"resumed dispatch {batches}"] = resumed(
            lambda: ff.DataLoader(Counter(21), batch_size=3), batches=batches, dispatch=True
        )
        found[f"resumed map {batches}"] = resumed(
            lambda: ff.DataLoader(Numbers(24), batch_size=3, shuffle=True), batches=batches
        )
        found[f"resumed shards {batches}"] = resumed(
            lambda: ff.DataLoader(shards(SHARDS), batch_size=3, shuffle=True),
            batches=batches,
            dispatch=False,
        )
    rank = torch.distributed.get_rank()
    (FOLDER / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


main()
