"""Places of pictures, marks that say what was written, and batches taken apart."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fastfeed.device.decoders.places import Marks, lay_out
from fastfeed.device.decoders.protocol import Encoded
from fastfeed.device.decoders.salvage import salvage

CPU = torch.device("cpu")


# Places and marks


SHAPES = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 90)), min_size=1, max_size=6)


@given(SHAPES, st.sampled_from([1, 3]))
def test_marks_say_what_was_written(shapes, channels):
    """A picture is good if all of it was written, and only then; places never overlap."""
    shapes = np.array(shapes, np.int32)
    places = lay_out(shapes, channels)
    memory = torch.zeros(places.nbytes + 64, dtype=torch.uint8)[64:]  # not at a storage's start
    for left_out in range(len(shapes)):
        marks = Marks(places, CPU)
        marks.put(memory)
        for number in range(len(shapes)):
            if number != left_out:
                places.view(memory, number).fill_(number + 1)
        verdict = marks.read(memory)
        assert verdict.unwritten.tolist() == [n == left_out for n in range(len(shapes))]
        assert not verdict.spilled.any()
    for number in range(len(shapes)):
        places.view(memory, number).fill_(number + 1)
    assert all((places.view(memory, n) == n + 1).all() for n in range(len(shapes)))
    assert marks.read(memory).good.all()


def test_marks_find_parts_and_spills():
    """Rows that were not written and a byte too many are each found."""
    places = lay_out(np.array([[50, 30], [60, 20], [40, 40]], np.int32), 3)
    memory = torch.zeros(places.nbytes, dtype=torch.uint8)
    marks = Marks(places, CPU)
    marks.put(memory)
    for number in range(3):
        places.view(memory, number).fill_(9)
    assert marks.read(memory).good.all()
    marks.put(memory)
    for number in range(3):
        places.view(memory, number)[:, :-1] = 9
    assert marks.read(memory).unwritten.all()
    for number in range(3):
        places.view(memory, number).fill_(9)
    memory[int(places.starts[1]) + 3 * int(places.planes[1])] ^= 1
    verdict = marks.read(memory)
    assert verdict.spilled.tolist() == [False, True, False]
    assert verdict.good.tolist() == [True, False, False]


def test_no_pictures_need_no_places():
    """An empty batch has places for nothing."""
    assert lay_out(np.empty((0, 2), np.int32), 3).nbytes == 0


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=12), st.integers(1))
def test_parts_are_the_batch_in_order(shapes, most):
    """Parts follow each other without a gap, and only one picture alone may be over the limit."""
    shapes = np.array(shapes, np.int32).reshape(-1, 2)
    numbers = np.arange(len(shapes))
    encoded = Encoded(torch.empty(0), numbers, numbers, shapes, np.zeros((len(shapes), 4)))
    found = []
    for place, part in encoded.parts(most):
        found += numbers[place].tolist()
        assert part.starts.tolist() == numbers[place].tolist()
        assert len(part) == 1 or int(part.shapes.prod(axis=1).sum()) * 3 <= most
    assert found == numbers.tolist()


# Libraries that fail as a whole


@given(st.integers(0, 40), st.sets(st.integers(0, 39), max_size=3))
def test_salvage_finds_all_but_the_bad(count, bad):
    """With few bad ones all others are found, each under its own number."""

    def decode(numbers):
        if bad & set(numbers):
            raise RuntimeError("one of them is bad")
        return [torch.tensor(number) for number in numbers]

    found = salvage(range(count), decode, failures=40)
    assert {number: int(picture) for number, picture in found.items()} == {
        number: number for number in range(count) if number not in bad
    }


def test_salvage_ends():
    """When everything fails, the effort is bounded and nothing is returned."""
    calls = []

    def decode(numbers):
        calls.append(numbers)
        raise RuntimeError("the device is gone")

    assert salvage(range(1000), decode, failures=7) == {}
    assert len(calls) == 7
