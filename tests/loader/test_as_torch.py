"""Side by side with torch's loader: the same batches, order, seeds and errors."""

from __future__ import annotations

import random
import threading
import warnings
from collections import namedtuple

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, TensorDataset, default_collate
from torch.utils.data import DataLoader as Torchs

from fastfeed.loader import DataLoader

# More workers than this machine has cores, perhaps.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

Pair = namedtuple("Pair", "image label")  # noqa: PYI024 - what users write


def epochs(kind, dataset, *, count=3, seed=7, stop_at=None, own_generator=False, **options):
    """Return the batches of a few epochs, perhaps left early, and the generator's state after."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if own_generator:
        options["generator"] = torch.Generator().manual_seed(seed + 1)
    loader = kind(dataset, **options)
    found = []
    for _ in range(count):
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch)
            if number + 1 == stop_at:
                break
        found.append(batches)
    generator = options.get("generator") or torch.default_generator
    return found, generator.get_state().tolist()


@pytest.mark.parametrize("own_generator", [False, True])
@pytest.mark.parametrize("stop_at", [None, 2])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, True), (3, False), (3, True)])
def test_c53_order_and_seeds(draws, same, workers, persistent, stop_at, own_generator):
    """Shuffle, draws of all generators and worker infos equal torch's, early breaks included."""
    options = {
        "batch_size": 4,
        "shuffle": True,
        "num_workers": workers,
        "persistent_workers": persistent,
        "stop_at": stop_at,
        "own_generator": own_generator,
    }
    assert same(epochs(DataLoader, draws(18), **options), epochs(Torchs, draws(18), **options))


class EveryOther(Sampler):
    """Draws when it begins, as some do."""

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        first = int(torch.randint(0, 2, ()))
        return iter(range(first, self.count, 2))

    def __len__(self):
        return self.count // 2


class OddKeys:
    """A batch sampler that yields what only its data set understands."""

    def __iter__(self):
        return iter([{"keys": [1, 2]}, {"keys": [3]}])

    def __len__(self):
        return 2


def shift_seed(worker):
    """Reseed, as some users do."""
    torch.manual_seed(1000 + worker)


OPTIONS = {
    "drop_last": {"batch_size": 4, "drop_last": True},
    "no batches": {"batch_size": None},
    "sampler": {"batch_size": 3, "sampler": EveryOther(17)},
    "own indices": {"batch_size": 2, "sampler": [5, 1, 9]},
    "batch sampler": {"batch_sampler": BatchSampler(RandomSampler(range(17)), 5, drop_last=False)},
    "prefetch": {"batch_size": 2, "shuffle": True, "prefetch_factor": 5},
    "init": {"batch_size": 4, "worker_init_fn": shift_seed},
    "collate": {"batch_size": 4, "collate_fn": list},
    "collate that collates": {
        "batch_size": 4,
        "collate_fn": lambda b: [default_collate(b), len(b)],
    },
    "more workers than batches": {"batch_size": 10, "num_workers": 3},
    "nothing at all": {"batch_size": 4, "sampler": []},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(draws, same, name):
    """Each option alone gives torch's batches."""
    options = {"num_workers": 2, **OPTIONS[name]}
    dataset = draws(17)
    assert same(
        epochs(DataLoader, dataset, count=2, **options), epochs(Torchs, dataset, count=2, **options)
    )


def test_many_at_once(items, same):
    """`__getitems__` is used where the data set has it, whatever the batch sampler yields."""

    class Many:
        def __getitems__(self, keys):
            return [torch.tensor(key) for key in keys["keys"]]

        def __getitem__(self, index):
            raise AssertionError("one by one")

    for workers in (0, 1):
        options = {"batch_sampler": OddKeys(), "num_workers": workers}
        assert same(list(DataLoader(Many(), **options)), list(Torchs(Many(), **options)))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "options", [{"batch_size": 4}, {"batch_size": 3, "drop_last": True}, {"batch_size": None}]
)
def test_iterable(stream, same, options, persistent):
    """Iterable data sets whose workers end at different times, epoch after epoch."""
    options |= {"num_workers": 3, "persistent_workers": persistent}
    assert same(
        epochs(DataLoader, stream(23), count=2, **options),
        epochs(Torchs, stream(23), count=2, **options),
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_c56_wrong_length_warns_as_torch_does(stream, workers):
    """More batches than `len` said: torch's warning, as often."""
    said = []
    for kind in (DataLoader, Torchs):
        loader = kind(stream(8, length=2), batch_size=2, num_workers=workers)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(loader) == 1
            assert len(list(loader)) == 4
        said.append([str(w.message).replace(str(loader.dataset), "") for w in caught])
    assert said[0] == said[1]
    assert said[0]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"num_workers": -1}, ValueError),
        ({"timeout": -1}, ValueError),
        ({"num_workers": 0, "prefetch_factor": 2}, ValueError),
        ({"num_workers": 0, "persistent_workers": True}, ValueError),
        ({"shuffle": True, "sampler": [1]}, ValueError),
        ({"batch_size": 2, "batch_sampler": [[1]]}, ValueError),
        ({"batch_size": None, "drop_last": True}, ValueError),
        ({"num_workers": 1, "multiprocessing_context": "teleport"}, ValueError),
    ],
)
def test_wrong_arguments(draws, options, error):
    """Torch's own checks raise what they raise."""
    for kind in (DataLoader, Torchs):
        with pytest.raises(error):
            kind(draws(3), **options)


