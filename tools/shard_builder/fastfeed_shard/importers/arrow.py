"""Parquet files, and the folders that Hugging Face `datasets` saves (`save_to_disk`).

Both are read with pyarrow alone. What `datasets` says of its columns (pictures, classes, arrays)
stands in their metadata, and is taken into account.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastfeed.errors import FastfeedError, OptionError, ShardError
from fastfeed.shardfile.names import is_contained
from fastfeed_shard.importers.rows import Row, StorageFile
from fastfeed_shard.importers.whole import join, read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    Convert = Callable[[Any], Any]

_ROWS = 64
_FILES = {"Image", "Audio", "Video", "Pdf", "Nifti"}
_MENDED = "Copy the file again, or take it out of the source"


class ParquetImporter:
    """Rows of Parquet files, one file after the other."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        with StorageFile(self.files[0]) as file, _translated(self.files[0]):
            schema = _library("parquet").ParquetFile(file).schema_arrow
        self.classes = _classes(_features(schema))

    def rows(self) -> Generator[Row]:
        """Yield the rows."""
        for path in self.files:
            with StorageFile(path) as file, _translated(path):
                parquet = _library("parquet").ParquetFile(file)
                yield from _rows(parquet.iter_batches(batch_size=_ROWS), path)


class ArrowFolderImporter:
    """Rows of a folder that `Dataset.save_to_disk` wrote."""

    def __init__(self, folder: str) -> None:
        self._info = read_json(join(folder, "dataset_info.json"))
        state = read_json(join(folder, "state.json"))
        try:
            names = [str(part["filename"]) for part in state["_data_files"]]
            if state.get("_indices_files"):
                raise OptionError(
                    f"{folder!r} holds an order beside its rows",
                    way_out="Save it anew after dataset.flatten_indices()",
                )
        except (KeyError, TypeError) as error:
            raise ShardError(f"the state of {folder!r} names no files: {error}") from error
        bad = [name for name in names if not is_contained(name)]
        if bad or not names:
            raise ShardError(f"{folder!r} names files outside of its folder, or none: {bad}")
        self.files = tuple(join(folder, name) for name in names)
        features = self._info.get("features")
        self._features: Mapping[str, Any] = features if isinstance(features, dict) else {}
        self.classes = _classes(self._features)

    def rows(self) -> Generator[Row]:
        """Yield the rows."""
        for path in self.files:
            with StorageFile(path) as file, _translated(path):
                stream = _library("ipc").open_stream(file)
                batches = (
                    batch.slice(start, _ROWS)
                    for batch in stream
                    for start in range(0, len(batch), _ROWS)
                )
                yield from _rows(batches, path, features=self._features)


def _library(name: str) -> Any:
    """Return a module of pyarrow."""
    from importlib import import_module

    try:
        return import_module(f"pyarrow.{name}")
    except ImportError as error:
        raise OptionError(
            "reading Parquet and Arrow files takes pyarrow, which is not installed",
            way_out="pip install 'fastfeed[datasets]'",
        ) from error


class _translated:  # noqa: N801 - used like a function
    """Turns pyarrow's errors into ours, with the file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowException | OSError) and not isinstance(error, FastfeedError):
            text = str(error).partition("\n")[0]
            raise ShardError(f"{self._path!r}: {text}", way_out=_MENDED) from error


def _rows(
    batches: Iterator[Any], path: str, *, features: Mapping[str, Any] | None = None
) -> Iterator[Row]:
    number = 0
    for batch in batches:
        known = _features(batch.schema) if features is None else features
        columns = {
            column.name: _values(values, column.type, known.get(column.name))
            for column, values in zip(batch.schema, batch.columns, strict=True)
        }
        for place in range(len(batch)):
            where = f"{path!r}, row {number:,}"
            try:
                values = {name: column(place) for name, column in columns.items()}
            except FastfeedError as error:
                error.fact = f"{where}: {error.fact}"
                raise
            yield Row(where, values)
            number += 1


def _values(values: Any, kind: Any, feature: Any) -> Callable[[int], Any]:
    """Return the function from a place in a batch to a value as `Row` has them."""
    import pyarrow as pa

    if isinstance(kind, pa.FixedShapeTensorType):
        arrays, valid = values.to_numpy_ndarray(), values.is_valid().to_pylist()
        return lambda place: arrays[place] if valid[place] else None
    if isinstance(kind, pa.BaseExtensionType):
        values, kind = values.storage, kind.storage_type
    convert = _converter(kind, feature)
    # One value at a time: a whole batch of long lists would be large in Python.
    return lambda place: convert(values[place].as_py())


def _converter(kind: Any, feature: Any) -> Convert:
    """Return the function from a Python value of pyarrow's to one as `Row` has them."""
    import pyarrow as pa

    types = pa.types
    named = feature.get("_type") if isinstance(feature, dict) else None
    if named in {"Array2D", "Array3D", "Array4D", "Array5D"}:
        return _to_array(str(feature.get("dtype", "float32")))
    if types.is_struct(kind) and {kind[i].name for i in range(kind.num_fields)} == {
        "bytes",
        "path",
    }:
        return _file_in_row
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _converter(kind.value_type, None)
        return lambda value: None if value is None else [inner(one) for one in value]
    if types.is_fixed_size_list(kind):
        return _fixed_list(kind)
    if types.is_float32(kind) or types.is_float16(kind):
        return _shortest(str(kind.to_pandas_dtype()().dtype))
    return _to_text if types.is_temporal(kind) or types.is_decimal(kind) else _plain


def _fixed_list(kind: Any) -> Convert:
    """Lists of one length of numbers are arrays; of other things they stay lists."""
    import pyarrow as pa

    inner = kind.value_type
    while pa.types.is_fixed_size_list(inner):
        inner = inner.value_type
    if pa.types.is_integer(inner) or pa.types.is_floating(inner) or pa.types.is_boolean(inner):
        return _to_array(str(inner.to_pandas_dtype()().dtype))
    one = _converter(kind.value_type, None)
    return lambda value: None if value is None else [one(part) for part in value]


def _to_array(dtype: str) -> Convert:
    import numpy as np

    def convert(value: Any) -> Any:
        try:
            return None if value is None else np.asarray(value, dtype)
        except (TypeError, ValueError) as error:
            raise OptionError(f"a value is no array of {dtype}: {error}") from error

    return convert


def _shortest(dtype: str) -> Convert:
    """Give narrow floats the shortest text that means them: 0.1, not 0.10000000149011612."""
    import numpy as np

    narrow = np.dtype(dtype).type
    return lambda value: None if value is None else float(str(narrow(value)))


def _file_in_row(value: Any) -> Any:
    """Return the bytes of a picture or sound; a path in a row is never followed."""
    if value is None:
        return None
    if value["bytes"] is None and value["path"] is not None:
        raise OptionError(
            f"the row names the file {value['path']!r} in place of its bytes",
            way_out="Save the data set with its files inside (push_to_hub does)",
        )
    return value["bytes"]


def _to_text(value: Any) -> Any:
    return None if value is None else str(value)


def _plain(value: Any) -> Any:
    return value


def _features(schema: Any) -> Mapping[str, Any]:
    """Return what `datasets` wrote of the columns of a file; nothing if it wrote none."""
    try:
        known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = known["info"]["features"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _classes(features: Mapping[str, Any]) -> dict[str, list[str]]:
    return {
        column: [str(name) for name in feature["names"]]
        for column, feature in features.items()
        if isinstance(feature, dict)
        and feature.get("_type") == "ClassLabel"
        and isinstance(feature.get("names"), list)
    }
