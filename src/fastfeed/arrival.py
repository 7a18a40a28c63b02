"""The seam between the loop and its workers: what comes back for a job, whoever made it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fastfeed.collating.failure import rebuild
from fastfeed.collating.pack import unpack

if TYPE_CHECKING:
    from pathlib import Path

    from fastfeed.slots.lease import Lender
    from fastfeed.slots.region import Region
    from fastfeed.worker import Result

# Batches that a user may hold of one worker, beyond those on their way, before they are copied.
_KEPT = 2
_MANY_KEPT = "many batches are kept at a time; they are copied out of shared memory"
_FULL = "batches are larger than the shared memory of a worker; they are copied through its pipe"


class Opened(NamedTuple):
    """A batch that the loop can have."""

    batch: Any
    nbytes: int
    """Bytes of tensors and arrays that came through shared memory."""
    copied: str | None
    """Why it was copied, if it was."""


class Ask(NamedTuple):
    """A batch that the loop asks a worker for."""

    generation: int
    number: int
    index: Any
    epoch: int
    share: float = 0.0
    """Share of the pictures that are left to the GPU to decode."""


class Arrival(Protocol):
    """A result on the trainer's side."""

    @property
    def result(self) -> Result:
        """What the worker says of it."""
        ...

    @property
    def empty(self) -> bool:
        """Whether all samples of the batch were skipped."""
        ...

    def error(self) -> BaseException | None:
        """Return what the worker raised, if it did."""
        ...

    def open(self, *, prefetch: int) -> Opened:
        """Return the batch; `prefetch` batches of each worker may be on their way."""
        ...

    def give_up(self) -> None:
        """Let go of a batch that nobody will get."""
        ...

    @property
    def region(self) -> Region | None:
        """The shared memory that the batch lies in, if it does."""
        ...


class Pool(Protocol):
    """Workers of either kind, as the loop sees them."""

    @property
    def closed(self) -> bool:
        """Whether the workers were stopped."""
        ...

    def begin(self, worker: int, *, generation: int, told: int | None) -> None:
        """Have a worker begin an epoch; `told` is what the user told the data set that it is."""
        ...

    def send(self, worker: int, ask: Ask) -> None:
        """Give a worker the job of a batch."""
        ...

    def under_way(self, worker: int) -> int:
        """Return how many jobs a worker has of which no result was received."""
        ...

    def receive(self, timeout: float | None) -> Arrival | None:
        """Return the next result, waiting for it; None if the time is over, or `interrupt` came."""
        ...

    @property
    def most(self) -> int:
        """How many workers there may be; fewer once one could not be started."""
        ...

    def employ(self, workers: int) -> int:
        """Have so many workers at least; return how many are ready, for new ones take a while."""
        ...

    def tasks(self, workers: int) -> list[Path]:
        """Return the folders in /proc of the threads of the first so many workers."""
        ...

    def watch_for_interrupts(self) -> None:
        """Prepare for `interrupt`: from now on a thread receives while another sends."""
        ...

    def interrupt(self) -> None:
        """Have a `receive` in another thread return None: the one that waits, or the next."""
        ...

    def close(self, *, grace_s: float = ...) -> None:
        """Stop the workers; does nothing the second time."""
        ...


class ProcessArrival(NamedTuple):
    """From a worker process: the batch lies in its region, or in pieces that came beside."""

    result: Result
    private: list[bytes]
    lender: Lender

    @property
    def empty(self) -> bool:
        """Whether all samples of the batch were skipped."""
        return self.result.packed is None

    def error(self) -> BaseException | None:
        """Return the worker's exception, made anew."""
        failure = self.result.failure
        return None if failure is None else rebuild(failure, self.result.worker)

    def open(self, *, prefetch: int) -> Opened:
        """Return the batch: lying in the region, or copied if many are held."""
        packed, lender = self.result.packed, self.lender
        if packed is None:
            raise RuntimeError("a result without a batch is not delivered")
        # Beside those kept lie this one, whose copy is told with the next job, and what the worker
        # was asked for: at times one more than its turn, where batches go to who has least to do.
        room = lender.region.capacity // max(1, packed.nbytes) - prefetch - 2
        many = lender.lent >= min(room, prefetch + _KEPT)
        # What a worker made that has died since is copied too: nobody looks after its region.
        copy = many or lender.closed
        batch = unpack(packed, self.private, lender.open(self.result.extents), copy=copy)
        copied = _FULL if self.private else _MANY_KEPT if copy else None
        return Opened(batch, packed.nbytes, copied)

    @property
    def region(self) -> Region | None:
        """The worker's."""
        return self.lender.region

    def give_up(self) -> None:
        """Let the extents go back to the worker."""
        if not self.lender.closed:
            self.lender.open(self.result.extents).seal()


@dataclass(frozen=True, slots=True)
class ThreadArrival:
    """From a worker thread: the batch itself."""

    result: Result
    batch: Any = None
    raised: BaseException | None = None
    empty: bool = False

    def error(self) -> BaseException | None:
        """Return what was raised, as it was raised."""
        return self.raised

    def open(self, *, prefetch: int) -> Opened:  # noqa: ARG002 - nothing is lent
        """Return the batch."""
        return Opened(self.batch, 0, None)

    @property
    def region(self) -> None:
        """A thread has none."""
        return

    def give_up(self) -> None:
        """Nothing is held."""
