"""Samples from a table: a CSV file, or JSON objects one a line, whose columns may name files."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastfeed.errors import FastfeedError, OptionError, StorageError
from fastfeed.shardfile.names import is_contained
from fastfeed_shard.encode import encode
from fastfeed_shard.safe import rename_key, why_unsafe
from fastfeed_shard.samples import DataPart, Part, Sample, Source, file_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Row = tuple[int, dict[str, Any]]

# Columns taken without being named, where they exist.
_KEYS = ("key", "__key__")
_FILES = frozenset({"file", "path", "file_name", "filename", "image", "image_path"})
_FIELDS = frozenset({"cls", "txt"})
_REST = "json"


@dataclass(frozen=True, slots=True)
class Columns:
    """What the columns of a table mean; those not named here go to the field `json` together."""

    key: str | None = None
    """Column of the keys; without one a column `key`, failing that the number of the row."""
    files: Mapping[str, str] | None = None
    """Column of file names -> field, or an empty text for the extension that the file has."""
    fields: Mapping[str, str] | None = None
    """Column of values -> the field of its own that it becomes."""
    allow_outside: bool = False
    """Whether files may lie outside the folder of the table."""
    rename: bool = False
    """Whether keys that some reader would misread are rewritten."""


def read_table(path: str, *, layout: str, columns: Columns) -> Source:
    """Return the samples of a table; `layout` is "csv" or "jsonl".

    Raises OptionError for a row that makes no sample, and StorageError for a file that is missing;
    both name the line, the column and the file.
    """
    table = _Table(path, columns, is_csv=layout == "csv")
    rows = _csv_rows(path) if layout == "csv" else _json_rows(path)
    try:
        source = Source([table.sample(number, *row) for number, row in enumerate(rows)])
    except OSError as error:
        raise StorageError(f"cannot read {path!r}: {error.strerror}") from error
    table.check()
    return source


class _Table:
    """Turns rows into samples, and remembers which columns there were."""

    def __init__(self, path: str, columns: Columns, *, is_csv: bool) -> None:
        self._path = path
        self._folder = os.path.dirname(path)  # noqa: PTH120 - joined to every file's name
        self._columns = columns
        self._is_csv = is_csv
        self._seen: dict[str, None] = {}

    def sample(self, number: int, line: int, row: dict[str, Any]) -> Sample:
        """Return the sample of a row."""
        self._seen.update(dict.fromkeys(row))
        try:
            return self._sample(number, row)
        except FastfeedError as error:
            error.fact = f"{self._path!r}, line {line:,}: {error.fact}"
            raise

    def check(self) -> None:
        """Make sure that the columns that were asked for exist in some row."""
        asked = (*(self._columns.files or ()), *(self._columns.fields or ()))
        missing = [name for name in asked if name not in self._seen]
        if missing and self._seen:
            raise OptionError(
                f"{self._path!r} has no column {missing[0]!r}",
                way_out=f"The columns are {', '.join(self._seen)}",
            )

    def _sample(self, number: int, row: dict[str, Any]) -> Sample:
        key, key_column = self._key(number, row)
        files, fields = self._columns.files, self._columns.fields
        files = dict.fromkeys(_FILES, "") if files is None else files
        fields = {name: name for name in _FIELDS} if fields is None else fields
        parts: list[Part] = []
        rest: dict[str, Any] = {}
        for column, value in row.items():
            # An empty place is a field that the sample lacks.
            empty = value is None or (value == "" and (self._is_csv or column in files))
            if column in files:
                parts += [] if empty else [self._file(value, column, files[column])]
            elif column in fields:
                name = fields[column]
                parts += [] if empty else [DataPart(name, self._value(value, key, name))]
            elif column != key_column:
                rest[column] = value
        if rest:
            parts.append(DataPart(_REST, encode(rest, key=key, field=_REST)))
        return self._checked_sample(key, parts)

    def _key(self, number: int, row: dict[str, Any]) -> tuple[str, str | None]:
        column = self._columns.key or next((name for name in _KEYS if name in row), None)
        if column is None:
            return f"{number:09d}", None
        value = row.get(column)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value:
            raise OptionError(f"the column {column!r} holds no key, but {value!r}")
        return (rename_key(value) if self._columns.rename else value), column

    def _file(self, value: Any, column: str, field: str) -> Part:
        if not isinstance(value, str):
            raise OptionError(f"the column {column!r} holds no name of a file, but {value!r}")
        if not self._columns.allow_outside and not is_contained(os.path.normpath(value)):
            raise OptionError(
                f"the file {value!r} of column {column!r} is outside the folder of the table",
                way_out="Move it there, or allow such files with --allow-outside",
            )
        if not field:
            _, dot, field = os.path.basename(value).rpartition(".")  # noqa: PTH119
            if not dot or not field:
                raise OptionError(
                    f"the file {value!r} of column {column!r} has no extension to name its field",
                    way_out=f"Name the field: --files {column}=FIELD",
                )
        return file_part(field.lower(), os.path.join(self._folder, value))  # noqa: PTH118

    def _value(self, value: Any, key: str, field: str) -> bytes:
        kind = field.rpartition(".")[2]
        if kind == "cls" and isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                raise OptionError(
                    f"{value!r} is no whole number",
                    way_out="Number the classes, or store the column as text: --fields NAME=txt",
                    key=key,
                    field=field,
                ) from None
        elif kind != "json" and isinstance(value, int | float):
            value = value if kind == "cls" else json.dumps(value)
        return encode(value, key=key, field=field)

    def _checked_sample(self, key: str, parts: list[Part]) -> Sample:
        parts.sort(key=lambda part: part.field)
        if not parts:
            raise OptionError("the row has no field", key=key)
        for place, part in enumerate(parts):
            if place and part.field == parts[place - 1].field:
                raise OptionError(
                    "two columns would be the same field",
                    way_out="Name their fields: --files COLUMN=FIELD, --fields COLUMN=FIELD",
                    key=key,
                    field=part.field,
                )
            reason = why_unsafe(key, part.field)
            if reason is not None:
                way_out = "Change the table"
                if not self._columns.rename:
                    way_out += ", or let --rename rewrite its keys"
                raise OptionError(
                    f"some readers would misread {key}.{part.field}: {reason}", way_out=way_out
                )
        return Sample(key, tuple(parts))


def _csv_rows(path: str) -> Iterator[Row]:
    """Yield (line, column -> text) of each row of a CSV file with a header."""
    import csv

    csv.field_size_limit(1 << 30)
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, None)
            if not header or len(set(header)) != len(header):
                raise OptionError(
                    f"{path!r} does not begin with a row of different names of columns"
                )
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise OptionError(
                        f"{path!r}, line {reader.line_num:,}: {len(row)} values for "
                        f"{len(header)} columns"
                    )
                yield reader.line_num, dict(zip(header, row, strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            fact = f"{path!r}, after line {reader.line_num:,}: {error}"
            raise OptionError(fact, way_out="Save the table as CSV in UTF-8") from error


def _json_rows(path: str) -> Iterator[Row]:
    """Yield (line, column -> value) of each JSON object."""
    with Path(path).open("rb") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise OptionError(f"{path!r}, line {line:,}: {error}") from error
            if not isinstance(row, dict):
                raise OptionError(f"{path!r}, line {line:,}: this is no JSON object")
            yield line, row
