"""The shapes of batches that `transport` moves, and the sessions that move them."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

from fastfeed_bench.benchmarks.transport import BENCHMARK
from fastfeed_bench.consume import digest_tree, read_tree
from fastfeed_bench.judges import judge_same
from fastfeed_bench.model import OURS, Context
from fastfeed_bench.systems import transport
from fastfeed_bench.systems.shapes import SHAPES, samples_of


def cases(*, quick=False):
    return BENCHMARK.cases(Context(work=Path(), photos=None, quick=quick))


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_the_same_everywhere_and_can_be_read(name):
    """Samples come from one seed, make a batch of fresh memory, and every byte can be read."""
    shape = SHAPES[name]
    samples = samples_of(shape)[:2]
    again = samples_of(shape)[:2]
    collate = shape.collate or default_collate
    batch = collate(samples)
    assert digest_tree(batch) == digest_tree(collate(again))
    assert read_tree(batch) == read_tree(collate(samples))


def test_there_are_twelve_further_shapes_with_one_two_and_four_workers():
    """Beside the images, each shape has three cases; names are unique, and epochs are whole."""
    made = cases()
    workers = Counter(case.systems[0].settings["shape"] for case in made)
    further = {name: count for name, count in workers.items() if name not in {"uint8", "float32"}}
    assert len(further) >= 12
    assert set(further.values()) == {3}
    assert set(workers) == set(SHAPES)
    assert len({case.name for case in made}) == len(made)
    assert all(
        system.settings["samples"] % system.settings["batch"] == 0
        for case in made
        for system in case.systems
    )


def test_cases_of_one_shape_share_their_settings():
    """What is tuned with two workers, the first of them, is used with one and four."""
    found = [case for case in cases() if "labels" in case.name]
    assert [case.systems[0].settings["workers"] for case in found] == [2, 1, 4]
    assert len({case.tuned_as for case in found}) == 1


def test_a_quick_run_has_every_shape_with_two_workers():
    """Quick runs leave out other numbers of workers, and are shorter."""
    quick = cases(quick=True)
    assert {case.systems[0].settings["workers"] for case in quick} == {2}
    assert {case.systems[0].settings["shape"] for case in quick} == set(SHAPES)
    assert all(case.systems[0].settings["samples"] > 0 for case in quick)


@pytest.mark.parametrize("name", ["many", "strings", "arrays", "objects", "mixed"])
def test_both_loaders_deliver_the_same(name, leak_gauge):
    """The evidence of an epoch is equal, and a run counts its samples."""
    settings = {"shape": name, "batch": 4, "samples": 16, "workers": 1, "prefetch": 2}
    evidence = {}
    for system, make in ((OURS, transport.fastfeed_session), ("torch", transport.torch_session)):
        session = make(settings)
        evidence[system] = session.evidence()
        assert session.run()["value"] > 0
        del session
        gc.collect()
    assert evidence[OURS]["batches"] == 4
    assert all(finding.equal for finding in judge_same(evidence).values())


def test_the_loaders_get_the_same_arguments():
    """The loader is of the class that is asked for, with the shape's collate function."""
    settings = {"shape": "ragged", "batch": 4, "samples": 16, "workers": 1, "prefetch": 3}
    loader = transport.pool_loader(DataLoader, settings)
    assert type(loader) is DataLoader
    assert (loader.batch_size, loader.num_workers, loader.prefetch_factor) == (4, 1, 3)
    assert loader.collate_fn is list


def test_a_batch_class_and_sparse_tensors_have_a_digest_of_their_contents():
    """What stands in attributes, or in the parts of a sparse tensor, is told."""
    conversations, sparse = SHAPES["objects"], SHAPES["sparse"]
    for shape in (conversations, sparse):
        samples = samples_of(shape)
        one, other = shape.collate(samples[:2]), shape.collate(samples[2:4])
        assert digest_tree(one) != digest_tree(other)
        assert read_tree(one) != read_tree(other)
    assert torch.stack(samples_of(sparse)[:2]).layout is torch.sparse_coo
