"""What an epoch's iterator did so far, as a checkpoint needs it; it outlives the iterator."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastfeed.collating.fetch import has_state
from fastfeed.errors import EmptyBatchError
from fastfeed.indices import IndexStream, generators_of, put_back, samplers_of, states_of
from fastfeed.resume import Draws, LoaderState, Place
from fastfeed.sampler import ShardSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch
    from torch.utils.data import DataLoader


class Progress:
    """Keeps one epoch's place: the sampler's, and each worker's where the data has one in each.

    The iterator says what happened: `start`, `next`, `deliver`, `finish`. `capture` may be called
    by the same thread at any time.
    """

    def __init__(
        self,
        index_sampler: Any,
        generator: torch.Generator | None,
        *,
        epoch: int,
        resumed: LoaderState | None,
        snapshot_every: int,
        shard_sampler: ShardSampler | None = None,
    ) -> None:
        """`shard_sampler` is the one of them that counts epochs itself, if it is there."""
        self._samplers = list(samplers_of(index_sampler))
        self._generator = generator
        self._generators = generators_of(index_sampler, generator)
        self._resumed = resumed if resumed is not None and resumed.begun else None
        self._stream = IndexStream(
            index_sampler,
            self._generators,
            states_of(self._generators),
            snapshot_every=snapshot_every,
        )
        self._epoch = epoch if self._resumed is None else self._resumed.epoch
        self._begins = shard_sampler if self._resumed is None else None
        self._finished = False
        self._keeps_seed = False
        self._left_out = 0
        self.places: list[Place] | None = None
        """Of each worker, if the data has places of its own."""
        self._last: dict[int, Any] = {}
        self.ended: list[bool] = []
        self.next_worker = 0
        self.base_seed = 0
        self.live_state: Callable[[], Any] | None = None
        """Asks the data set itself, where it is in this process."""

    @property
    def epoch(self) -> int:
        """The epoch that is under way."""
        return self._epoch

    @property
    def delivered(self) -> int:
        """How many batches the loop got in this epoch, those before a resume included."""
        return self._stream.delivered + len(self._stream.ahead)

    def start(self, samplings: Iterator[Any], *, ordered: bool) -> None:
        """Take the sampler's iterator; go to the place of the state that is resumed, if any.

        `ordered` is false for iterable data sets, whose sampler says nothing.
        """
        self._stream.start(samplings, ordered=ordered)
        state = self._resumed
        if state is None:
            return
        if ordered:
            self._stream.resume(state)
            return
        self._stream.skip(state.delivered)
        if state.draws is not None:
            put_back(self._generators, state.draws.now)

    def next(self) -> tuple[int, Any]:
        """Return the number and the indices of the next batch; StopIteration if there is none."""
        found = self._stream.next()
        if self._begins is not None:
            # It begins its epoch only now, and another iterator may have begun one before.
            self._epoch, self._begins = self._begins.epoch - 1, None
        return found

    def deliver(self, number: int, *, worker: int = 0, state: Any = None) -> None:
        """Count a batch that the loop is given, or that is left out."""
        self._stream.deliver(number)
        if self.places is not None:
            self.places[worker] = self.places[worker].after(state)

    def leave_out(self) -> None:
        """Count a batch that the loop is not given, for all its samples were skipped."""
        self._left_out += 1

    def check_usable(self, given: int, shards: Any) -> None:
        """Raise EmptyBatchError at the end of an epoch of which the loop was given nothing.

        `shards` is the data set over shards, if there is one; it knows why.
        """
        if given or not self._left_out:
            return
        bad = None if shards is None else next(iter(shards.bad_samples), None)
        why = "" if bad is None else f"; the first one: {bad.message}"
        raise EmptyBatchError(
            f"no sample of the epoch could be used: all of its {self._left_out:,} batches were "
            f"skipped{why}",
            way_out="Run `fastfeed-shard verify --decode` on the data set",
        )

    @property
    def asks_for_state(self) -> bool:
        """Whether the epoch is under way over a data set that is asked for its state."""
        return self.live_state is not None and not self._finished

    def left_at(self, place: Place | None) -> None:
        """The iterator of the data set, in this process, is gone; this is where it was."""
        self.live_state = None
        self.places = self.places if place is None else [place]

    def begun_with(self, worker: int, state: Any) -> None:
        """Note the state in which a worker's data set began the epoch."""
        if self.places is not None:
            self.places[worker] = Place(state).at_beginning()

    def ended_with(self, worker: int, state: Any) -> None:
        """Note the state that a data set was left in when it had no more."""
        self._last[worker] = state

    def finish(self, *, stays: bool, keeps_seed: bool = False) -> None:
        """The epoch is over: the state is that of the next one's beginning.

        `stays` says that the data set goes on as it was left, here or in workers that live on;
        `keeps_seed` that these keep their seed.
        """
        self._finished, self._keeps_seed = True, keeps_seed
        self._stream.release()
        if self.places is not None:
            ended = enumerate(self.places)
            left = [Place(state) if (state := self._last.get(i)) else one for i, one in ended]
            self.places = [one.in_next_epoch() for one in left] if stays else None

    def capture(self) -> LoaderState:
        """Return the state; what the data is, the loader adds."""
        places = None if self.places is None else tuple(self.places)
        if places is not None and self.live_state is not None:
            live = self.live_state()
            places = places if live is None else (Place(live),)
        if places is not None:
            places = tuple(self._after_the_end(i, place) for i, place in enumerate(places))
        if self._finished:
            if places is not None:
                places = tuple(one.in_next_epoch() for one in places)
            state = resting(self._samplers[0], self._generator, epoch=self._epoch + 1)
            seed = self.base_seed if self._keeps_seed else None
            return replace(state, places=places, base_seed=seed)
        return LoaderState(
            epoch=self._epoch,
            begun=True,
            sampler_epoch=next((e for e in map(_epoch_of, self._samplers) if e is not None), None),
            base_seed=self.base_seed,
            places=places,
            ended=tuple(self.ended),
            next_worker=self.next_worker,
            **self._stream.capture(),
        )

    def _after_the_end(self, worker: int, place: Place) -> Place:
        """Return a worker's place, or for one that has no more where its data set was left."""
        state = self._last.get(worker)
        if state is None or not self.ended or not self.ended[worker]:
            return place
        return Place({**state, "ended": True})


