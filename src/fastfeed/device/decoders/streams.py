"""The stream that a decoder works on, and its queues. A CPU, the device of tests, has none."""

from __future__ import annotations

import os
from contextlib import suppress

import torch

_CUDAS_QUEUES = 8


def gpu_queues() -> int:
    """Return how many queues of the hardware streams are spread over, as CUDA was told."""
    with suppress(KeyError, ValueError):
        return int(os.environ["CUDA_DEVICE_MAX_CONNECTIONS"])
    return _CUDAS_QUEUES


def stream_handle(device: torch.device) -> int:
    """Return the number by which C libraries know the current stream."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def settle(device: torch.device) -> None:
    """Block the thread until the current stream is empty.

    The JPEG engines of Hopper write when the call is made, whatever the stream still holds: an
    event on the device does not hold them back, only waiting on the host does.
    """
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
