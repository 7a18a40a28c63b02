"""Decodes what can be decoded of a batch with a library that fails as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch


def salvage(
    numbers: Sequence[int],
    decode: Callable[[Sequence[int]], list[torch.Tensor]],
    *,
    failures: int,
) -> dict[int, torch.Tensor]:
    """Return the pictures of those `numbers` that could be decoded, by number.

    `decode` returns the pictures of some numbers or raises RuntimeError. A part that fails is
    halved until the bad one stands alone; after so many failed calls what is left is given up.
    """
    found: dict[int, torch.Tensor] = {}
    waiting = [numbers]
    while waiting and failures > 0:
        part = waiting.pop()
        if not part:
            continue
        try:
            found.update(zip(part, decode(part), strict=True))
        except RuntimeError:
            failures -= 1
            if len(part) > 1:
                middle = len(part) // 2
                waiting += [part[middle:], part[:middle]]
    return found
