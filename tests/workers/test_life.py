"""Life and death of workers: deaths are named, leaving is clean, nobody survives the trainer."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time

import pytest
import torch
from torch.utils.data import Dataset

from fastfeed.errors import WorkerError
from fastfeed.loader import DataLoader


class Deadly(Dataset):
    """Item `at` calls a function; all others are themselves."""

    def __init__(self, act, *, at=6, count=40):
        self.act, self.at, self.count = act, at, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == self.at:
            self.act()
        return torch.full((1000,), index)


def kill(number):
    return lambda: os.kill(os.getpid(), number)


def hang():
    threading.Event().wait()


DEATHS = {
    "SIGKILL": (kill(signal.SIGKILL), "SIGKILL", "memory"),
    "SIGSEGV": (kill(signal.SIGSEGV), "SIGSEGV", "faulthandler"),
    "SIGBUS": (kill(signal.SIGBUS), "SIGBUS", "memory-mapped"),
    "SIGABRT": (os.abort, "SIGABRT", "num_workers=0"),
    "os._exit": (lambda: os._exit(3), "exit code 3", "num_workers=0"),
    "sys.exit": (sys.exit, "exit code 0", "num_workers=0"),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("death", DEATHS)
def test_c30_death_is_named_in_time(death, persistent, leak_gauge, capfd):
    """Pid, how it died, its batch and a hint, within five seconds; the other worker is stopped."""
    act, how, hint = DEATHS[death]
    loader = DataLoader(Deadly(act), batch_size=2, num_workers=2, persistent_workers=persistent)
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        list(loader)
    assert time.monotonic() - started < 5
    text = str(caught.value)
    assert how in text
    assert hint in text
    assert "batch 3 of samples [6, 7]" in text
    assert "pid(s)" in text
    assert isinstance(caught.value, RuntimeError)
    del caught, loader


def test_c30_batches_before_the_death_are_right():
    """What was delivered is right, then the error, and then the error again; never old data."""
    batches = iter(DataLoader(Deadly(kill(signal.SIGKILL), at=21), batch_size=2, num_workers=1))
    seen = []
    with pytest.raises(WorkerError, match="SIGKILL"):
        for batch in batches:
            seen.append(batch)  # noqa: PERF402 - what came before the error counts
    assert seen
    assert all(batch[:, 0].tolist() == [2 * i, 2 * i + 1] for i, batch in enumerate(seen))
    with pytest.raises(WorkerError, match="have ended"):
        next(batches)


def test_c30_after_a_death_a_persistent_loader_starts_again(tmp_path):
    """The next epoch of a loader with persistent workers has new workers."""
    mark = tmp_path / "died"

    def once():
        if not mark.exists():
            mark.touch()
            os._exit(9)

    loader = DataLoader(Deadly(once), batch_size=2, num_workers=2, persistent_workers=True)
    with pytest.raises(WorkerError, match="exit code 9"):
        list(loader)
    assert len(list(loader)) == 20


def test_c30_killed_while_it_writes(leak_gauge, monkeypatch):
    """A worker killed in the middle of a large message: WorkerError each time, no hang."""
    monkeypatch.setattr("fastfeed.process.LEAST_REGION", 4096)
    monkeypatch.setattr(DataLoader, "region_bytes", lambda *_: 4096)  # all goes through the pipe
    data = Deadly(lambda: None)
    for _ in range(8):
        loader = DataLoader(
            data, batch_size=1, num_workers=1, collate_fn=lambda b: b[0].repeat(900)
        )
        batches = iter(loader)
        next(batches)
        os.kill(batches._pool._workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match="SIGKILL"):
            list(batches)
    del batches, loader


def test_c30_timeout(leak_gauge):
    """A worker that never answers: torch's error after `timeout=` seconds, and a clean end."""
    loader = DataLoader(Deadly(hang, at=0), batch_size=2, num_workers=1, timeout=1)
    started = time.monotonic()
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        next(batches)
    assert time.monotonic() - started < 3
    batches._pool.close(grace_s=0.1)
    assert time.monotonic() - started < 5
    del batches


