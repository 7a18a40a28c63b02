"""Reading every byte of a batch, whatever its form in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fastfeed_bench.consume import dense, digest, read_tensor


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_every_byte_is_read_in_any_memory_format(dtype):
    """The sum is that of all bytes as words, and channels_last is read without a copy."""
    plain = torch.randint(0, 255, (2, 3, 8, 8)).to(dtype)
    last = plain.to(memory_format=torch.channels_last)
    assert np.shares_memory(dense(last.numpy()), last.numpy())
    assert dense(last.numpy()).nbytes == plain.nbytes
    assert read_tensor(plain) > 0


def test_a_tail_shorter_than_a_word_is_read():
    """Eleven bytes are a word and three more."""
    tensor = torch.zeros(11, dtype=torch.uint8)
    tensor[10] = 7
    assert read_tensor(tensor) == 7


def test_the_digest_ignores_order_only():
    """The same samples in another order have the same digest; other samples have another."""
    assert digest([b"a", b"b"]) == digest([b"b", b"a"])
    assert digest([b"a", b"b"]) != digest([b"a", b"c"])
