"""Run as a command: two workers of a local Ray write what they see of prepared loaders."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import ray.train
from ranks_common import Numbers, numbers_of, shards
from ray.train.torch import TorchConfig, TorchTrainer
from torch.utils.data import DataLoader, IterableDataset

import fastfeed as ff
from fastfeed.integrations.ray import prepare_data_loader


class Five(IterableDataset):
    def __iter__(self):
        yield from range(5)


def train(config):
    """Write what this worker sees; runs in a process of Ray's."""
    own = {"snapshot_every_n_steps": 4, "num_workers": 2}
    loaders = {
        "map": ff.DataLoader(Numbers(24), batch_size=3, shuffle=True, **own),
        "torch": DataLoader(Numbers(24), batch_size=3, shuffle=True),
        "shards": ff.DataLoader(shards(config["shards"]), batch_size=3, shuffle=True, **own),
    }
    found = {}
    for name, loader in loaders.items():
        prepared = prepare_data_loader(loader)
        epochs = []
        for epoch in range(2):
            prepared.sampler.set_epoch(epoch)
            epochs.append([numbers_of(batch) for batch in prepared])
        inner = prepared._dataloader
        found[name] = {
            "kind": type(inner).__module__,
            "sampler": type(inner.sampler).__name__,
            "snapshot_every_n_steps": inner.snapshot_every_n_steps,
            "epochs": epochs,
        }
    try:
        prepare_data_loader(ff.DataLoader(Numbers(4), batch_sampler=[[0, 1], [2, 3]]))
    except ff.FastfeedError as error:
        found["custom"] = type(error).__name__
    iterable = prepare_data_loader(ff.DataLoader(Five(), batch_size=2), move_to_device=False)
    found["iterable"] = [batch.tolist() for batch in iterable]
    rank = ray.train.get_context().get_world_rank()
    (Path(config["folder"]) / f"{rank}.json").write_text(json.dumps(found))


def main():
    """Start a small Ray of our own, train, stop it; nothing stays in the home or in /tmp/ray."""
    folder, numbers = sys.argv[1:]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    with tempfile.TemporaryDirectory(
        prefix="ff-", dir="/tmp"
    ) as home:  # paths of sockets are short
        os.environ["HOME"] = home
        ray.init(
            num_cpus=3,
            include_dashboard=False,
            object_store_memory=80 << 20,
            runtime_env={"env_vars": {"PYTHONPATH": path}},
            _temp_dir=home,
        )
        try:
            TorchTrainer(
                train,
                train_loop_config={"folder": folder, "shards": numbers},
                torch_config=TorchConfig(backend="gloo"),
                scaling_config=ray.train.ScalingConfig(num_workers=2, use_gpu=False),
                run_config=ray.train.RunConfig(name="fastfeed", storage_path=folder),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
