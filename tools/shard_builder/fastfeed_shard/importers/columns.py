"""Which field each column of a foreign data set becomes: decided once, then kept for all rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fastfeed.errors import FastfeedError, OptionError
from fastfeed_shard.decode import PICTURES
from fastfeed_shard.encode import encode
from fastfeed_shard.importers.kinds import KINDS, kind_of
from fastfeed_shard.safe import rename_key, why_unsafe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastfeed_shard.importers.rows import Row

KEYS = ("__key__", "key")
# Columns that get the short name that every reader knows, where no other column has it.
_PICTURES = {"image", "img", "picture", "photo", "image/encoded"}
_LABELS = {"label", "class", "target", "image/class/label"}
_TEXTS = {"text", "caption", "txt"}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_+-]+")


class Columns:
    """Turns rows into samples.

    `key` is the column of keys; without one a column `__key__` or `key`, failing that the number of
    the row. `fields` names the fields of columns; with an empty name a column is left out. `rename`
    rewrites keys that some reader would misread.
    """

    def __init__(self, *, key: str | None, fields: Mapping[str, str], rename: bool) -> None:
        self._key = key
        self._asked = fields
        self._rename = rename
        self._fields: dict[str, str] = {name: field for name, field in fields.items() if field}
        self._seen: set[str] = set()
        self._refuse_twins()

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields of the columns that had a value so far."""
        return self._fields

    def sample(self, number: int, row: Row) -> tuple[str, list[tuple[str, bytes]]]:
        """Return the key of a row, and its fields with their data, sorted by field.

        Raises OptionError, naming file, row and column, for what cannot be stored.
        """
        try:
            return self._sample(number, row)
        except FastfeedError as error:
            error.fact = f"{row.place}: {error.fact}"
            raise

    def check(self) -> None:
        """Make sure that the columns that were asked for were there."""
        missing = [name for name in self._asked if name not in self._seen]
        if missing and self._seen:
            raise OptionError(
                f"there is no column {missing[0]!r}",
                way_out=f"The columns are {', '.join(sorted(self._seen))}",
            )

    def _sample(self, number: int, row: Row) -> tuple[str, list[tuple[str, bytes]]]:
        key, key_column = self._key_of(number, row.values)
        parts: dict[str, bytes] = {}
        for column, value in row.values.items():
            self._seen.add(column)
            if value is None or column == key_column or self._asked.get(column) == "":
                continue
            parts.update(self._parts(column, value, key))
        if not parts:
            raise OptionError("the row has no field", way_out="Leave the row out", key=key)
        for field in parts:
            reason = why_unsafe(key, field)
            if reason is not None:
                raise OptionError(
                    f"some readers would misread {key}.{field}: {reason}",
                    way_out="Name another --key, or other --fields"
                    if self._rename
                    else "Name another --key, or let --rename rewrite keys",
                )
        return key, sorted(parts.items())

    def _key_of(self, number: int, values: Mapping[str, Any]) -> tuple[str, str | None]:
        column = self._key or next((name for name in KEYS if name in values), None)
        if column is None:
            return f"{number:09d}", None
        if column not in values:
            way_out = f"The columns are {', '.join(sorted(values))}"
            raise OptionError(f"there is no column {column!r} to take the key of", way_out=way_out)
        value = values[column]
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "surrogateescape")
        if not isinstance(value, str) or not value:
            raise OptionError(f"the column {column!r} holds no key, but {value!r}")
        return (rename_key(value) if self._rename else value), column

    def _parts(self, column: str, value: Any, key: str) -> list[tuple[str, bytes]]:
        """Return the field of a value; several for a list of pictures."""
        if _is_list_of_bytes(value):
            stem = self._fields.get(column, _safe(column)).partition(".")[0]
            return [
                (f"{stem}_{place}.{kind_of(data)}", bytes(data)) for place, data in enumerate(value)
            ]
        field = self._fields.get(column)
        if field is None:
            field = self._fields[column] = self._choose(column, value)
        return [(field, _encode(value, column=column, key=key, field=field))]

    def _choose(self, column: str, value: Any) -> str:
        """Return the field for a column, by its name and its first value."""
        kind = kind_of(value)
        name = column.lower()
        if name in _LABELS and isinstance(value, int) and not isinstance(value, bool):
            wanted = "cls"
        elif name in _TEXTS and isinstance(value, str):
            wanted = "txt"
        elif name in _PICTURES and kind in PICTURES:
            wanted = kind
        elif name.rpartition(".")[2] in KINDS and why_unsafe("0", name) is None:
            wanted = name
        else:
            wanted = f"{_safe(column)}.{kind}"
        if wanted in self._fields.values():
            wanted = f"{_safe(column)}.{kind}"
        if wanted in self._fields.values():
            other = next(name for name, field in self._fields.items() if field == wanted)
            raise _twins(other, column, wanted)
        return wanted

    def _refuse_twins(self) -> None:
        known: dict[str, str] = {}
        for column, field in self._fields.items():
            if field in known:
                raise _twins(known[field], column, field)
            known[field] = column


def _twins(one: str, other: str, field: str) -> OptionError:
    return OptionError(
        f"the columns {one!r} and {other!r} would be the same field {field!r}",
        way_out="Name their fields: --fields COLUMN=FIELD,...",
    )


def _safe(column: str) -> str:
    """Return a column's name as a part of a field."""
    name = _NOT_IN_NAMES.sub("_", column.lower()).strip("_") or "column"
    return name if name[0].isalpha() else f"_{name}"


def _is_list_of_bytes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, bytes) for one in value)


def _encode(value: Any, *, column: str, key: str, field: str) -> bytes:
    """Return the data of a field; numbers are text, also those that are none."""
    kind = field.rpartition(".")[2]
    try:
        if kind == "npy" and isinstance(value, list | tuple):
            import numpy as np

            value = np.asarray(value)
        if isinstance(value, float) and kind != "json":
            return repr(value).encode()
        if hasattr(value, "__array__") and kind == "json":
            value = value.tolist()
        return encode(value, key=key, field=field)
    except (OptionError, ValueError) as error:
        fact = error.fact if isinstance(error, OptionError) else str(error)
        raise OptionError(
            f"column {column!r}: {fact}",
            way_out=f"Name another field for it, or leave it out: --fields '{column}='",
            key=key,
            field=field,
        ) from error
