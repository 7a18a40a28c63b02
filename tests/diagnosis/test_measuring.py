"""What is measured, and how: feeder, rounds, counters, probe; with clocks and machines of paper."""

from __future__ import annotations

import gc
import resource
import threading
import weakref
from types import SimpleNamespace

import pytest
import torch

from fastfeed.diagnosis import batches
from fastfeed.diagnosis.collect import feed_of, host_of, times_of, workers_of
from fastfeed.diagnosis.counters import (
    add_passed,
    computed_s,
    host_counters,
    own_counters,
    queued_s,
)
from fastfeed.diagnosis.feeder import Feeder
from fastfeed.diagnosis.probe import Probe
from fastfeed.diagnosis.rounds import Rounds, Run
from fastfeed.errors import OptionError
from fastfeed.options import AutoWorkers

pytestmark = pytest.mark.usefixtures("leak_gauge")


class Clock:
    """Time that only passes when something takes it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Loader:
    """Batches that each take some time to come, longer at the beginning of an epoch."""

    def __init__(self, clock, wait_s=0.03, length=50, workers=0, slow=None):
        self.clock, self.wait_s, self.length = clock, wait_s, length
        self.num_workers, self.slow = workers, slow
        self.epochs = 0

    def __iter__(self):
        self.epochs += 1
        self.clock.now += 5.0
        for number in range(self.length):
            late = self.slow is not None and number % self.num_workers == self.slow
            self.clock.now += self.wait_s * (10 if late else 1)
            yield torch.full((16, 4), float(number))


def rounds_of(clock, loader, step_s=0.01):
    def step(batch):
        clock.now += step_s

    feeder = Feeder(loader, clock, clock)
    run = Run(step, clock, lambda: None, lambda batch: batch, lambda _: {"seconds": clock.now})
    return Rounds(run, feeder), feeder


def test_phases_measure_what_they_name():
    """The step alone, from memory and from the loader; beginnings of epochs are no part of it."""
    clock = Clock()
    loader = Loader(clock)
    rounds, feeder = rounds_of(clock, loader)
    rounds.warm_up()
    for number in range(3):
        rounds.once(5.0, backwards=bool(number % 2))
    times = times_of(rounds.stretches)
    assert times.ceiling_s == pytest.approx(0.01)
    assert times.cached_s == pytest.approx(0.01)
    assert times.real_s == pytest.approx(0.04)
    assert times.wait_s == pytest.approx(0.03, rel=0.1)
    assert times.au == pytest.approx(0.25)
    assert loader.epochs > 1
    assert rounds.restarts_s == pytest.approx(loader.epochs * 5.03)
    assert rounds.waits.percentile(50) == pytest.approx(0.03, rel=0.2)
    feed = feed_of(rounds, feeder, to_device=False)
    assert (feed.kind, feed.workers) == ("none", ())
    assert feed.wait_cpu == pytest.approx(1.0)  # the clock of the CPU is the same here


def test_stretches_hold_whole_turns():
    """Each worker has its turn equally often, so that a slow one weighs what it weighs."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock, workers=4, slow=2, length=10_000))
    rounds.warm_up()
    rounds.once(1.0, backwards=False)
    assert len({len(turns) for turns in rounds.turns.values()}) == 1
    counters = {"seconds": 1.0} | {f"worker {number} cpu": 0.1 for number in range(4)}
    waits = [
        one.wait_s for one in workers_of(counters, rounds.turns, count=4, seconds=1.0, in_turn=True)
    ]
    assert waits == pytest.approx([0.03, 0.03, 0.3, 0.03])


def test_few_steps_are_enough_when_they_are_slow():
    """A step of seconds is run a few times, not for a given time."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock), step_s=30.0)
    rounds.warm_up()
    rounds.once(1.0, backwards=False)
    assert rounds.steps == 9


def test_a_device_is_given_no_more_than_it_does_in_the_time():
    """Giving it steps costs the host nothing, doing them takes the device long."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock, wait_s=0.0), step_s=0.0)
    given = []

    def synchronize():
        clock.now += 0.02 * len(given)
        given.clear()

    rounds._run.step, rounds._run.synchronize = given.append, synchronize
    rounds.warm_up()
    begin = clock.now
    rounds.once(3.0, backwards=False)
    assert clock.now - begin < 5.0 + 3.0 * 1.5  # an epoch begins, and steps that do not count
    begin = clock.now
    assert rounds.follow(rounds.here, 0.1) == pytest.approx(1.0)
    assert clock.now - begin < 2 * 9 * 0.15


