"""Hugging Face's Trainer with loaders of ours, for training, evaluation and prediction."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch.utils.data
from transformers import Trainer

from fastfeed.integrations.rebuild import like

if TYPE_CHECKING:
    from collections.abc import Iterator


class FastfeedLoaders:
    """Mixin for any class derived from `Trainer`; name it first among the bases.

    `loader_arguments` are arguments of `fastfeed.DataLoader` beyond those that the trainer sets
    from its own, for example `{"worker_threads": 2}`.
    """

    loader_arguments: ClassVar[dict[str, Any]] = {}
    accelerator: Any

    def get_train_dataloader(self) -> Any:
        """Return the trainer's loader, as one of ours."""
        with self._ours():
            return super().get_train_dataloader()  # type: ignore[misc]

    def get_eval_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trainer's loader, as one of ours."""
        with self._ours():
            return super().get_eval_dataloader(*args, **kwargs)  # type: ignore[misc]

    def get_test_dataloader(self, *args: Any, **kwargs: Any) -> Any:
        """Return the trainer's loader, as one of ours."""
        with self._ours():
            return super().get_test_dataloader(*args, **kwargs)  # type: ignore[misc]

    @contextmanager
    def _ours(self) -> Iterator[None]:
        """Have the loader made again as ours on its way to Accelerate, which keeps it ours."""
        accelerator = self.accelerator
        prepare = accelerator.prepare

        def prepare_ours(*things: Any, **options: Any) -> Any:
            made = (
                like(thing, **self.loader_arguments)
                if isinstance(thing, torch.utils.data.DataLoader)
                else thing
                for thing in things
            )
            return prepare(*made, **options)

        accelerator.prepare = prepare_ours
        try:
            yield
        finally:
            del accelerator.prepare


class FastfeedTrainer(FastfeedLoaders, Trainer):
    """`transformers.Trainer` with loaders of ours; everything else is as ever."""
