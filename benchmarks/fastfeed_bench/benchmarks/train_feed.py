"""train-feed: ResNets trained on one GPU, fed by each loader: the share of the ceiling reached."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from fastfeed_bench.benchmarks.jpeg_gpu import DALI_GRID, READERS
from fastfeed_bench.data import photo_data
from fastfeed_bench.gpu_data import raw_data
from fastfeed_bench.model import OURS, Benchmark, Case, Finding, System
from fastfeed_bench.networks import NETWORKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_bench.model import Context, Evidence, Settings
    from fastfeed_bench.networks import Network

_TARGET = "fastfeed_bench.systems.train_hub:session"
_SESSIONS = "fastfeed_bench.systems.train_hub:open_beside_trainer"
_SYNTHETIC = "synthetic"

SOURCES = ("jpeg", "raw")

_WORKERS = tuple({"workers": workers} for workers in (14, 8, 16))
_UINT8 = {"out": "uint8"}
_DALI: tuple[Settings, ...] = (
    *({**one, **_UINT8} for one in DALI_GRID),
    # Who normalises makes little difference; it is tried where DALI mostly is at its best.
    {"threads": 12, "hw_load": 0.65, "out": "float16"},
)
_QUICK_DALI: tuple[Settings, ...] = tuple(
    {"threads": threads, "hw_load": load, **_UINT8}
    for threads, load in ((12, 0.65), (15, 0.65), (12, 1.0), (4, 1.0))
)
_RAW_DALI: tuple[Settings, ...] = tuple(
    {"threads": threads, **_UINT8} for threads in (12, 4, 8, 15)
)
# Mean and spread of normalised pictures of one data set differ less than this between loaders.
_LEVELS = 0.1


def _cases(context: Context) -> list[Case]:
    photos = photo_data(context, shard_size="1GiB").settings
    raw = raw_data(photos["photos"]).settings
    data = {"jpeg": photos, "raw": raw}
    return [
        _case(context, network, source, data[source])
        for network in NETWORKS.values()
        for source in SOURCES
    ]


def _case(context: Context, network: Network, source: str, data: Settings) -> Case:
    settings: dict[str, Any] = {
        **data,
        "model": network.name,
        "source": source,
        "quick": context.quick,
        "cache": str(context.work / "tuning-train.json"),
        # Where the systems of this case find the process that they share.
        "meeting": f"fastfeed-bench-{secrets.token_hex(8)}",
        "key": secrets.token_hex(16),
        "sessions": _SESSIONS,
    }
    # As CUDA has it, and as `import fastfeed` does; loaders in one process would share the queues.
    peers = {**settings, "meeting": f"{settings['meeting']}-8", "queues": 8}
    wide = {**settings, "meeting": f"{settings['meeting']}-32", "queues": 32}
    dali = _dali_candidates(source, quick=context.quick)
    systems = [
        # First: the process that it starts outlives all the others.
        _system(_SYNTHETIC, wide, ({},), role="reference"),
        _system(OURS, wide, ({},), role="ours"),
        _system("torch", peers, _WORKERS[:2] if context.quick else _WORKERS),
        _system("dali-gpu", peers, dali),
        _system("dali-gpu-wide", {**wide, "meeting": f"{wide['meeting']}-dali"}, dali),
    ]
    if source == "jpeg":
        alone = {**wide, "meeting": f"{wide['meeting']}-gpu", "decode": "gpu"}
        about = "all pictures decoded on the GPU"
        systems.append(_system("fastfeed-gpu", alone, ({},), role="reference", about=about))
        readers = READERS[:1] if context.quick else READERS
        systems.append(_system("torchvision-gpu", peers, readers))
    return Case(
        f"{network.name} batch {network.batch}, {source}",
        tuple(systems),
        lambda found: judge(found, floor=network.floor),
    )


def _dali_candidates(source: str, *, quick: bool) -> tuple[Settings, ...]:
    if source == "raw":
        return _RAW_DALI[:2] if quick else _RAW_DALI
    return _QUICK_DALI if quick else _DALI


def _system(name: str, settings: Settings, candidates: tuple[Settings, ...], **more: Any) -> System:
    # The candidates are tried in the process that trains, with its compiled step.
    told = {**settings, "system": name, "candidates": list(candidates)}
    return System(name, _TARGET, told, **more)


def judge(evidence: Mapping[str, Evidence], *, floor: int) -> dict[str, Finding]:
    """Find equal what trains on batches like fastfeed's, on a machine that was free."""
    # Without fastfeed's own, pictures are compared with pictures, not with made-up noise.
    names = sorted(evidence, key=lambda name: (name != OURS, name == _SYNTHETIC))
    first = evidence[names[0]]
    return {name: _judge(name, found, first, floor) for name, found in evidence.items()}


def _judge(name: str, found: Evidence, first: Evidence, floor: int) -> Finding:
    wrong = []
    if found["form"] != first["form"]:
        wrong.append(f"NOT EQUAL: {found['form']}, not {first['form']}")
    if name != _SYNTHETIC:  # whose pictures are noise
        wrong += [
            f"NOT EQUAL: {level} {found[level]:.2f}, not {first[level]:.2f}"
            for level in ("mean", "spread")
            if not abs(found[level] - first[level]) <= _LEVELS
        ]
    if "H200" in found["gpu"] and found["synthetic"] < floor:
        wrong.append(
            f"NOT VALID: made-up batches train at {found['synthetic']:,.0f} img/s, which must be "
            f"{floor:,} on an H200: the machine was not free"
        )
    return Finding(not wrong, "; ".join([found["gpu"], *wrong]))


def labelled(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result with model and source in every row, as its readers expect them."""
    return {**result, "cases": [_labelled(case) for case in result["cases"]]}


def _labelled(case: Mapping[str, Any]) -> dict[str, Any]:
    words = case["case"].replace(",", "").split()
    labels = {"model": words[0], "source": words[-1]}
    return {**case, "rows": [{**row, **labels} for row in case["rows"]]}


BENCHMARK = Benchmark(
    name="train-feed",
    unit="img/s",
    higher_is_better=True,
    summary="ResNet-18 and ResNet-50 trained on one GPU from JPEG and from ready-made pictures",
    cases=_cases,
    peers=(_SYNTHETIC, "fastfeed-gpu", "torch", "dali-gpu", "dali-gpu-wide", "torchvision-gpu"),
    finish=labelled,
)
