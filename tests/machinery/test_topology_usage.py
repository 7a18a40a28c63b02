"""What running workers take of the machine, from recorded trees of /proc."""

from __future__ import annotations

import os

import pytest

from fastfeed.topology import room_for, runnable_s, threads_of

MIB = 1 << 20


def worker(root, *, unshared=100 * MIB, shared=50 * MIB, left=10_000 * MIB, files=1024):
    """Record a machine on which process 7 is a worker; sizes are bytes."""
    for name, text in {
        "proc/7/smaps_rollup": (
            "5590-7ffd ---p 00000000 00:00 0    [rollup]\n"
            f"Pss_Shmem:   {shared // 2048} kB\nPrivate_Clean: 0 kB\n"
            f"Private_Dirty:   {unshared // 1024} kB\n"
        ),
        "proc/meminfo": f"MemAvailable: {left // 1024} kB\n",
        "proc/self/limits": f"Limit  Soft  Hard\nMax open files  {files}  9999  files\n",
        "proc/self/fd/0": "",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_runnable_is_running_and_standing_in_line(tmp_path):
    """The kernel's two figures count together, of all threads that are named."""
    for name, text in {"a": "1500000000 500000000 9", "b": "1000000000 0 1"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert runnable_s([tmp_path / "a", tmp_path / "b"]) == pytest.approx(3.0)
    assert runnable_s([tmp_path / "a", tmp_path / "gone"]) is None
    assert runnable_s([]) is None


def test_threads_of_this_process():
    """Each thread is a folder; a process that has ended has none."""
    assert any(folder.name == str(os.getpid()) for folder in threads_of(os.getpid()))
    assert threads_of(0) == []


@pytest.mark.parametrize(
    ("machine", "room"),
    [
        ({}, 33),  # half of 10,000 MiB for workers of 150
        ({"left": 400 * MIB}, 1),
        ({"left": 200 * MIB}, 0),
        ({"files": 65}, 4),  # half of 64 descriptors, eight for each
        ({"files": 0}, 0),
        ({"unshared": 0, "shared": 0}, 0),  # not told
    ],
)
def test_room_for_more_workers(tmp_path, machine, room):
    """Memory and descriptors that are left bound how many more there may be."""
    assert room_for(7, worker(tmp_path, **machine)) == room


def test_no_room_where_nothing_is_known(tmp_path):
    """A machine that tells nothing is taken to have no room."""
    assert room_for(7, tmp_path) == 0
