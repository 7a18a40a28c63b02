"""C36: what spawned workers are given is pickled once, and what cannot be is named."""

from __future__ import annotations

import functools
import multiprocessing
import socket
import subprocess
import sys
import threading
from multiprocessing import managers

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.loader import DataLoader
from fastfeed.parcel import Parcel, find_unpicklable


class Bag:
    """Any attributes."""

    def __init__(self, **parts):
        self.__dict__.update(parts)

    def method(self):
        return 1


trees = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(trees, st.integers(0, 40_000))
def test_what_is_packed_comes_out(tree, size):
    """Values of every kind, small and large arrays, the same object twice."""
    array = np.arange(size, dtype=np.int64)
    parcel = Parcel({"tree": tree, "array": array, "again": array, "column": array[::2]})
    found = parcel.open()
    assert found["tree"] == tree
    assert np.array_equal(found["array"], array)
    assert np.array_equal(found["column"], array[::2])
    assert found["again"] is found["array"]
    found["array"][:] = 7  # it is the worker's own
    assert np.array_equal(array, np.arange(size))


def test_tied_objects_travel_beside_the_pickle():
    """Tensors, locks and queues stay themselves: torch and multiprocessing hand them on."""
    context = multiprocessing.get_context("spawn")
    tensor, lock, queue = torch.arange(5), context.Lock(), context.Queue()
    ends = socket.socketpair()
    proxy = managers.ListProxy.__new__(managers.ListProxy)  # a manager would be a process more
    things = {"tensor": tensor, "view": tensor[1:], "lock": lock, "queue": queue, "proxy": proxy}
    found = Parcel({**things, "socket": ends[0]}).open()
    assert found["proxy"] is proxy
    assert found["socket"] is ends[0]
    for end in ends:
        end.close()
    assert found["tensor"] is tensor
    assert found["lock"] is lock
    assert found["queue"] is queue
    queue.close()
    queue.join_thread()


@pytest.mark.parametrize(
    ("thing", "path"),
    [
        (lambda: 1, "dataset (function)"),
        (Bag(transform=Bag(fn=threading.Lock())), "dataset.transform.fn (lock)"),
        (Bag(steps=[1, {"a": (0, lambda: 1)}]), "dataset.steps[1]['a'][1] (function)"),
        (functools.partial(print, threading.Lock()), "dataset.args[0] (lock)"),
        (Bag(file=Bag(own=threading.Lock()).method), "dataset.file.__self__.own (lock)"),
    ],
)
def test_c36_the_cause_is_named(thing, path):
    """Down to the attribute that cannot be pickled."""
    assert find_unpicklable(thing, "dataset") == path


def test_all_can_be_pickled():
    """Nothing is named then, tied objects included."""
    context = multiprocessing.get_context("spawn")
    assert find_unpicklable(Bag(lock=context.Lock(), tensor=torch.ones(2)), "dataset") is None


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_c36_error_before_any_worker_starts(method, leak_gauge):
    """Torch's exception, with a note that names the path; nothing is left behind."""
    dataset = Bag(transform=Bag(fn=lambda: 1), __getitem__=None)
    loader = DataLoader(dataset, sampler=[0], num_workers=2, multiprocessing_context=method)
    with pytest.raises((AttributeError, TypeError, ValueError)) as raised:
        iter(loader)
    assert "dataset.transform.fn" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("broken", ["collate_fn", "worker_init_fn"])
def test_c36_functions_of_the_loader_are_named(broken):
    """Not only the data set can be at fault."""
    loader = DataLoader(
        range(4), num_workers=1, multiprocessing_context="spawn", **{broken: lambda x: x}
    )
    with pytest.raises(Exception, match="lambda") as raised:
        iter(loader)
    assert "cannot be pickled" in "".join(raised.value.__notes__)


SCRIPT = """
import sys
import numpy as np
import torch
from torch.utils.data import Dataset
from fastfeed.loader import DataLoader

class Large(Dataset):
    def __init__(self):
        self.numbers = np.arange(5_000_000)
        self.shared = torch.zeros(4).share_memory_()
        self.tensor = torch.arange(9)
    def __len__(self):
        return 8
    def __getitem__(self, index):
        self.shared[index % 4] += 1
        self.numbers[index] = -index  # of the worker alone
        return self.numbers[index] + self.numbers[index + 10] + self.tensor[index]

def main():
    data = Large()
    loader = DataLoader(data, 2, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.tolist() for batch in loader], data.shared.tolist(), data.numbers[:8].tolist())
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_large_arrays_and_shared_tensors(tmp_path, method):
    """Arrays are the worker's own, shared tensors are everybody's, as with torch."""
    script = tmp_path / "large.py"
    script.write_text(SCRIPT + '\nif __name__ == "__main__":\n    main()\n')
    done = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    expected = [[i + 10, i + 11] for i in range(0, 8, 2)]
    assert done.stdout == f"{expected} {[2.0] * 4} {list(range(8))}\n"


def test_c36_script_without_a_main_guard(tmp_path):
    """Multiprocessing's own message, and an error that says what to look for; no hang."""
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT + "\nmain()\n")
    done = subprocess.run(
        [sys.executable, str(script), "spawn"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert "__main__" in done.stderr.splitlines()[-1]