def test_slow_first_steps_do_not_make_stretches_short():
    """Steps that were slow while memory was cold say nothing of how many fit into the time."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock, wait_s=0.0))
    quick = rounds._run.step
    rounds._run.step = lambda _: setattr(clock, "now", clock.now + 1.0)
    rounds.warm_up()
    rounds._run.step = quick
    for _ in range(3):
        rounds.once(5.0, backwards=False)
    assert rounds.stretches["ceiling"].steps > 2 * 1.0 / 0.01 * 0.9


def test_epochs_of_one_batch():
    """Where every batch begins an epoch, the beginnings are what the loop waits for."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock, length=1))
    rounds.warm_up()
    rounds.once(1.0, backwards=False)
    assert times_of(rounds.stretches).real_s == pytest.approx(5.04)


def test_batches_in_memory_are_bounded(monkeypatch):
    """Batches that are large are kept in smaller number."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock))
    monkeypatch.setattr("fastfeed.diagnosis.rounds._KEPT_BYTES", 3 * 16 * 4 * 4)
    rounds.warm_up()
    assert len(rounds.kept) == 3


@pytest.mark.parametrize(
    ("loader", "words"),
    [([], "yields no batch"), (iter([torch.ones(1)] * 5), "no more after 5 batches")],
)
def test_loaders_that_run_dry(loader, words):
    """A loader without batches, or one that cannot begin again, is named as the reason."""
    feeder = Feeder(loader, Clock(), Clock())
    with pytest.raises(OptionError, match=words):
        for _ in range(6):
            feeder.next()


def test_what_a_loader_says_of_itself():
    """Kind, number, order and the workers' own figures are asked of the loader, if it has them."""
    facts = SimpleNamespace(
        workers=[SimpleNamespace(worker=1, busy=SimpleNamespace(total_s=2.5), batches=7)],
        steps_s={"decode": 3.0},
        busy_s=4.0,
    )
    loader = SimpleNamespace(
        num_workers=AutoWorkers(3), worker_kind="thread", prefetch_factor=4, snapshot=lambda: facts
    )
    feeder = Feeder(loader, Clock(), Clock())
    assert (feeder.kind, feeder.count, feeder.stock, feeder.in_turn) == ("thread", 3, 12, False)
    assert feeder.counters() == {
        "worker 1 busy": 2.5,
        "worker 1 batches": 7,
        "step decode": 3.0,
        "busy": 4.0,
    }
    plain = Feeder([], Clock(), Clock())
    assert (plain.kind, plain.count, plain.in_turn, plain.counters()) == ("none", 0, True, {})


def test_workers_that_rest_are_no_workers():
    """A worker that made no batch, as AUTO leaves some, is not compared with the others."""
    counters = {
        "worker 0 busy": 0.9,
        "worker 0 batches": 5.0,
        "worker 1 busy": 0.0,
        "worker 1 batches": 0.0,
        "worker 1 cpu": 0.0,
    }
    (only,) = workers_of(counters, {}, count=3, seconds=1.0, in_turn=False)
    assert (only.number, only.busy, only.cpu) == (0, 0.9, None)


