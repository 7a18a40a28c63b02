"""The Triton kernels, run by Triton's interpreter on the CPU: the same as torch and as the CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import numpy as np, torch
from fastfeed.decoding.defer import CUT_FIELDS
from fastfeed.device import cut, kernels
from fastfeed.device.decoders import places as P
from fastfeed.device.triton_kernels import triton_kernels

random = np.random.default_rng(0)

# Cut: every way of turning, down and up, outside and inside, planes and pixels.
pictures, cuts = [], []
for number in range(12):
    h, w = int(random.integers(20, 60)), int(random.integers(20, 60))
    planar = number % 2
    pixels = torch.from_numpy(random.integers(0, 256, (3, h, w) if planar else (h, w, 3), np.uint8))
    pictures.append(pixels if planar else pixels.permute(2, 0, 1))
    x, y = int(random.integers(0, 8)), int(random.integers(0, 8))
    bw, bh = w - x - int(random.integers(0, 6)), h - y - int(random.integers(0, 6))
    sh, sw = (16, 18) if number < 8 else (40, 40)
    ways = [(1, 0, 0, 0, 1, 0), (1, 0, 0, 0, -1, 15), (-1, 0, 15, 0, 1, 0), (0, 1, 0, 1, 0, 0),
            (1, 0, -3, 0, 1, -2), (0, -1, 15, 1, 0, 2)]
    cuts.append((h, w, 3, x, y, bw, bh, sh, sw, *ways[number % len(ways)]))
cuts = np.array(cuts, np.int32)
rows = np.arange(12)[::-1].copy()
sources = cut.Sources.of(pictures)
wanted = torch.full((12, 16, 16, 3), 7, dtype=torch.uint8)
cut.cut_into(wanted, rows, sources, cuts, whole=True)
found = torch.full((12, 16, 16, 3), 9, dtype=torch.uint8)
cut.launch(kernels, found, rows, sources, cuts, whole=True)
apart = (wanted.int() - found.int()).abs()
assert apart.max() <= 1, apart.amax((1, 2, 3))
assert apart.float().mean() < 0.2

# Normalise: equal to the bit.
levels = torch.from_numpy(random.integers(0, 256, (2, 5, 7, 3), np.uint8)).permute(0, 3, 1, 2)
told = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])
for dtype in (torch.float32, torch.float16):
    one, other = (torch.empty_like(levels, dtype=dtype) for _ in range(2))
    cut.normalize(levels, told, one)
    cut.launch_normalize(kernels, levels, told, other)
    assert torch.equal(one, other), (one - other).abs().max()

# Marks: what torch puts, the kernel reads, and the reverse.
shapes = random.integers(1, 40, (9, 2)).astype(np.int32)
for channels in (1, 3):
    there = P.lay_out(shapes, channels)
    marks = P.Marks(there, torch.device("cpu"))
    other = P.Marks(there, torch.device("cpu"))
    other._kernels = kernels
    a, b = (torch.zeros(there.nbytes, dtype=torch.uint8) for _ in range(2))
    marks.put(a)
    other.put(b)
    assert torch.equal(a, b)
    for number in range(9):
        if number != 4:
            there.view(a, number).fill_(3)
    a[int(there.starts[6]) + int(there.planes[6]) * channels] ^= 1
    one, two = marks.read(a), other.read(a)
    assert one.unwritten.tolist() == two.unwritten.tolist() == [n == 4 for n in range(9)]
    assert one.spilled.tolist() == two.spilled.tolist() == [n == 6 for n in range(9)]
print("the same")
"""


def test_kernels_in_the_interpreter(monkeypatch):
    """What the kernels compute is what torch computes, without a GPU."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "the same"
