"""Hugging Face's Trainer through our loaders: the batches it would have had, and resumed ones."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

import fastfeed as ff
from fastfeed.integrations.transformers import FastfeedLoaders, FastfeedTrainer


class Numbers(Dataset):
    """Dicts as models of Hugging Face take them, with a random draw each."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return {"x": torch.tensor([float(index)]), "draw": torch.rand(1)}


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(20):
            yield {"x": torch.tensor([float(number)]), "draw": torch.rand(1)}


class Tiny(torch.nn.Module):
    """A linear model that notes its batches."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def forward(self, x, draw=None):
        self.seen.append((self.training, x.flatten().tolist(), draw))
        return {"loss": self.layer(x.float().view(-1, 1)).mean(), "logits": x}


class Kinds(TrainerCallback):
    """Notes which loaders a trainer used."""

    def __init__(self):
        self.loaders = []

    def on_step_end(self, args, state, control, train_dataloader=None, **_):
        self.loaders.append(train_dataloader)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **_):
        self.loaders.append(eval_dataloader)


def arguments(folder, **options):
    defaults = {
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 4,
        "num_train_epochs": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
        "seed": 7,
    }
    return TrainingArguments(str(folder), **(defaults | options))


def make(kind, folder, data, **options):
    torch.manual_seed(3)
    kinds = Kinds()
    trainer = kind(
        model=Tiny(),
        args=arguments(folder, **options),
        train_dataset=data,
        eval_dataset=Numbers(),
        callbacks=[kinds],
    )
    return trainer, kinds


def same(a, b):
    return len(a) == len(b) and all(
        x[:2] == y[:2] and torch.equal(x[2], y[2]) for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("data", [Numbers(), Stream()], ids=["map", "iterable"])
def test_the_same_batches_as_the_plain_trainer(tmp_path, leak_gauge, data, workers):
    """Training and evaluation, draws in the workers included."""
    options = {"dataloader_num_workers": workers, "max_steps": 10, "eval_strategy": "epoch"}
    if workers and isinstance(data, Stream):
        options |= {"dataloader_num_workers": 1}
    expected, plain = make(Trainer, tmp_path, data, **options)
    expected.train()
    found, ours = make(FastfeedTrainer, tmp_path, data, **options)
    found.train()
    assert same(found.model.seen, expected.model.seen)
    assert {training for training, _, _ in found.model.seen} == {True, False}
    assert ours.loaders
    assert all(type(one.base_dataloader) is ff.DataLoader for one in ours.loaders)
    assert not any(type(one.base_dataloader) is ff.DataLoader for one in plain.loaders)
    assert "prepare" not in vars(found.accelerator)


@pytest.mark.parametrize("workers", [0, 2])
def test_c61_resume_in_an_epoch(tmp_path, leak_gauge, workers):
    """From a checkpoint in the second epoch; the batches that were trained on are skipped."""
    options = {"dataloader_num_workers": workers, "save_strategy": "steps", "save_steps": 5}
    whole, _ = make(FastfeedTrainer, tmp_path, Numbers(), **options)
    whole.train()
    for step in (5, 10):
        resumed, kinds = make(FastfeedTrainer, tmp_path / "again", Numbers(), **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        numbers = [x for _, x, _ in resumed.model.seen]
        assert numbers == [x for _, x, _ in whole.model.seen][step:]
        assert all(type(one.base_dataloader) is ff.DataLoader for one in kinds.loaders)


def test_shards_and_arguments_of_ours(tmp_path, number_shards):
    """A ShardDataset is ordered by its own sampler, and epochs are whole, resumed ones too."""

    class Rows(FastfeedLoaders, Trainer):
        loader_arguments = {"worker_threads": 2}  # noqa: RUF012 - as a user writes it

    def run(start=None):
        source = f"{number_shards}/numbers-{{000000..000003}}.tar"
        data = ff.ShardDataset(source, {"x": ff.Float("cls")})
        trainer = Rows(
            model=Tiny(),
            args=arguments(
                tmp_path,
                save_strategy="steps",
                save_steps=4,
                dataloader_num_workers=1,
                remove_unused_columns=False,
            ),
            train_dataset=data,
            data_collator=default_collate,
        )
        loader = trainer.get_train_dataloader()
        assert loader.worker_threads == 2
        assert type(loader.batch_sampler.sampler).__name__ == "ShardSampler"
        trainer.train(resume_from_checkpoint=start)
        return [x for _, x, _ in trainer.model.seen]

    golden = run()
    for epoch in (golden[:8], golden[8:]):
        assert sorted(chain(*epoch)) == list(range(24))
    assert golden[:8] != golden[8:]
    for step in (4, 12):
        assert run(str(tmp_path / f"checkpoint-{step}")) == golden[step:]
