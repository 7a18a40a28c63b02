"""The pool in front of a pool: deaths, ends and limits, with a device behind the workers."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch

import fastfeed as ff
from fastfeed.device import intake
from fastfeed.device import pool as device_pool
from fastfeed.device.intake import AHEAD
from fastfeed.errors import DeviceError, WorkerError


def test_a_dead_worker_is_raised_after_what_it_made(fake_device, is_beside, samples):
    """Batches that were made before a death are delivered, then the death is raised."""
    loader = iter(ff.DataLoader(samples(deadly=21), batch_size=4, num_workers=1, device="cuda"))
    seen = []
    with pytest.raises(WorkerError, match="SIGKILL"):
        for batch in loader:
            seen.append(int(batch[0, 0]))  # noqa: PERF401 - it must hold those before the error
    assert seen == [0, 4, 8, 12, 16]
    assert fake_device.pinned == {}


def test_a_dead_worker_is_replaced(fake_device, is_beside, tmp_path, samples, first_of):
    """With restarts the batches of a dead worker come from another one."""

    class Once(samples):
        def __getitem__(self, index):
            mark = tmp_path / "died"
            if index == 21 and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.full((1000,), index)

    loader = ff.DataLoader(Once(), batch_size=4, num_workers=2, device="cuda", restart_workers=1)
    assert first_of(loader) == list(range(0, 64, 4))


def test_a_failed_move_is_raised_in_its_turn(
    fake_device, is_beside, monkeypatch, samples, first_of
):
    """What goes wrong on the device is raised at its batch, and the next ones come."""
    from fastfeed.device.stage import Stage

    move = Stage.move

    def fails(self, batch):
        if int(batch[0, 0]) == 8:
            raise DeviceError("no memory left")
        return move(self, batch)

    monkeypatch.setattr(Stage, "move", fails)
    loader = iter(ff.DataLoader(samples(32), batch_size=4, num_workers=2, device="cuda"))
    assert first_of([next(loader), next(loader)]) == [0, 4]
    with pytest.raises(DeviceError, match="no memory left"):
        next(loader)
    assert first_of(loader) == list(range(12, 32, 4))


def test_a_stage_that_dies_is_noticed(fake_device, beside, monkeypatch, samples):
    """A loop that waits for a batch in the hand of a thread that is gone gets an error."""

    def dies(*_):
        raise MemoryError

    monkeypatch.setattr(device_pool, "_LOOK_S", 0.01)
    monkeypatch.setattr(device_pool.DevicePool, "_move", dies)
    loader = iter(ff.DataLoader(samples(8), batch_size=4, num_workers=1, device="cuda"))
    with pytest.raises(DeviceError, match="has ended"):
        next(loader)


def test_a_stage_that_does_not_begin_says_why(fake_device, beside, monkeypatch, samples):
    """What a thread meets before it can receive anything is raised in the loop."""

    def fails():
        raise DeviceError("the GPU has gone")

    monkeypatch.setattr(fake_device, "enter_thread", fails)
    loader = iter(ff.DataLoader(samples(8), batch_size=4, num_workers=1, device="cuda"))
    with pytest.raises(DeviceError, match="has gone"):
        next(loader)


def test_no_more_than_a_few_batches_wait_on_the_device(
    fake_device, beside, monkeypatch, samples, first_of
):
    """Batches on the device are bounded, however many the workers have made."""
    moved = threading.Semaphore(0)
    from fastfeed.device.stage import Stage

    move = Stage.move
    count = []

    def counts(self, batch):
        count.append(int(batch[0, 0]))
        result = move(self, batch)
        moved.release()
        return result

    monkeypatch.setattr(Stage, "move", counts)
    loader = iter(
        ff.DataLoader(samples(), batch_size=4, num_workers=2, prefetch_factor=8, device="cuda")
    )
    next(loader)
    for _ in range(1 + AHEAD):
        assert moved.acquire(timeout=60)
    assert len(count) <= 1 + AHEAD
    assert first_of(loader) == list(range(4, 64, 4))


def test_a_loop_that_waits_is_given_no_head_start(fake_device, beside, monkeypatch, samples):
    """Threads let a loop get away with its batch first, but not one that wants another already."""
    monkeypatch.setattr(intake, "_HEAD_START_S", 3600.0)
    loader = ff.DataLoader(samples(400), batch_size=4, num_workers=2, device="cuda")
    assert sum(len(batch) for batch in loader) == 400


def test_threads_end_with_the_loader(fake_device, is_beside, samples):
    """Neither an epoch's end nor an early one leaves a thread behind."""
    before = threading.active_count()
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=2, device="cuda")
    list(loader)
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert threading.active_count() == before


def test_a_fork_leaves_the_device_alone(fake_device, is_beside, samples, first_of):
    """A child that drops its copy of an iterator ends, and the parent's goes on."""
    iterator = iter(ff.DataLoader(samples(), batch_size=4, num_workers=2, device="cuda"))
    next(iterator)
    assert fake_device.has_pinned.wait(60)  # in a thread of its own
    child = os.fork()
    if child == 0:
        try:
            iterator._pool.close()
            del iterator
        finally:
            os._exit(0 if fake_device.pinned else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first_of(iterator) == list(range(4, 64, 4))


def test_out_of_order_batches(fake_device, is_beside, samples, first_of):
    """With in_order=False every batch still comes once."""
    loader = ff.DataLoader(samples(), batch_size=4, num_workers=2, device="cuda", in_order=False)
    assert sorted(first_of(loader)) == list(range(0, 64, 4))


def test_iterable_data(fake_device, is_beside):
    """Workers that end at different times end the epoch together."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            worker = torch.utils.data.get_worker_info()
            return iter(range(worker.id, 23, 3 * (worker.id + 1)))

    theirs = [b.tolist() for b in torch.utils.data.DataLoader(Stream(), 4, num_workers=2)]
    ours = [b.tolist() for b in ff.DataLoader(Stream(), 4, num_workers=2, device="cuda")]
    assert ours == theirs


def test_resume_counts_what_was_delivered(fake_device, is_beside, samples):
    """A state holds what the loop was given, not what waits on the device."""
    make = lambda: ff.DataLoader(  # noqa: E731
        samples(), batch_size=4, num_workers=2, device="cuda", shuffle=True
    )
    loader = make()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    state = loader.state_dict()
    rest = [b[:, 0].tolist() for b in iterator]
    again = make()
    again.load_state_dict(state)
    assert [b[:, 0].tolist() for b in again] == rest


def test_the_slot_waits_for_its_copy(fake_device, is_beside, monkeypatch, samples):
    """The fake device does notice a slot that is given back before its copy is done."""
    kind = type(fake_device.mark())
    monkeypatch.setattr(kind, "wait", lambda _: None)
    monkeypatch.setattr(kind, "is_done", lambda _: True)
    monkeypatch.setattr(type(fake_device), "hand_over", lambda *_: None)
    loader = ff.DataLoader(samples(400), batch_size=4, num_workers=1, device="cuda")
    for number, _ in enumerate(loader):
        if number == 60:  # memory of the first batches was used again, and is still mapped
            fake_device.finish_until(fake_device._given)
    assert fake_device.torn
    fake_device.torn.clear()
