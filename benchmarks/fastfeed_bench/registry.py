"""Which benchmarks and peers there are, and how their modules are found."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from fastfeed.errors import OptionError

if TYPE_CHECKING:
    from fastfeed_bench.model import Benchmark

NAMES = (
    "jpeg-cpu",
    "work",
    "transport",
    "shard-read",
    "zstd-read",
    "decoded",
    "staging",
    "startup",
    "build",
    "steady",
    "tuner",
    "stats",
    "diagnose",
    "h2d",
    "diagnose-gpu",
    "jpeg-gpu",
    "train-feed",
)

_CUDA = "import torch, sys; sys.exit(None if torch.cuda.is_available() else 'no CUDA device')"
_DALI_GPU = (
    ("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
    f"import nvidia.dali.plugin.pytorch; {_CUDA}",
)
_FIND_ZSTD = "import shutil, sys; sys.exit(None if shutil.which('zstd') else 'no zstd command')"
_FIND_TAR = "import shutil, sys; sys.exit(None if shutil.which('tar') else 'no tar command')"

# Peer -> the packages it is (the first that is installed), and the code that tries it.
_PEERS = {
    "torch": (("torch",), "import torch"),
    "torch-pillow": (("torchvision",), "import torchvision, PIL.Image"),
    "torch-torchvision": (("torchvision",), "import torchvision.io"),
    "torch-simplejpeg-cv2": (("opencv-python-headless",), "import simplejpeg, cv2"),
    "torch-simplejpeg-aten": (("simplejpeg",), "import simplejpeg"),
    "webdataset": (("webdataset",), "import webdataset"),
    "dali-cpu": (("nvidia-dali-cuda130", "nvidia-dali-cuda120"), "import nvidia.dali.fn"),
    "dali-gpu": _DALI_GPU,
    "dali-gpu-wide": _DALI_GPU,
    "torchvision-gpu": (("torchvision",), f"import torchvision.io; {_CUDA}"),
    "tar": ((), _FIND_TAR),
    "zstd": ((), _FIND_ZSTD),
    # The module loads ffmpeg's libraries at the first call only.
    "spdl": (("spdl",), "import spdl.io; spdl.io.demux_config()"),
}


def load_benchmark(name: str) -> Benchmark:
    """Return the benchmark of that name; OptionError if there is none."""
    if name not in NAMES:
        raise OptionError(
            f"there is no benchmark {name!r}", way_out=f"Choose one of {', '.join(NAMES)}"
        )
    module = import_module(f"fastfeed_bench.benchmarks.{name.replace('-', '_')}")
    benchmark: Benchmark = module.BENCHMARK
    return benchmark


def list_peers() -> list[tuple[str, str, str]]:
    """Return (name, version, "ok" or why it cannot run here) of each peer."""
    return [(name, _version(packages), _try(code)) for name, (packages, code) in _PEERS.items()]


def _version(packages: tuple[str, ...]) -> str:
    for package in packages:
        try:
            return f"{package} {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return "-"


def _try(code: str) -> str:
    """Import in a process of its own: some libraries end theirs when something is missing."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(  # noqa: S603 - the code is the table's
        command, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == 0:
        return "ok"
    lines = done.stderr.strip().splitlines()
    return lines[-1][:200] if lines else f"exit code {done.returncode}"