def test_attributes(draws):
    """A loader has torch's public attributes and values, and the class it checks for."""
    ours = DataLoader(draws(9), 2, shuffle=True, num_workers=1)
    theirs = Torchs(draws(9), 2, shuffle=True, num_workers=1)
    assert isinstance(ours, Torchs)
    public = {name for name in vars(theirs) if not name.startswith("_")}
    assert public <= set(vars(ours))
    more = {"worker_kind", "worker_threads", "restart_workers", "snapshot_every_n_steps"}
    more |= {"device", "decode", "output", "batch_transform", "pinned_budget"}
    assert {n for n in vars(ours) if not n.startswith("_")} - public == more
    for name in public - {"dataset", "sampler", "batch_sampler"}:
        assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(ValueError, match="should not be set"):
        ours.batch_size = 3


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "make",
    [
        lambda i: torch.full((3, 40, 40), i, dtype=torch.uint8),
        lambda i: {f"k{k}": torch.rand(4) + i for k in range(60)},
        lambda i: Pair(np.full((4, 4), i), f"name {i}"),
        lambda i: [i, float(i), str(i), b"x" * i],
        lambda i: (np.float32(i), np.int16(i), True),
        lambda i: {"input_ids": list(range(20)), "nested": {"mask": [1] * 5, "id": i}},
        lambda i: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        lambda i: torch.tensor(i),
        lambda i: torch.empty(0, 4),
    ],
)
def test_collated_kinds(items, same, make):
    """default_collate's batches of every kind of sample equal torch's."""
    options = {"batch_size": 4, "num_workers": 2}
    assert same(
        epochs(DataLoader, items(10, make), count=1, **options),
        epochs(Torchs, items(10, make), count=1, **options),
    )


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    "collate",
    [
        list,
        lambda batch: torch.nn.utils.rnn.pad_sequence(batch, batch_first=True),
        lambda batch: [t.to_sparse() for t in batch],
        lambda batch: np.concatenate([t.numpy() for t in batch]),
        lambda batch: torch.cat(batch)[::2],
        lambda batch: batch[0].expand(3, -1),
        lambda batch: {"tuple": (batch[0], None), "numbers": [len(t) for t in batch]},
    ],
)
def test_own_collate_functions(items, same, collate):
    """Whatever a collate function returns arrives as torch delivers it."""
    options = {"batch_size": 3, "num_workers": 2, "collate_fn": collate}
    dataset = items(9, lambda i: torch.arange(i + 1.0))
    assert same(
        epochs(DataLoader, dataset, count=1, **options), epochs(Torchs, dataset, count=1, **options)
    )


