"""Batches that the loop keeps, near the limit of a worker's region."""

from __future__ import annotations

import pytest
import torch

from fastfeed.arrival import ProcessArrival
from fastfeed.collating.pack import pack
from fastfeed.slots.lease import Lender
from fastfeed.slots.region import Region
from fastfeed.slots.writer import SlotWriter
from fastfeed.worker import Job, WorkerSetup, without_batch

PAGE = 4096
SETUP = WorkerSetup(0, 0, 1, 1, 0)


class Worker:
    """A worker in this process, that makes a batch of a page as soon as it is asked for one."""

    def __init__(self, batches):
        self.region = Region(batches * PAGE)
        self.region.close_descriptor()
        self.lender = Lender(self.region)
        self._writer = SlotWriter(self.region)
        self.arrivals = []

    def send(self):
        """Ask for one more, and send along what became free, as the pool does."""
        self._writer.give_back(self.lender.returned())
        self._writer.begin()
        packed, pieces = pack(torch.full((PAGE,), 7, dtype=torch.uint8), self._writer)
        result = without_batch(SETUP, Job(0, 0, None, 0, []))
        result = result._replace(packed=packed, extents=self._writer.commit())
        private = [piece.tobytes() for piece in pieces]
        self.arrivals.append(ProcessArrival(result, private, self.lender))


@pytest.mark.parametrize("prefetch", [1, 2, 4])
@pytest.mark.parametrize("spare", range(6))
def test_kept_batches_leave_room_for_those_under_way(prefetch, spare):
    """A worker with a batch more than its turn has room for all while others are kept.

    Beside those that are kept its region holds the one that the loop is taking, and `prefetch` + 1
    that it was asked for meanwhile.
    """
    worker = Worker(prefetch + 2 + spare)
    for _ in range(prefetch + 1):
        worker.send()
    kept, ways = [], []
    for _ in range(4 * (prefetch + spare + 2)):
        arrival = worker.arrivals.pop(0)
        worker.send()  # the loop asks for the next one before it opens this one
        opened = arrival.open(prefetch=prefetch)
        kept.append(opened.batch)
        ways.append(opened.copied)
        assert not arrival.private
    assert worker.lender.lent == min(spare, prefetch + 2)
    assert ways.count(None) == worker.lender.lent
    assert all(batch.unique().tolist() == [7] for batch in kept)


def test_a_region_without_room_holds_up_nobody():
    """Where not even those under way have room, batches come by the pipe, and are as right."""
    worker = Worker(2)
    for _ in range(4):
        worker.send()
    for _ in range(20):
        arrival = worker.arrivals.pop(0)
        worker.send()
        opened = arrival.open(prefetch=3)
        assert opened.copied is not None
        assert opened.batch.unique().tolist() == [7]
