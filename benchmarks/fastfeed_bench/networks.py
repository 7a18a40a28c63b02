"""The networks that train-feed trains."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Network:
    """A network of torchvision's, and the batch it is trained with."""

    name: str
    batch: int
    floor: int
    """Least img/s of made-up batches on an H200; below it something else was on the machine."""


NETWORKS = {
    "resnet18": Network("resnet18", batch=512, floor=18_000),
    "resnet50": Network("resnet50", batch=256, floor=4_800),
}
