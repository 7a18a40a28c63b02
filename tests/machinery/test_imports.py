"""Imports go one way along the path of a byte, and heavy libraries have one door each."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "fastfeed"
TOOL = ROOT / "tools" / "shard_builder" / "fastfeed_shard"

# Each part may import those before it (and itself). Parts on one line know nothing of each other.
ORDER = [
    {"version", "errors"},
    {"topology", "stats", "plan", "shardfile", "resume", "tuner", "command"},
    {"options"},
    {"policy", "storage", "fields", "transform", "doctor", "exports"},
    {"staging"},
    {"reading", "sampler", "decoding", "slots"},
    {"collating"},
    {"readahead", "parcel", "indices"},
    {"feed", "worker", "progress", "workforce"},
    {"arrival", "assignment"},
    {"process", "inprocess", "device"},
    {"workers", "threads", "dataset"},
    {"iteration", "arguments"},
    {"loader"},
    {"integrations", "diagnosis"},
]
# Library -> where it may be imported.
DOORS = {
    "fsspec": {"storage"},
    "zstandard": {"storage"},
    "PIL": {"decoding", "device"},
    "simplejpeg": {"decoding", "device"},
    "ctypes": {"decoding", "device"},
    "aiohttp": {"storage"},
    "triton": {"device"},
    "pynvml": {"doctor"},
    "torchvision": {"device"},
    "cv2": set(),
    "accelerate": {"integrations"},
    "transformers": {"integrations"},
    "ray": {"integrations"},
    "nvidia": {"device"},
}


def imports_of(path):
    """Yield (module, in_type_checking) of each import, nested ones included."""
    tree = ast.parse(path.read_text())
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in guarded:
            continue
        if isinstance(node, ast.Import):
            for name in node.names:
                yield name.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def part_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_every_part_has_its_place():
    """A new folder or module must be given a place in the order."""
    parts = {part_of(path) for path in MODULES} - {"__init__", "py.typed"}
    assert parts == set().union(*ORDER)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    """A part imports only parts before it, and no module imports the package's own front."""
    own = part_of(path)
    if own == "__init__":
        return
    allowed = {own}
    for level in ORDER:
        if own in level:
            break
        allowed |= level
    for module in imports_of(path):
        assert module != "fastfeed", f"{path} imports the front of the package"
        assert not module.startswith(("fastfeed_shard", "fastfeed_bench"))
        if module.startswith("fastfeed."):
            assert module.split(".")[1] in allowed, f"{own} imports {module}"
        library = module.split(".")[0]
        assert own in DOORS.get(library, {own}), f"{library} has its door elsewhere than {own}"


@pytest.mark.parametrize("path", [*MODULES, *TOOL.rglob("*.py")], ids=lambda path: path.name)
def test_no_pickle_outside_our_own_pipes(path):
    """Nothing that reads a shard can unpickle, run a shell or evaluate."""
    may_pickle = path.is_relative_to(PACKAGE) and part_of(path) in {
        "collating",
        "parcel",
        "process",
        "worker",
        "workers",
    }
    for module in imports_of(path):
        if module.split(".")[0] in {"pickle", "marshal", "shelve", "dill", "cloudpickle"}:
            assert may_pickle, f"{path} imports {module}"
        assert module != "subprocess"
    text = path.read_text()
    assert "allow_pickle=True" not in text
    assert "shell=True" not in text


@pytest.mark.parametrize("statement", ["import fastfeed", "import fastfeed_shard.main"])
def test_light_imports(statement):
    """Neither the package's front nor the shard tool loads torch or the picture libraries."""
    heavy = {"torch", "PIL", "fsspec", "rich", "zstandard", "simplejpeg"}
    script = f"{statement}; import sys; print(*(set(sys.modules) & {heavy!r}))"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []


def test_public_names_are_all_there():
    """Every public name loads, and the list is the one we mean to have."""
    import fastfeed

    for name in fastfeed.__all__:
        assert getattr(fastfeed, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        fastfeed.Loader  # noqa: B018
