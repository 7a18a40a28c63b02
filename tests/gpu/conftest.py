"""Tests of this folder need a CUDA device; without one they are skipped, and counted."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda():
    """The first GPU, or a skip where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", 0)