def rewind(state: LoaderState, index_sampler: Any, generator: torch.Generator | None) -> None:
    """Put samplers and generators to where they were when the epoch of a state began."""
    holder = None
    for sampler in samplers_of(index_sampler):
        if holder is None and has_state(sampler):
            holder = sampler
            if state.sampler is not None:
                holder.load_state_dict(state.sampler)
        elif state.sampler_epoch is not None and _epoch_of(sampler) is not None:
            sampler.set_epoch(state.sampler_epoch)
    if state.draws is not None:
        draws = state.draws
        put_back(generators_of(index_sampler, generator), draws.begin if state.begun else draws.now)


def resting(index_sampler: Any, generator: torch.Generator | None, *, epoch: int) -> LoaderState:
    """Return the state before an epoch begins."""
    generators = generators_of(index_sampler, generator)
    holder = next((one for one in samplers_of(index_sampler) if has_state(one)), None)
    return LoaderState(
        epoch=epoch,
        begun=False,
        draws=Draws([], None, states_of(generators)) if generators else None,
        sampler=None if holder is None else holder.state_dict(),
    )


def data_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what a loader's data is, for a state to be compared with."""
    try:
        samples = len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        samples = None
    if isinstance(loader.sampler, ShardSampler):  # its state says more than batches and ranks
        return {"samples": samples, "shards": loader.sampler.fingerprint()}
    ranks = [getattr(one, "num_replicas", None) for one in samplers_of(loader._index_sampler)]  # noqa: SLF001
    return {
        "samples": samples,
        "batch size": loader.batch_size,
        "drop_last": loader.drop_last,
        "ranks": next((count for count in ranks if count is not None), 1),
    }


def _epoch_of(sampler: Any) -> int | None:
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None
