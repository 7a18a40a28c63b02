"""Batches that the loop's own thread brings to the device: ahead, bounded, and let go in time."""

from __future__ import annotations

import threading

import pytest

import fastfeed as ff
from fastfeed.device.intake import AHEAD
from fastfeed.device.path import DevicePath
from fastfeed.device.stage import Stage


def test_batches_are_ahead_of_the_loop_and_bounded(fake_device, monkeypatch, samples, first_of):
    """What has come is moved when a batch is taken, a few at the most, and by nobody else."""
    moved, threads = [], set()
    move = Stage.move

    def watches(self, batch):
        moved.append(int(batch[0, 0]))
        threads.add(threading.get_ident())
        return move(self, batch)

    monkeypatch.setattr(Stage, "move", watches)
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=2, prefetch_factor=8, device="cuda")
    taken, ahead = [], []
    for batch in loader:
        taken += first_of([batch])
        ahead.append(len(moved) - len(taken))
    assert taken == sorted(moved) == list(range(0, 64, 4))
    assert max(ahead) <= AHEAD
    assert threads == {threading.get_ident()}


def test_a_slot_goes_back_with_the_next_batch(fake_device, samples, first_of):
    """Workers get their memory back once copies are done, and no later than a batch after that."""
    loader = ff.DataLoader(samples(400), batch_size=4, num_workers=1, device="cuda")
    lent = []
    for batch in loader:
        del batch
        workers = loader._iterator._pool._inner._workers if loader._iterator else []
        lent.append(sum(worker.lender.lent for worker in workers))
    assert max(lent, default=0) <= AHEAD


@pytest.mark.parametrize("shared", [True, False])
def test_copies_that_hold_up_are_others_work(fake_device, samples, shared):
    """Memory that cannot be pinned is copied by threads: whoever asks for such a copy waits."""
    kind = "process" if shared else "thread"
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=1, device="cuda", worker_kind=kind)
    iterator = iter(loader)
    next(iterator)
    assert iterator._pool._intake.is_beside is not shared


def test_after_refused_pinning_threads_copy(fake_device, samples, first_of):
    """The epoch after one whose memory could not be pinned has threads for its copies."""
    fake_device.refuse_pins = "no more memory may be locked"
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=1, device="cuda")
    assert first_of(loader) == list(range(0, 64, 4))
    iterator = iter(loader)
    next(iterator)
    assert iterator._pool._intake.is_beside


def test_an_interrupt_while_a_batch_is_moved_comes_at_once(fake_device, monkeypatch, samples):
    """Ctrl-C is the loop's own, and no failure of the batch that it met."""
    move = Stage.move

    def interrupted(self, batch):
        if int(batch[0, 0]) == 8:
            raise KeyboardInterrupt
        return move(self, batch)

    monkeypatch.setattr(Stage, "move", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(ff.DataLoader(samples(12), batch_size=4, num_workers=1, device="cuda"))


def test_who_moves_batches(fake_device, samples):
    """Nothing but copies from memory that can be pinned is the loop's."""
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=1, device="cuda")
    iter(loader)
    path = loader._device_path
    assert isinstance(path, DevicePath)
    assert not path._is_beside(shared=True)
    assert path._is_beside(shared=False)
    path.decoder = object()
    assert path._is_beside(shared=True)
