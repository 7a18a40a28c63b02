"""Batches that users keep: valid for ever, in bounded shared memory and constant descriptors."""

from __future__ import annotations

import gc
import os
import resource
import threading

import numpy as np
import pytest
import torch

from fastfeed.loader import DataLoader

KIB, MIB = 1 << 10, 1 << 20


class Tiny(DataLoader):
    """A loader whose workers have regions of a given size."""

    size = 256 * KIB

    def region_bytes(self, memory):
        """Return the given size."""
        return self.size


@pytest.fixture
def tiny(monkeypatch):
    """Regions may be smaller than worth having, so that they fill up."""
    monkeypatch.setattr("fastfeed.process.LEAST_REGION", 4 * KIB)
    monkeypatch.setattr(Tiny, "size", Tiny.size)
    return Tiny


def numbered(i):
    return {"x": torch.full((64, 64), float(i)), "n": np.full(200, i), "label": i}


def check(batches, start=0):
    for number, batch in enumerate(batches):
        wanted = torch.arange(number * 2, number * 2 + 2) + start
        assert torch.equal(batch["label"], wanted)
        assert torch.equal(batch["x"], wanted.float()[:, None, None].expand(2, 64, 64))
        assert torch.equal(batch["n"], wanted[:, None].expand(2, 200))


def bytes_of(piece):
    if isinstance(piece, torch.UntypedStorage):
        piece = torch.empty(0, dtype=torch.uint8).set_(piece)
    return (piece.numpy() if isinstance(piece, torch.Tensor) else piece).tobytes()


@pytest.mark.parametrize("persistent", [False, True])
def test_c49_all_batches_of_three_epochs_stay(items, tiny, persistent):
    """list(loader) of whole epochs, in a region that holds only a few: none is overwritten."""
    loader = tiny(items(60, numbered), batch_size=2, num_workers=2, persistent_workers=persistent)
    kept = [list(loader) for _ in range(3)]
    for batches in kept:
        check(batches)


def test_batches_larger_than_the_region(items, tiny):
    """What has no room goes through the pipe, whole and in order."""
    loader = tiny(items(12, lambda i: torch.full((300, 1000), i)), batch_size=1, num_workers=2)
    for number, batch in enumerate(loader):
        assert batch.shape == (1, 300, 1000)
        assert bool((batch == number).all())


def test_large_messages_and_large_indices_never_block(items):
    """Prefetched results and jobs far beyond a pipe's buffer: neither side waits for the other."""
    loader = DataLoader(
        items(120_000, lambda i: i),
        batch_size=30_000,
        collate_fn=lambda batch: [{"text": str(n), "t": torch.tensor(n)} for n in batch[:4000]],
        num_workers=1,
        prefetch_factor=4,
    )
    found = [batch[-1]["text"] for batch in loader]
    assert found == ["3999", "33999", "63999", "93999"]


def test_c43_few_descriptors(items):
    """RLIMIT_NOFILE of 64 and 2,000 kept labels of 1,000 batches: descriptors stay constant."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 40, hard))
    try:
        loader = DataLoader(
            items(2000, lambda i: {f"k{k}": torch.tensor(i) for k in range(5)}),
            batch_size=2,
            num_workers=2,
        )
        kept, most = [], 0
        for batch in loader:
            kept.append(batch)
            most = max(most, len(os.listdir("/proc/self/fd")))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert most <= opened + 20
    for k in range(5):
        assert torch.cat([batch[f"k{k}"] for batch in kept]).tolist() == list(range(2000))


def test_c43_too_few_descriptors_say_so(items, leak_gauge):
    """Not even the workers' pipes can be opened: an error that names the limit, nothing left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 4, hard))
    try:
        with pytest.raises(ValueError, match="ulimit -n"):
            iter(DataLoader(items(4, int), num_workers=2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch["x"][0],
        lambda batch: batch["x"].view(-1)[5:9],
        lambda batch: batch["x"].numpy()[1:],
        lambda batch: batch["x"].untyped_storage(),
        lambda batch: memoryview(batch["x"].numpy()),
        lambda batch: batch["x"].detach().view(torch.int32),
        lambda batch: torch.from_dlpack(batch["x"]),
        lambda batch: batch["n"],
    ],
)
def test_c49_parts_of_batches_stay(items, part):
    """Whatever view is kept of each batch keeps its values."""
    loader = DataLoader(items(40, numbered), batch_size=2, num_workers=2, persistent_workers=True)
    kept = [part(batch) for batch in loader]
    before = [bytes_of(piece) for piece in kept]
    for batch in loader:
        batch["x"].fill_(-1)
    assert [bytes_of(piece) for piece in kept] == before


