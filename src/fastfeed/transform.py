"""Runs the user's `transform=` on a sample with random numbers that belong to the sample."""

from __future__ import annotations

import inspect
import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The global generators are shared by all threads of a process: one sample at a time uses them.
_GLOBAL_GENERATORS = threading.Lock()


class Transform:
    """Calls a user's function with a sample (a dict) and seeds its random numbers.

    A function with a parameter named `generator` gets a `numpy.random.Generator` of its own and
    runs in several threads at a time. For any other, the global generators of `random`, numpy and
    torch are seeded from (seed, epoch, sample), and one thread at a time runs it.
    """

    def __init__(self, function: Callable[..., dict[str, Any]]) -> None:
        self.function = function
        try:
            self.takes_generator = "generator" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # some callables written in C have no signature
            self.takes_generator = False

    def __call__(self, sample: dict[str, Any], draw: tuple[int, int, int]) -> dict[str, Any]:
        """Return what the function makes of a sample."""
        entropy = np.random.SeedSequence([word & 0xFFFFFFFFFFFFFFFF for word in draw])
        if self.takes_generator:
            generator = np.random.Generator(np.random.PCG64(entropy))
            return self._made(self.function(sample, generator=generator), draw)
        words = entropy.generate_state(3).tolist()
        with _GLOBAL_GENERATORS, _restored():
            random.seed(words[0])
            np.random.seed(words[1])  # noqa: NPY002 - the user's function may use the global one
            torch.default_generator.manual_seed(words[2])
            return self._made(self.function(sample), draw)

    def _made(self, result: dict[str, Any] | None, draw: tuple[int, int, int]) -> dict[str, Any]:
        if result is None:
            raise OptionError(
                f"transform= returned None for sample {draw[2]}",
                way_out="End the function with `return sample`",
            )
        return result


@contextmanager
def _restored() -> Iterator[None]:
    """Leave the global generators as they were, except in a worker, where nobody else draws."""
    if get_worker_info() is not None:
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
