"""What the kernel counts of a process."""

from __future__ import annotations

import mmap
import os
from itertools import count

import pytest

from fastfeed_bench.processes import minor_faults
from fastfeed_bench.systems.faults import FaultSession

PAGES = 200


def touch(pages):
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    for page in range(pages):
        memory[page * mmap.PAGESIZE] = 1
    memory.close()
    return pages


def test_page_faults_are_counted_by_the_kernel():
    """Memory that is written for the first time costs faults, however large its pages are."""
    before = minor_faults(os.getpid())
    touch(PAGES)
    assert minor_faults(os.getpid()) > before


def test_a_process_that_has_ended_has_no_faults():
    """A worker that ended meanwhile is no error."""
    assert minor_faults(2**22 + 1) == 0


class Holding:
    """A batch that holds a descriptor as long as it lives, as a tensor of torch's does."""

    def __init__(self):
        self.descriptor = os.open(os.devnull, os.O_RDONLY)

    def __del__(self):
        os.close(self.descriptor)


@pytest.mark.parametrize(("make", "held"), [(Holding, 1.0), (lambda: [1, 2], 0.0)])
def test_descriptors_of_kept_batches_are_told_from_growth(make, held):
    """Nothing grows from batch to batch, and a kept one holds what it holds."""
    batches = (make() for _ in count())
    figures = FaultSession("", loader=None, batches=batches).run()
    assert figures["descriptors_per_kept_batch"] == held
    assert figures["descriptors_grown_per_batch"] < 0.1
    assert figures["faults_per_batch"] < PAGES


def test_page_faults_of_batches_are_counted_each():
    """A batch of fresh memory costs a fault a page at the most, and not none."""
    batches = (touch(PAGES) for _ in count())
    figures = FaultSession("", loader=None, batches=batches).run()
    assert 0 < figures["faults_per_batch"] < 2 * PAGES
