"""How a member's name becomes a key and a field, and which names of files are acceptable.

One rule for the builder, the index and the reader: the key is the directory part plus the base
name up to its *first* dot; everything after that dot, in lower case, is the field. Directories are
never split, so `v1.0/a.jpg` has the key `v1.0/a`.
"""

from __future__ import annotations

INDEX_SUFFIX = ".ffx"
MANIFEST_NAME = "dataset.json"


def split_name(member_name: str) -> tuple[str, str] | None:
    """Return (key, field) of a member's name, or None if the name belongs to no sample.

    Not of a sample: hidden files and the twins that macOS writes (`.DS_Store`, `._a.jpg`), names
    with a component like `__meta__`, base names without a dot, or with nothing after it.
    """
    while member_name.startswith("./"):
        member_name = member_name[2:].lstrip("/")
    folder, slash, base = member_name.rpartition("/")
    stem, _, field = base.partition(".")
    if not stem or not field:
        return None
    # Every member passes here; most names hold no double underscore at all.
    if "__" in member_name and any(map(_is_reserved, (*folder.split("/"), base, stem))):
        return None
    return f"{folder}{slash}{stem}", field.lower()


def _is_reserved(component: str) -> bool:
    return len(component) >= 4 and component.startswith("__") and component.endswith("__")


def index_name(shard_name: str) -> str:
    """Return the name of the index that lies beside a shard: `a-000.tar` has `a-000.ffx`."""
    return shard_name.removesuffix(".tar") + INDEX_SUFFIX


def is_contained(name: str) -> bool:
    """Say whether a file name of a manifest stays inside the manifest's own folder."""
    if not name or "\\" in name or "://" in name or not name.isprintable():
        return False
    return all(part not in {"", ".", ".."} for part in name.split("/"))
