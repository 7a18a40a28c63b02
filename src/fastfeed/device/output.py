"""What the training step receives: normalised on its own stream, as new tensors or always the same.

Runs in the consumer's thread, on its current stream, so that nothing has to wait for anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from fastfeed.device.cut import normalize
from fastfeed.device.device import explained
from fastfeed.device.transfer import map_leaves
from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastfeed.device.device import Device
    from fastfeed.device.stage import Moved
    from fastfeed.fields import Normalize

OutputKind = Literal["fresh", "static"]


class Output:
    """Makes the last step of every batch of a loader."""

    def __init__(
        self,
        device: Device,
        normalizes: Mapping[str, Normalize],
        *,
        kind: OutputKind = "fresh",
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._device = device
        self._normalizes = normalizes
        self._told = {
            name: torch.tensor([one.mean, one.std], dtype=torch.float32).to(device.target)
            for name, one in normalizes.items()
        }
        self._fixed: list[torch.Tensor] | None = [] if kind == "static" else None
        self._transform = transform

    def deliver(self, moved: Moved) -> Any:
        """Return the batch for the calling thread's current stream; DeviceError if that fails."""
        batch = moved.batch
        with explained(self._device.target):
            self._device.hand_over(moved.sent, moved.mark)
            if self._normalizes or self._fixed is not None:
                batch = self._finish(batch)
        return batch if self._transform is None else self._transform(batch)

    def _finish(self, batch: Any) -> Any:
        """Normalise what is to be normalised, and put all into the fixed tensors, if there are."""
        names = {id(batch[name]): name for name in self._normalizes}
        turn = 0

        def finish(leaf: Any) -> Any:
            nonlocal turn
            name = names.get(id(leaf))
            if not isinstance(leaf, torch.Tensor) or (name is None and self._fixed is None):
                return leaf
            dtype = leaf.dtype if name is None else getattr(torch, self._normalizes[name].dtype)
            out = self._out(turn, leaf, dtype)
            turn += 1
            if name is None:
                out.copy_(leaf, non_blocking=True)
            else:
                normalize(leaf, self._told[name], out)
            return out

        return map_leaves(batch, finish)

    def _out(self, turn: int, leaf: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor that a leaf goes into.

        A fixed one is written in the order of the consumer's stream: what reads the batch before is
        in front, and a graph captured over it finds each batch in its place.
        """
        if self._fixed is None or turn == len(self._fixed):
            out = torch.empty_like(leaf, dtype=dtype)
            if self._fixed is not None:
                self._fixed.append(out)
            return out
        out = self._fixed[turn]
        if out.shape != leaf.shape or out.dtype != dtype:
            raise OptionError(
                f'output="static": a batch holds {list(leaf.shape)} of {dtype} where the first had '
                f"{list(out.shape)} of {out.dtype}",
                way_out='Use drop_last=True and fields of one shape, or output="fresh"',
            )
        return out
