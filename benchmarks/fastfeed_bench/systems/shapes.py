"""The shapes of batches that `transport` moves: their samples, and how these become a batch.

Samples are made beforehand, and what makes a batch of them costs as little as it can, so that the
way from worker to consumer is what is measured. Batches are made of fresh memory, as real data
sets make them: torch moves a tensor that it has moved before for nothing.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of batch."""

    make: Callable[[], Any]
    """Makes a sample."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; None for the loader's default."""
    pool: int = 128
    """How many samples are made; they are handed out over and over."""


def samples_of(shape: Shape) -> list[Any]:
    """Return the samples of a shape, the same in every process."""
    torch.manual_seed(0)
    random.seed(0)
    return [shape.make() for _ in range(shape.pool)]


# Tensors


def _bytes_of(*size: int) -> torch.Tensor:
    return torch.randint(0, 256, size, dtype=torch.uint8)


def _image(dtype: torch.dtype) -> torch.Tensor:
    return _bytes_of(3, 224, 224).to(dtype)


def _many() -> dict[str, torch.Tensor]:
    return {f"feature_{number}": torch.rand(8) for number in range(100)}


def _tokens() -> dict[str, torch.Tensor]:
    length = random.randrange(256, 513)
    tokens = torch.randint(0, 50_000, (512,))
    tokens[length:] = 0
    mask = (torch.arange(512) < length).long()
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}


class Pair(NamedTuple):
    """Two views of one picture."""

    left: torch.Tensor
    right: torch.Tensor


class Nested(NamedTuple):
    """A sample of tuples within tuples."""

    views: Pair
    target: tuple[torch.Tensor, tuple[torch.Tensor, int]]


def _nested() -> Nested:
    views = Pair(_bytes_of(3, 32, 32), _bytes_of(3, 32, 32))
    return Nested(views, (torch.rand(4), (torch.rand(16), random.randrange(10))))


def _sparse() -> torch.Tensor:
    places = torch.randint(0, 10_000, (1, 100))
    return torch.sparse_coo_tensor(places, torch.rand(100), (10_000,), check_invariants=False)


def _fresh(samples: list[torch.Tensor]) -> list[torch.Tensor]:
    return [sample.clone() for sample in samples]


def _boxes() -> list[torch.Tensor]:
    return [torch.rand(4) for _ in range(random.randrange(2, 7))]


def _fresh_lists(samples: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    return [_fresh(sample) for sample in samples]


# Tensors of torchvision's own classes


def _wrapped() -> torch.Tensor:
    from torchvision import tv_tensors

    image: torch.Tensor = tv_tensors.Image(_bytes_of(3, 224, 224))
    return image


def _detection() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    from torchvision import tv_tensors

    count = random.randrange(1, 8)
    boxes = tv_tensors.BoundingBoxes(torch.rand(count, 4), format="XYXY", canvas_size=(224, 224))
    return _wrapped(), {"boxes": boxes, "labels": torch.randint(0, 90, (count,))}


def _fresh_detections(samples: list[tuple[Any, dict[str, Any]]]) -> tuple[Any, ...]:
    from torchvision import tv_tensors

    def fresh(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.as_subclass(torch.Tensor).clone()
        if type(tensor) is torch.Tensor:
            return copy
        wrapped: torch.Tensor = tv_tensors.wrap(copy, like=tensor)
        return wrapped

    made = [
        (fresh(image), {name: fresh(value) for name, value in target.items()})
        for image, target in samples
    ]
    return tuple(zip(*made, strict=True))


# Arrays and objects


def _arrays() -> dict[str, Any]:
    return {
        "signal": np.random.default_rng(random.randrange(1 << 30)).random((16, 256), np.float32),
        "offset": np.arange(16),
    }


def _stack_arrays(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _text(least: int, most: int) -> str:
    return "".join(random.choices(string.ascii_lowercase + " é", k=random.randrange(least, most)))


def _ragged() -> list[int]:
    return [random.randrange(50_000) for _ in range(random.randrange(16, 256))]


class Conversations:
    """A batch class of a user's own."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.titles = [sample["title"] for sample in samples]
        self.scores = [sample["score"] for sample in samples]
        self.turns = [sample["turns"] for sample in samples]


def _conversation() -> dict[str, Any]:
    turns = [_text(20, 60) for _ in range(random.randrange(1, 7))]
    return {"title": _text(50, 200), "score": random.random(), "turns": turns}


def _mixed() -> tuple[torch.Tensor, int, str]:
    return _bytes_of(3, 64, 64), random.randrange(1000), _text(20, 60)


SHAPES: dict[str, Shape] = {
    "uint8": Shape(partial(_image, torch.uint8)),
    "float32": Shape(partial(_image, torch.float32)),
    "many": Shape(_many),
    "strings": Shape(partial(_text, 100, 300)),
    "ragged": Shape(_ragged, list),
    "labels": Shape(partial(random.randrange, 1000)),
    "large": Shape(partial(_bytes_of, 200_000_000), pool=1),
    "tokens": Shape(_tokens),
    "nested": Shape(_nested),
    "wrapped": Shape(_wrapped),
    "detection": Shape(_detection, _fresh_detections),
    "arrays": Shape(_arrays, _stack_arrays),
    "sparse": Shape(_sparse, torch.stack),
    "scalars": Shape(partial(torch.rand, ()), _fresh),
    "boxes": Shape(_boxes, _fresh_lists),
    "objects": Shape(_conversation, Conversations),
    "bytes": Shape(partial(random.randbytes, 20_000), list),
    "mixed": Shape(_mixed),
}
"""By the name that the settings of a case carry."""