PAGESIZE = resource.getpagesize()
TASK = "({name}) S 1 1 1 0 -1 0 5 0 {faults} 0 {user} {system}" + " 0" * 25


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root, scale):
    """Write a machine of one worker that has run `scale` times so long."""
    write(
        root,
        {
            "proc/stat": f"cpu  {100 * scale} 0 50 {800 * scale} {100 * scale} 0 0 0 0 0\n",
            "proc/vmstat": f"pgpgin {1000 * scale}\npswpin {40 * scale}\npswpout {10 * scale}\n"
            f"workingset_refault_file {200_000 * scale // PAGESIZE}\n",
            "proc/pressure/io": f"some avg10=0.00 avg60=0 avg300=0 total={300_000 * scale}\n",
            "proc/pressure/memory": "some is not a line of the kernel\n",
            "proc/self/stat": "1 "
            + TASK.format(name="a (b) c", faults=3 * scale, user=0, system=0),
            "proc/self/io": f"rchar: {100 * scale}\nsyscr: {scale}\n",
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/memory.pressure": f"some avg10=0.00 total={200_000 * scale}\n",
            "sys/fs/cgroup/job/cpu.stat": f"nr_periods {10 * scale}\nnr_throttled {4 * scale}\n",
            "proc/7/stat": "7 "
            + TASK.format(name="w", faults=0, user=50 * scale, system=10 * scale),
            "proc/7/io": f"rchar: {9900 * scale}\nsyscr: {9 * scale}\n",
            "proc/7/task/7/schedstat": f"{600_000_000 * scale} {100_000_000 * scale} 5\n",
            "proc/7/task/8/schedstat": f"{100_000_000 * scale} 0 5\n",
        },
    )


def test_counters_of_a_recorded_machine(tmp_path):
    """What passed between two looks becomes shares of the time, each by its own counters."""
    machine(tmp_path, 1)
    before = host_counters([7], tmp_path)
    machine(tmp_path, 2)
    sums = {"seconds": 1.0}
    add_passed(sums, before, host_counters([7], tmp_path))
    stretch = SimpleNamespace(counters=sums, probe=Probe())
    host = host_of(
        {"real": stretch, "ceiling": SimpleNamespace(counters={}, probe=Probe())},
        cores=4,
        available=0.5,
    )
    assert host.io_pressure == pytest.approx(0.3)
    assert host.memory_pressure == pytest.approx(0.2)
    assert host.cpu_pressure is None
    assert host.iowait == pytest.approx(0.1)
    assert host.swapped_per_s == 50
    assert host.read_again == pytest.approx(0.2, rel=0.05)
    assert host.read_again_per_s == pytest.approx(200_000, rel=0.05)
    assert host.major_faults_per_s == 3
    assert host.throttled == pytest.approx(0.4)
    (worker,) = workers_of(sums, {}, count=1, seconds=1.0, in_turn=True)
    assert worker.cpu == pytest.approx(0.7)
    assert worker.queued == pytest.approx(0.1)
    assert worker.system == pytest.approx(0.1)
    assert sums["read bytes"] / sums["read calls"] == 1000


def test_counters_of_a_machine_that_says_nothing(tmp_path):
    """Counters that are not there are left out, and a process that is gone is no error."""
    assert set(host_counters([99], tmp_path)) <= {"process queued"}


def test_counters_never_fall():
    """A counter that fell belongs to another process now; one that is new has no difference."""
    sums = {}
    add_passed(sums, {"a": 5.0, "b": 1.0}, {"a": 3.0, "b": 4.0, "c": 9.0})
    assert sums == {"a": 0.0, "b": 3.0}


def test_own_time():
    """This thread's computing shows in its counters."""
    before, begin = own_counters(), computed_s()
    while own_counters()["loop user"] + own_counters()["loop system"] < before["loop user"] + 0.05:
        pass
    after = own_counters()
    assert after["process"] > before["process"]
    assert computed_s() > begin
    assert queued_s(b"5 2000000000 7\n") == 2.0
    assert queued_s(b"what is this") == 0.0


def test_probe_is_held_up_by_python():
    """Threads that compute in Python hold the probe up; it counts, ends, and can begin again."""
    probe, ending = Probe(), threading.Event()

    def compute():
        while not ending.is_set():
            sum(range(2000))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            with probe:
                before = own_counters()["loop user"]
                while own_counters()["loop user"] < before + 0.05:
                    sum(range(2000))
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    assert probe.woken > 4
    assert probe.late > 0.5


