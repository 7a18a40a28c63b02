"""Reading every byte of a batch, whatever its form in memory."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fastfeed_bench.consume import dense, digest, digest_epoch, digest_tree, read_tensor, read_tree


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


TREE = {
    "tensor": torch.arange(6.0).reshape(2, 3),
    "array": np.arange(4),
    "texts": ["a", "bc"],
    "numbers": [[1, 2], [3]],
    "rest": (b"x", 1.5, True, "end"),
}


def changed(**parts):
    return {**TREE, **parts}


def test_all_of_a_tree_is_read():
    """Tensors, arrays, numbers, strings and attributes of objects count, wherever they lie."""
    assert read_tree([[1, 2], [3, 4.0]]) == 10
    assert read_tree({"a": torch.arange(4, dtype=torch.uint8)}) == 6
    assert read_tree(SimpleNamespace(part=[5, 6])) == 11
    assert read_tree((np.arange(3), [np.arange(3)])) == 6
    assert read_tree(["a", "b"]) == hash("a") + hash("b")
    assert read_tree([]) == read_tree({}) == 0


@pytest.mark.parametrize(
    "other",
    [
        changed(tensor=TREE["tensor"].reshape(3, 2)),
        changed(tensor=TREE["tensor"].double()),
        changed(tensor=TREE["tensor"].numpy()),
        changed(array=np.arange(4) + 1),
        changed(texts=["ab", "c"]),
        changed(numbers=[[1], [2, 3]]),
        changed(rest=list(TREE["rest"])),
        {**TREE, "more": 1},
        {("tensors" if name == "tensor" else name): part for name, part in TREE.items()},
    ],
)
def test_the_digest_of_a_tree_tells_types_shapes_names_and_values(other):
    """What is not the same batch has another digest; memory format and identity do not count."""
    assert digest_tree(other) != digest_tree(TREE)
    same = changed(tensor=TREE["tensor"].t().contiguous().t(), texts=["a", "b" + "c"])
    assert digest_tree(same) == digest_tree(TREE)


def test_the_digest_of_an_epoch_counts_batches():
    """An epoch without batches has none, which no judge takes for equal."""
    assert digest_epoch([])["batches"] == 0
    assert digest_epoch([1, 2]) == digest_epoch([2, 1])
    assert digest_epoch([1, 2]) != digest_epoch([1, 3])
