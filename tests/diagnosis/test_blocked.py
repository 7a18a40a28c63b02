"""What threads wait in, from /proc as it was recorded, and whose code it is."""

from __future__ import annotations

import functools

import pytest
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fastfeed.diagnosis.blocked import Looks
from fastfeed.diagnosis.code import code_of
from fastfeed.diagnosis.counters import host_counters

REST = " 0x0 0x1 0x7ffd48b451a0 0x7f866d6cc503\n"


def looked(root, calls, machine="x86_64"):
    """Return what is counted of one thread for each call, its descriptor 3 being a pipe."""
    task = root / "7/task/7"
    (task / "fd").mkdir(parents=True, exist_ok=True)
    for number, target in (("3", "pipe:[12]"), ("4", "/data/a.jpg")):
        (task / "fd" / number).unlink(missing_ok=True)
        (task / "fd" / number).symlink_to(target)
    looks = Looks(root, machine)
    for call in calls:
        (task / "syscall").write_text(call)
        looks.look(["7/task/7"])
    return looks


def test_of_many_threads_some_are_looked_at_each_time(tmp_path):
    """However many there are, all have their turns, and one look stays short."""
    tasks = [f"{number}/task/{number}" for number in range(20)]
    for task in tasks:
        (tmp_path / task).mkdir(parents=True)
        (tmp_path / task / "syscall").write_text("230" + REST)
    looks = Looks(tmp_path, "x86_64")
    looks.look(tasks)
    assert looks.found["sleep"] == 8
    for task in tasks[8:]:
        (tmp_path / task / "syscall").write_text("61" + REST)
    for _ in range(4):
        looks.look(tasks)
    assert looks.found == {"sleep": 16, "child processes": 24}


@pytest.mark.parametrize(
    ("call", "machine", "wait"),
    [
        ("230" + REST, "x86_64", "sleep"),
        ("115" + REST, "aarch64", "sleep"),
        ("202" + REST, "x86_64", "locks and other threads"),
        ("98" + REST, "aarch64", "locks and other threads"),
        ("61" + REST, "x86_64", "child processes"),
        ("260" + REST, "aarch64", "child processes"),
        ("45 0x4" + REST, "x86_64", "pipes and sockets"),
        ("0 0x3" + REST, "x86_64", "pipes and sockets"),
        ("0 0x4" + REST, "x86_64", "files"),
        ("63 0x4" + REST, "aarch64", "files"),
        ("17 0x9" + REST, "x86_64", "files"),  # closed meanwhile
        ("257" + REST, "x86_64", "files"),
        ("-1 0x7ffd48b451a0 0x7f866d6cc503\n", "x86_64", "files"),
    ],
)
def test_calls_say_what_is_waited_for(tmp_path, call, machine, wait):
    """A call is known by its number, a read by what it reads; a page fault is no call."""
    assert looked(tmp_path, [call], machine).parts(ours=False) == ((wait, 1.0),)


def test_threads_that_compute_or_are_gone_do_not_count(tmp_path):
    """Who runs waits for nothing; what cannot be looked at is told."""
    looks = looked(tmp_path, ["running\n", "", "999" + REST])
    assert (looks.parts(ours=False), looks.why) == ((), "")
    looks.look(["8/task/8"])
    assert looks.why == "no such file or directory"


def test_machines_with_other_numbers_are_not_guessed_at(tmp_path):
    """Of a machine whose calls are not listed nothing is seen, and the reason is told."""
    looks = looked(tmp_path, ["98" + REST], machine="ppc64le")
    assert looks.parts(ours=False) == ()
    assert looks.why == "the system calls of ppc64le have other numbers"


def test_locks_of_our_own_threads_may_be_the_gil(tmp_path):
    """Whoever looks holds the GIL, so that others of the process seem to wait for a lock."""
    looks = looked(tmp_path, ["202" + REST] * 3 + ["230" + REST])
    assert looks.parts(ours=False) == (("locks and other threads", 0.75), ("sleep", 0.25))
    assert looks.parts(ours=True) == (("sleep", 1.0),)


def test_bytes_of_all_interfaces(tmp_path):
    """What came over the network is the sum of its interfaces."""
    device = tmp_path / "proc/self/net/dev"
    device.parent.mkdir(parents=True)
    device.write_text(
        "Inter-|   Receive  \n face |bytes packets\n    lo: 1500 3 0\n  eth0:99 1 0 0\n"
    )
    assert host_counters([], tmp_path)["received bytes"] == 1599


class Rows(TensorDataset):
    """A data set of the user's, which torch's is beneath."""

    def __getitem__(self, index):
        return index


class Lines(IterableDataset):
    """One that is iterated."""

    def __iter__(self):
        return iter([])


class Called:
    """A callable without a name of its own."""

    def __call__(self, samples):
        return samples


def test_whose_code_makes_samples():
    """The user's functions are named with their place; torch's own are not theirs."""
    assert code_of([]) == ""
    assert code_of(DataLoader(TensorDataset())) == ""
    inner = DataLoader(Subset(Rows(), [0]), collate_fn=Called())
    assert code_of(inner).startswith("Rows.__getitem__ (test_blocked.py:")
    assert " and collate_fn=Called (test_blocked.py:" in code_of(inner)
    assert code_of(DataLoader(Lines())).startswith("Lines.__iter__ (")
    partial = DataLoader(Rows(), collate_fn=functools.partial(looked, None))
    assert "collate_fn=partial (test_blocked.py:" in code_of(partial)