def test_batches_as_trees():
    """Tensors anywhere in a batch are moved, copied and cut; what is none stays."""
    batch = {"x": torch.arange(20).reshape(10, 2), "more": (torch.ones(10), ["name"]), "n": 3}
    copy = batches.kept(batch)
    assert torch.equal(copy["x"], batch["x"])
    assert copy["x"].data_ptr() != batch["x"].data_ptr()
    assert copy["more"][1] == ["name"]
    assert batches.samples(batch) == 10
    assert batches.nbytes(batch) == 20 * 8 + 10 * 4
    half, scale = batches.resized(batch)
    assert (half["x"].shape[0], scale) == (5, 0.5)
    double, scale = batches.resized({"x": torch.ones(2, 3)})
    assert (double["x"].shape[0], scale) == (4, 2.0)
    assert batches.resized({"x": torch.ones(10), "all": torch.ones(3)}) is None
    assert batches.resized("nothing") is None
    assert batches.samples([]) == 1
    assert batches.moved(batch, None) is batch
    moved = batches.moved(batch, torch.device("meta"))
    assert moved["more"][0].device.type == "meta"


def test_threads_of_the_step_are_not_the_loaders():
    """What other threads do for each step also in the ceiling phase is the step's own."""
    clock = Clock()
    rounds, feeder = rounds_of(clock, Loader(clock))
    figures = {"real": (2.0, 40, 1.0, 0.2), "ceiling": (1.0, 80, 0.8, 0.1)}
    for phase, (seconds, steps, process, queued) in figures.items():
        stretch = rounds.stretches[phase]
        stretch.steps = steps
        stretch.counters = {"seconds": seconds, "process": process, "process queued": queued}
    feed = feed_of(rounds, feeder, to_device=False)
    assert feed.other_cpu == pytest.approx((1.0 - 0.8 / 2) / 2.0)
    assert feed.other_queued == pytest.approx((0.2 - 0.1 / 2) / 2.0)


def test_a_step_is_compared_by_its_fastest_runs():
    """Whatever else the machine does makes some runs longer, and none shorter."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock))
    rounds.here = "whole"
    noise = iter([0.0, 0.3, 0.2, 0.0] + [0.5, 0.1] * 20)
    rounds._alone = lambda batch, _: (1.0 if batch == "whole" else 0.5) + next(noise)
    assert rounds.follow("half", 0.1) == pytest.approx(0.5)


def test_kept_batches_go_with_the_rounds():
    """Nothing holds them in a circle: memory may be what the job lacks."""
    clock = Clock()
    rounds, _ = rounds_of(clock, Loader(clock))
    rounds.warm_up()
    kept = weakref.ref(rounds.kept[0])
    gc.disable()
    try:
        del rounds, _
        assert kept() is None
    finally:
        gc.enable()


def test_one_pause_of_the_collector_is_no_rate():
    """The longest may have fallen into the time by chance; many pauses are told."""
    ceiling = SimpleNamespace(counters={}, probe=Probe())
    shares = []
    for all_s, longest_s in ((0.2, 0.2), (0.4, 0.02)):
        probe = Probe()
        probe.collecting_s, probe.longest_s = all_s, longest_s
        real = SimpleNamespace(counters={"seconds": 1.0}, probe=probe)
        host = host_of({"real": real, "ceiling": ceiling}, cores=4, available=None)
        shares.append(host.collecting)
    assert shares == pytest.approx([0.0, 0.38])


def test_workers_of_short_epochs_are_counted_while_they_live():
    """Counters begin anew with the workers of each epoch; what passed between looks is kept."""
    clock = Clock()
    loader = Loader(clock, wait_s=0.03, length=20, workers=1)
    rounds, _ = rounds_of(clock, loader)
    began = [0.0, 0]

    def look(_):
        if began[1] != loader.epochs:
            began[:] = clock.now, loader.epochs
        return {"seconds": clock.now, "worker 0 cpu": 0.9 * (clock.now - began[0])}

    rounds._run.look = look
    rounds.warm_up()
    rounds.once(10.0, backwards=False)
    assert loader.epochs > 3
    counters = rounds.stretches["real"].counters
    assert counters["worker 0 cpu"] / counters["seconds"] == pytest.approx(0.9, rel=0.05)
