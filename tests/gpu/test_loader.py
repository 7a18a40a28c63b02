"""The loader on a real GPU: right batches under every misuse of streams that users come up with."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import fastfeed as ff

pytestmark = pytest.mark.gpu

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Numbers(torch.utils.data.Dataset):
    """Large samples, each full of its own number."""

    def __init__(self, count=160, size=250_000):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"x": torch.full((self.size,), index, dtype=torch.int32), "y": index}


def busy(milliseconds):
    """Keep the current stream busy."""
    torch.cuda._sleep(int(milliseconds * 1.9e6))


def photo(seed, *, height=375, width=500, **how):
    """A smooth picture with some noise, different for each seed."""
    random = np.random.default_rng(seed)
    small = Pillow.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8))
    smooth = np.asarray(small.resize((width, height), Pillow.Resampling.BICUBIC), np.int16)
    levels = np.clip(smooth + random.integers(-6, 7, smooth.shape), 0, 255).astype(np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(levels).save(file, "jpeg", **{"quality": 92, **how})
    return file.getvalue()


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """A shard of 256 photos, a few of which no engine decodes."""
    path = tmp_path_factory.mktemp("photos") / "photos-000000.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(256):
            data = photo(i, height=300 + i % 90, width=420 + (i * 7) % 120, progressive=i % 50 == 7)
            for name, content in (("cls", str(i).encode()), ("jpg", data)):
                member = tarfile.TarInfo(f"{i:05d}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return str(path)


def of(photos, *transforms):
    image = ff.Image("jpg", ff.RandomResizedCrop(224), ff.HorizontalFlip(), *transforms)
    return ff.ShardDataset(photos, {"image": image, "y": ff.Int("cls")})


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_batches_equal_the_cpus(kind):
    """Whatever the stream is busy with, batches hold what they should; all are kept (C48, C49)."""
    loader = ff.DataLoader(Numbers(), batch_size=8, num_workers=2, device="cuda", worker_kind=kind)
    kept = []
    for number, batch in enumerate(loader):
        if number % 3 == 0:
            busy(20)
        kept.append(batch)
    for number, batch in enumerate(kept):
        wanted = torch.arange(8 * number, 8 * number + 8)
        assert torch.equal(batch["y"].cpu(), wanted)
        assert torch.equal(batch["x"].amin(1).cpu().long(), wanted)
        assert torch.equal(batch["x"].amax(1).cpu().long(), wanted)


def test_batches_are_dropped_while_kernels_read_them():
    """Memory of a dropped batch is not written before the kernels that read it are done (C50)."""
    sums = []
    for batch in ff.DataLoader(Numbers(), batch_size=8, num_workers=2, device="cuda"):
        busy(5)
        sums.append(batch["x"].sum())
        del batch
    wanted = [8 * (2 * n * 8 + 7) * 250_000 // 2 for n in range(20)]
    assert [int(s) for s in sums] == wanted


def test_the_consumers_own_stream():
    """The stream that is current at `next` is the one that waits (C50)."""
    loader = iter(ff.DataLoader(Numbers(), batch_size=8, num_workers=2, device="cuda"))
    streams = [torch.cuda.Stream() for _ in range(3)]
    sums = []
    for number in range(20):
        with torch.cuda.stream(streams[number % 3]):
            batch = next(loader)
            busy(3)
            sums.append(batch["x"].sum())
            del batch
    torch.cuda.synchronize()
    assert [int(s) for s in sums] == [8 * (2 * n * 8 + 7) * 250_000 // 2 for n in range(20)]


def test_device_memory_is_flat():
    """Twenty epochs take no more of the device than the second one (C50)."""
    loader = ff.DataLoader(
        Numbers(64), batch_size=8, num_workers=2, device="cuda", persistent_workers=True
    )
    reserved = []
    for _ in range(20):
        for batch in loader:
            batch["x"].sum()
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[2:]) <= reserved[1] * 1.05 + (32 << 20)


def test_a_graph_is_captured_while_the_loader_runs():
    """Threads of the loader do not disturb a capture in the default, strictest mode."""
    loader = iter(
        ff.DataLoader(Numbers(640), batch_size=8, num_workers=4, device="cuda", output="static")
    )
    batch = next(loader)
    graph = torch.cuda.CUDAGraph()
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        batch["x"].sum()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        for _ in range(200):  # long enough for the loader's threads to work beside it
            total.copy_(batch["x"].sum())
    for number in range(1, 80):
        place = batch["x"].data_ptr()
        batch = next(loader)
        assert batch["x"].data_ptr() == place
        graph.replay()
        assert int(total) == 8 * (2 * number * 8 + 7) * 250_000 // 2


@pytest.mark.parametrize("decode", ["cpu", 0.5, "gpu"])
def test_pictures_agree_with_the_cpu(photos, decode):
    """Whoever decodes, a picture is the same within a level or two, and normalised alike."""
    normalize = ff.Normalize(MEAN, STD)
    theirs = list(ff.DataLoader(of(photos), batch_size=64, num_workers=2))
    ours = list(
        ff.DataLoader(of(photos), batch_size=64, num_workers=2, device="cuda", decode=decode)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one["y"].cpu(), other["y"])
        assert one["image"].stride() == other["image"].stride()
        apart = (one["image"].cpu().int() - other["image"].int()).abs()
        assert apart.max() <= 4, (apart.amax(dim=(1, 2, 3)), apart.float().mean())
        assert apart.float().mean() < 0.2
    theirs = next(iter(ff.DataLoader(of(photos, normalize), batch_size=64)))
    ours = next(
        iter(ff.DataLoader(of(photos, normalize), batch_size=64, device="cuda", decode="cpu"))
    )
    assert torch.equal(ours["image"].cpu(), theirs["image"])


def test_decoding_beside_a_busy_gpu(photos):
    """The decoder's engines and kernels go on while training holds every core of the GPU."""
    loader = ff.DataLoader(
        of(photos), batch_size=64, num_workers=2, device="cuda", decode="gpu", shuffle=True
    )
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    started, seen = time.perf_counter(), 0
    for _ in range(6):
        for batch in loader:
            for _ in range(12):
                a @ a
            seen += len(batch["y"])
    torch.cuda.synchronize()
    assert seen == 6 * 256
    assert time.perf_counter() - started < 60


def test_pinned_memory_is_let_go():
    """Memory that was pinned for a loader is ordinary again after it, and its place usable."""
    for _ in range(5):
        loader = ff.DataLoader(Numbers(64), batch_size=8, num_workers=2, device="cuda")
        for batch in loader:
            batch["x"].sum()
    torch.cuda.synchronize()
    maps = Path("/proc/self/maps").read_text().splitlines()
    assert sum("memfd:fastfeed" in line for line in maps) <= 4
