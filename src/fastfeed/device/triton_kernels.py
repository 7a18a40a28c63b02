"""Finds the Triton kernels, where there is Triton."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def triton_kernels() -> Any:
    """Return the module of kernels, None if there is no Triton."""
    try:
        from fastfeed.device import kernels
    except ImportError:
        return None
    return kernels
