"""Lightning keeps our loaders: fitting, checkpoints in an epoch, two ranks, Fabric."""

from __future__ import annotations

from itertools import chain

import lightning
import pytest
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import IterableDataset, TensorDataset

import fastfeed as ff

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{PossibleUserWarning.__module__}.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed:UserWarning"),
    pytest.mark.filterwarnings("ignore:Your .IterableDataset. has .__len__. defined:UserWarning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),
]


class Module(lightning.LightningModule):
    """Notes the numbers of its batches by stage and epoch."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def note(self, stage, batch):
        self.seen.append((stage, self.current_epoch, batch[0].tolist()))
        return self.layer(torch.ones(1, 1)).sum()

    def training_step(self, batch):
        return self.note("train", batch)

    def validation_step(self, batch):
        self.note("validate", batch)

    def predict_step(self, batch):
        return batch[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Sized(IterableDataset):
    """Counts, says how far, and keeps its place."""

    def __init__(self, count):
        self.count, self.at = count, 0

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            yield (self.at - 1,)
        self.at = 0

    def __len__(self):
        return self.count

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def trainer(*callbacks, epochs=2):
    return lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )


def numbers(kind, *, count=10, **options):
    return kind(TensorDataset(torch.arange(count)), batch_size=3, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_fit_validate_predict(leak_gauge, workers):
    """The same batches as with torch's loader, in every stage."""

    def run(kind):
        torch.manual_seed(3)
        module, loop = Module(), trainer()
        train = numbers(kind, shuffle=True, num_workers=workers)
        rest = numbers(kind, num_workers=workers)
        loop.fit(module, train, rest)
        loop.validate(module, rest)
        return module.seen, [batch.tolist() for batch in loop.predict(module, rest)]

    assert run(ff.DataLoader) == run(torch.utils.data.DataLoader)


LOADERS = {
    "map": lambda: numbers(ff.DataLoader, shuffle=True),
    "map, workers": lambda: numbers(ff.DataLoader, shuffle=True, num_workers=2),
    "iterable": lambda: ff.DataLoader(Sized(10), batch_size=3),
    "iterable, a worker": lambda: ff.DataLoader(Sized(10), batch_size=3, num_workers=1),
}


@pytest.mark.parametrize("name", LOADERS)
def test_c61_checkpoints_in_an_epoch(tmp_path, leak_gauge, name):
    """From a checkpoint after any step, an epoch's last too, exactly the batches not yet seen."""

    def run(folder, *, seed, start=None):
        lightning.seed_everything(seed, verbose=False)
        every = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)
        module = Module()
        trainer(every).fit(module, LOADERS[name](), ckpt_path=start)
        return module.seen

    golden = run(tmp_path, seed=1)
    assert len(golden) == 8
    for step in (1, 3, 4, 6):
        rest = run(tmp_path / f"from {step}", seed=step, start=tmp_path / f"step={step}.ckpt")
        assert rest == golden[step:]
    # Once more, from what a resumed run has saved in the same epoch.
    again = tmp_path / "from 1" / "step=2.ckpt"
    assert run(tmp_path / "again", seed=9, start=again) == golden[2:]


@pytest.mark.parametrize("name", LOADERS)
def test_c61_checkpoint_at_the_end_of_an_epoch(tmp_path, name):
    """What is saved when an epoch is over goes on with whole epochs."""
    every = ModelCheckpoint(tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1)
    trainer(every).fit(Module(), LOADERS[name]())
    module = Module()
    start = tmp_path / "epoch=0.ckpt"
    again = ModelCheckpoint(tmp_path / "again")
    trainer(again, epochs=3).fit(module, LOADERS[name](), ckpt_path=start)
    for epoch in (1, 2):
        batches = [batch for _, at, batch in module.seen if at == epoch]
        assert sorted(chain(*batches)) == list(range(10))
    assert len(module.seen) == 8


@pytest.fixture(scope="module")
def ranks(two_ranks, number_shards):
    """What each of two ranks saw."""
    return two_ranks("lightning_ranks.py", number_shards)


@pytest.mark.parametrize("data", ["map", "shards"])
@pytest.mark.parametrize("loop", ["trainer {} 0", "trainer {} 2", "fabric {} 2"])
def test_c57_c59_loaders_made_again_for_two_ranks(ranks, loop, data):
    """Class and arguments are kept, the data is split once, epochs differ."""
    first, second = (rank[loop.format(data)] for rank in ranks)
    for rank in (first, second):
        assert rank["kind"] == "fastfeed.loader"
        assert rank["own"] == {
            "worker_threads": 2,
            "restart_workers": 3,
            "snapshot_every_n_steps": 4,
        }
        assert rank["sampler"] == ("DistributedSampler" if data == "map" else "ShardSampler")
    for a, b in zip(first["epochs"], second["epochs"], strict=True):
        assert len(a) == len(b) == 4
        assert sorted(chain(*a, *b)) == list(range(24))
    assert first["epochs"][0] != first["epochs"][1]