def test_exceptions_do_not_end_the_workers():
    """After an exception of the data set the loop may go on, as with torch."""

    class Basal(BaseException):
        """Neither exit nor interrupt."""

    def fail():
        raise Basal("deep")

    batches = iter(DataLoader(Deadly(fail, at=2), batch_size=2, num_workers=1))
    assert next(batches)[0, 0] == 0
    with pytest.raises(RuntimeError, match=r"(?s)Basal in DataLoader worker process 0.*deep"):
        next(batches)
    assert next(batches)[0, 0] == 4


@pytest.mark.parametrize("persistent", [False, True])
def test_failing_start_is_raised_every_time(persistent):
    """An exception in worker_init_fn is the loop's, and no batch is skipped silently after it."""

    def fail(worker):
        raise ValueError(f"worker {worker} has no place")

    loader = DataLoader(
        Deadly(hang, at=99), num_workers=1, worker_init_fn=fail, persistent_workers=persistent
    )
    batches = iter(loader)
    for _ in range(3):
        with pytest.raises(ValueError, match="worker 0 has no place"):
            next(batches)


def test_c33_failing_sampler_is_raised(leak_gauge):
    """An exception of the sampler is the loop's, in the consumer's own stack."""

    class Failing:
        def __iter__(self):
            yield from range(10)
            raise LookupError("no more order")

        def __len__(self):
            return 20

    with pytest.raises(LookupError, match="no more order"):
        list(DataLoader(Deadly(hang, at=99), sampler=Failing(), num_workers=1))


@pytest.mark.parametrize("workers", [1, 2])
def test_c32_many_abandoned_iterators(leak_gauge, workers):
    """next(iter(loader)) again and again leaves no process, thread or descriptor."""
    loader = DataLoader(Deadly(hang, at=99), batch_size=2, num_workers=workers)
    for _ in range(25):
        assert next(iter(loader))[1, 0] == 1
    for _ in range(10):
        for _ in loader:
            break
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018


def test_c32_leaving_does_not_wait_for_queued_batches(leak_gauge):
    """A worker that is left stops after the batch it is making, not after all asked for."""
    loader = DataLoader(
        Deadly(hang, at=99),
        num_workers=1,
        prefetch_factor=16,
        collate_fn=lambda batch: time.sleep(0.2) or batch[0],
    )
    next(iter(loader))
    started = time.monotonic()
    gc.collect()
    assert time.monotonic() - started < 2


def test_c32_two_iterators_at_once(leak_gauge):
    """Two live iterators of one loader do not disturb each other."""
    loader = DataLoader(Deadly(hang, at=99), batch_size=2, num_workers=2)
    for a, b in zip(loader, loader, strict=True):
        assert torch.equal(a, b)


def test_loader_in_a_thread(leak_gauge):
    """A loader that lives in a thread works, and its workers outlive no thread that made them."""
    found = []
    loader = DataLoader(Deadly(hang, at=99), batch_size=2, num_workers=2)
    maker = threading.Thread(target=lambda: found.append(iter(loader)))
    maker.start()
    maker.join()
    (batches,) = found
    assert len(list(batches)) == 20
    del batches, found[:]


@pytest.fixture
def busy_generator(monkeypatch):
    """Threads of which one holds the lock of torch's generator, until told to stop.

    One alone would not do: it lets go of the lock before it waits for the interpreter's, which the
    forking thread has.
    """
    monkeypatch.setattr("fastfeed.process.REPORT_S", 0.5)
    stop = threading.Event()

    def draw():
        numbers = torch.empty(10_000_000)
        while not stop.is_set():
            numbers.uniform_()

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield stop
    stop.set()
    for thread in threads:
        thread.join()