def test_batches_outlive_loader_and_workers(items, leak_gauge):
    """Batches stay readable and writable after the loader and its processes are gone."""
    kept = list(DataLoader(items(10, numbered), batch_size=2, num_workers=2))
    gc.collect()
    check(kept)
    kept[0]["x"].add_(1)
    del kept


def test_steady_memory_without_the_garbage_collector(items):
    """With gc off: after the first epochs neither descriptors nor mapped memory grow."""

    def mapped():
        with open("/proc/self/maps") as maps:  # noqa: PTH123
            return sum("memfd:fastfeed" in line for line in maps)

    gc.collect()
    before = mapped()
    gc.disable()
    try:
        for _ in range(4):
            for batch in DataLoader(items(8, numbered), batch_size=2, num_workers=2):
                del batch
        assert mapped() == before
    finally:
        gc.enable()


def test_early_breaks_of_persistent_epochs_lose_no_memory(items, tiny):
    """Prefetched batches that nobody took give their memory back."""
    tiny.size = MIB
    loader = tiny(
        items(40, numbered), batch_size=2, num_workers=2, persistent_workers=True, prefetch_factor=4
    )
    for _ in range(30):
        for batch in loader:
            assert float(batch["x"][0, 0, 0]) == 0
            del batch
            break
    for batch in loader:  # what was left of the others comes in here, and may fill a region
        del batch
    assert [worker.lender.lent for worker in loader._iterator._pool._workers] == [0, 0]
    copied = loader.snapshot().copied
    for batch in loader:
        del batch
    assert loader.snapshot().copied == copied


def test_tensors_die_in_other_threads(items):
    """Batches handed to threads that drop them at any time."""
    loader = DataLoader(items(200, numbered), batch_size=2, num_workers=2)
    waiting, wrong = [], []
    ready = threading.Condition()

    def consume():
        while True:
            with ready:
                ready.wait_for(lambda: waiting)
                number, batch = waiting.pop()
            if batch is None:
                return
            if float(batch["x"][0, 3, 3]) != number * 2:
                wrong.append(number)
            del batch

    threads = [threading.Thread(target=consume) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number, batch in enumerate(loader):
        with ready:
            waiting.append((number, batch))
            ready.notify()
    with ready:
        waiting[:0] = [(0, None)] * 3
        ready.notify_all()
    for thread in threads:
        thread.join(20)
    assert not wrong


def test_a_saved_tensor_is_as_small_as_itself(items, tmp_path):
    """torch.save of one tensor of a batch does not save the batch."""
    loader = DataLoader(items(2, numbered), batch_size=2, num_workers=1)
    (batch,) = loader
    torch.save(batch["label"], tmp_path / "label.pt")
    assert (tmp_path / "label.pt").stat().st_size < 4000


def test_limited_address_space_gets_a_smaller_region(monkeypatch):
    """Where the process may not map that much, the region is as large as it may be."""
    from fastfeed.slots.region import Region

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10 * MIB, hard))
    try:
        region = Region.up_to(64 * MIB, least=MIB)
        with pytest.raises(ValueError, match="ulimit"):
            Region.up_to(64 * MIB, least=32 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    region.close_descriptor()
    assert region.capacity == 8 * MIB