def test_ragged_batches_raise_as_torch(items):
    """Samples that do not stack: the same error in the loop, and the loop may go on."""
    for kind in (DataLoader, Torchs):
        batches = iter(
            kind(items(6, lambda i: torch.rand(3 + (i == 2))), batch_size=2, num_workers=1)
        )
        assert next(batches).shape == (2, 3)
        with pytest.raises(
            RuntimeError, match="Caught RuntimeError in DataLoader worker process 0"
        ):
            next(batches)
        assert next(batches).shape == (2, 3)
        assert next(batches, None) is None


def test_out_of_order(items):
    """in_order=False gives every batch once."""
    loader = DataLoader(
        TensorDataset(torch.arange(100)), batch_size=3, num_workers=3, in_order=False
    )
    for _ in range(2):
        assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(100))


def test_pin_memory_without_an_accelerator_warns(draws, same):
    """pin_memory=True on a machine without accelerator: torch's warning, and the batches."""
    if torch.accelerator.is_available():
        pytest.skip("has an accelerator")
    loader = DataLoader(draws(4), batch_size=2, num_workers=1, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator"):
        assert len(list(loader)) == 2


def test_c52_set_epoch_reaches_sampler_and_batch_sampler(draws):
    """The loader's set_epoch is passed on to whoever keeps an epoch."""

    class Keeper(list):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

    keeper = Keeper([1, 2])
    loader = DataLoader(draws(3), sampler=keeper)
    loader.set_epoch(4)
    assert keeper.epoch == 4


def test_is_generic(draws):
    """Type hints such as `DataLoader[Batch]` work at run time, as torch's."""
    for kind in (DataLoader, Torchs):
        assert kind[int](draws(3)).batch_size == 1


def test_expanded_tensors_stay_expanded():
    """A batch whose elements are one in memory travels as one."""
    for kind in (DataLoader, Torchs):
        (batch,) = kind([0], num_workers=1, collate_fn=lambda _: torch.ones(3).expand(1000, -1))
        assert batch.stride() == (0, 1)
        assert batch.shape == (1000, 3)
        assert (batch == 1).all()


def test_no_prefetching_is_refused_as_by_torch(draws):
    """Torch finds that out when an iterator is made, which is then half made: only ours is here."""
    with pytest.raises(AssertionError, match="greater than 0 for MultiProcessingDataLoaderIter"):
        iter(DataLoader(draws(3), num_workers=1, prefetch_factor=0))


@pytest.mark.parametrize("dtype", ["u1", ">i4", "<f8"])
@pytest.mark.parametrize("count", [4, 4000])
def test_arrays_arrive_as_torch_pickles_them(count, dtype):
    """Read-only and foreign-endian ones as plain ones, small and large."""
    array = np.frombuffer(np.arange(count).astype(dtype).tobytes(), dtype)
    found = []
    for kind in (DataLoader, Torchs):
        (batch,) = kind([array], num_workers=1, collate_fn=lambda samples: samples[0])
        batch[0] = 3
        found.append(batch)
    assert found[0].dtype == found[1].dtype
    assert np.array_equal(found[0], found[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_may_take_batches_from_one_iterator(draws, workers):
    """Each batch goes to one of them, as with torch's iterator, and is counted."""
    loader = DataLoader(draws(200), 4, num_workers=workers)
    batches = iter(loader)
    found = []

    def take():
        found.extend(batch["index"] for batch in batches)

    takers = [threading.Thread(target=take) for _ in range(4)]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()
    assert sorted(torch.cat(found).tolist()) == list(range(200))
    assert loader.stats().batches == 50


def test_without_workers_threads_take_turns(draws):
    """A thread that asks while the sampler is being asked gets the next batch, not an error."""
    found = []

    class Order(Sampler):
        def __iter__(self):
            other.start()
            other.join(0.1)  # without turns it would be at the sampler, and fail, before that
            yield from range(8)

        def __len__(self):
            return 8

    batches = iter(DataLoader(draws(8), 4, sampler=Order()))
    other = threading.Thread(target=lambda: found.append(next(batches)))
    found.append(next(batches))
    other.join()
    assert sorted(torch.cat([batch["index"] for batch in found]).tolist()) == list(range(8))
