"""Ray Train: two workers, and a loader that stays ours."""

from __future__ import annotations

import json
import sys
from itertools import chain
from pathlib import Path

SCRIPT = Path(__file__).parent / "ray_workers.py"


def test_c57_c59_two_workers_of_ray(tmp_path, number_shards, runner):
    """A sampler for each rank is added where there is none, and all arguments are kept."""
    runner([sys.executable, str(SCRIPT), str(tmp_path), str(number_shards)], seconds=120)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    samplers = {
        "map": "DistributedSampler",
        "torch": "DistributedSampler",
        "shards": "ShardSampler",
    }
    for name, sampler in samplers.items():
        for rank in (first, second):
            assert rank[name]["kind"] == "fastfeed.loader"
            assert rank[name]["sampler"] == sampler
            assert rank[name]["snapshot_every_n_steps"] == (1 if name == "torch" else 4)
        for a, b in zip(first[name]["epochs"], second[name]["epochs"], strict=True):
            assert len(a) == len(b) == 4
            assert sorted(chain(*a, *b)) == list(range(24))
        assert first[name]["epochs"][0] != first[name]["epochs"][1]
    for rank in (first, second):
        assert rank["custom"] == "OptionError"
        assert sorted(chain(*rank["iterable"])) == list(range(5))