def test_c35_worker_deadlocked_by_the_fork_is_forked_again(busy_generator, leak_gauge, caplog):
    """A child that waits for a lock copied closed is replaced, and no batch is lost or doubled."""

    class Stop(logging.Handler):
        def emit(self, record):
            busy_generator.set()

    handler = Stop(logging.WARNING)
    logging.getLogger("fastfeed").addHandler(handler)
    try:
        batches = list(DataLoader(Deadly(hang, at=99), batch_size=10, num_workers=2))
    finally:
        logging.getLogger("fastfeed").removeHandler(handler)
    assert [int(batch[0, 0]) for batch in batches] == [0, 10, 20, 30]
    assert "forked again" in caplog.text


def test_c35_a_lock_that_never_opens_is_named(busy_generator, monkeypatch):
    """If every child is silent the error says why, and what to do."""
    monkeypatch.setattr("fastfeed.workers._REPLACEMENTS", 1)
    with pytest.raises(WorkerError, match=r"has not reported.*fork.*threads.*forkserver"):
        list(DataLoader(Deadly(hang, at=99), batch_size=10, num_workers=2))


def test_a_fork_of_the_trainer_may_not_use_the_iterator():
    """In a forked child the iterator raises, and dropping it leaves the workers alone."""
    batches = iter(DataLoader(Deadly(hang, at=99), batch_size=2, num_workers=1))
    first = next(batches)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(batches)
        except WorkerError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            del batches, first
            gc.collect()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(batches)) == 19


def test_c30_death_is_seen_although_a_child_of_the_worker_lives(leak_gauge):
    """What a worker forked holds copies of its descriptors; its death is told all the same."""
    gate_read, gate_write = os.pipe()

    def fork_and_die():
        if os.fork() == 0:
            os.close(gate_write)
            os.read(gate_read, 1)  # lives until the test lets it go
            os._exit(0)
        os._exit(5)

    batches = iter(DataLoader(Deadly(fork_and_die, at=0), batch_size=2, num_workers=1))
    started = time.monotonic()
    with pytest.raises(WorkerError, match="exit code 5"):
        next(batches)
    assert time.monotonic() - started < 5
    os.close(gate_write)
    os.close(gate_read)


def test_c38_an_iterator_that_was_interrupted_has_ended():
    """A result may be lost in it; asking for more is an error rather than a wait for ever."""
    batches = iter(DataLoader(Deadly(hang, at=99), batch_size=2, num_workers=1))
    next(batches)
    receive = batches._receive

    def interrupted(timeout):
        receive(timeout)
        raise KeyboardInterrupt

    batches._receive = interrupted
    with pytest.raises(KeyboardInterrupt):
        for _ in range(20):
            next(batches)
    batches._receive = receive
    with pytest.raises(WorkerError, match="have ended"):
        for _ in range(20):
            next(batches)


def test_a_state_that_cannot_be_pickled_is_an_exception():
    """The worker lives on and says what it is."""

    class Odd(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

        def state_dict(self):
            return {"lock": threading.Lock()}

        def load_state_dict(self, state):
            pass

    batches = iter(DataLoader(Odd(), num_workers=1))
    with pytest.raises(TypeError, match="state of the data set"):
        next(batches)


def test_c49_a_worker_may_hold_batches_of_another_loader():
    """A replay buffer, say: its memory is not used again while a fork can see it."""
    source = DataLoader(Deadly(hang, at=-1, count=400), batch_size=4, num_workers=1)
    feed = iter(source)

    class Replay(Dataset):
        def __init__(self, batch):
            self.batch = batch

        def __len__(self):
            return 30

        def __getitem__(self, index):
            return self.batch.clone()

    replay = Replay(next(feed))
    expected = replay.batch.clone()
    again = iter(DataLoader(replay, batch_size=None, num_workers=1))
    replay.batch = None
    found = []
    for _ in range(30):
        next(feed)
        found.append(torch.equal(next(again), expected))
    assert all(found)
