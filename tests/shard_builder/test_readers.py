"""The real packages read what was built: webdataset, wids, DALI and its own index tool."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest

from fastfeed_shard.writer import ShardWriter


@pytest.fixture
def shards(tmp_path, photos, built):
    """Photos in class folders with a JSON each, packed into several shards; (source, shards)."""
    source = tmp_path / "photos"
    for photo in photos:
        target = source / photo.parent.name / photo.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(photo.read_bytes())
        target.with_suffix(".json").write_text(json.dumps({"stem": photo.stem}))
    built("build", source, tmp_path / "shards", "--shard-size", "600KiB", "--jobs", 2)
    assert len(list((tmp_path / "shards").glob("*.tar"))) >= 3
    return source, tmp_path / "shards"


def expected(source):
    """The samples that must be read, in order: key -> (bytes of jpg, class, stem)."""
    classes = sorted(path.name for path in source.iterdir())
    return {
        f"{path.parent.name}/{path.stem}": (
            path.read_bytes(),
            classes.index(path.parent.name),
            path.stem,
        )
        for path in sorted(source.rglob("*.jpg"), key=lambda path: f"{path.parent}/{path.stem}")
    }


def test_webdataset(shards):
    """The package webdataset gives every sample, whole and in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        webdataset = pytest.importorskip("webdataset")
        source, folder = shards
        count = len(list(folder.glob("*.tar")))
        urls = f"{folder}/train-{{000000..{count - 1:06d}}}.tar"
        dataset = webdataset.WebDataset(urls, shardshuffle=False).decode()
        read = {
            sample["__key__"]: (sample["jpg"], sample["cls"], sample["json"]["stem"])
            for sample in dataset
        }
    assert list(read.items()) == list(expected(source).items())


def test_wids(shards, tmp_path):
    """The package wids finds every sample by its number, through shardindex.json."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wids = pytest.importorskip("wids")
        source, folder = shards
        dataset = wids.ShardListDataset(
            str(folder / "shardindex.json"), cache_dir=str(tmp_path / "cache"), transformations=[]
        )
        read = {
            dataset[number]["__key__"]: (
                dataset[number][".jpg"].read(),
                int(dataset[number][".cls"].read()),
                json.loads(dataset[number][".json"].read())["stem"],
            )
            for number in range(len(dataset))
        }
    assert read == expected(source)


def test_dali(shards):
    """DALI's reader on the CPU gives every sample, by the index that was written for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fn = pytest.importorskip("nvidia.dali.fn")
        from nvidia.dali import pipeline_def

        source, folder = shards
        tars = sorted(folder.glob("*.tar"))

        @pipeline_def(batch_size=1, num_threads=1, device_id=None)
        def pipeline():
            return tuple(
                fn.readers.webdataset(
                    paths=[str(tar) for tar in tars],
                    index_paths=[str(tar.with_suffix(".idx")) for tar in tars],
                    ext=["jpg", "cls", "json"],
                )
            )

        pipe = pipeline()
        pipe.build()
        wanted = list(expected(source).values())
        for jpg, label, stem in wanted:
            read = [np.asarray(output.at(0)).tobytes() for output in pipe.run()]
            assert read[0] == jpg
            assert int(read[1]) == label
            assert json.loads(read[2])["stem"] == stem
        assert next(iter(pipe.reader_meta().values()))["epoch_size"] == len(wanted)


def test_dali_index_is_what_its_own_tool_writes(shards, tmp_path):
    """Byte for byte."""
    wds2idx = pytest.importorskip("wds2idx")
    _, folder = shards
    for tar in folder.glob("*.tar"):
        with wds2idx.IndexCreator(str(tar), str(tmp_path / "its.idx"), verbose=False) as creator:
            creator.create_index()
        assert (tmp_path / "its.idx").read_text() == tar.with_suffix(".idx").read_text()


def test_shard_dataset(tmp_path):
    """This library's own data set reads what the writer wrote."""
    import fastfeed as ff

    with ShardWriter(tmp_path / "out", shard_size="8KiB") as writer:
        for number in range(20):
            array = np.full((3, number + 1), number, np.float32)
            writer.write({"__key__": f"{number:03d}", "cls": number, "npy": array})
    dataset = ff.ShardDataset(
        tmp_path / "out", fields={"label": ff.Int("cls"), "data": ff.Bytes("npy")}
    )
    assert len(dataset) == 20
    assert [int(dataset[number]["label"]) for number in range(20)] == list(range(20))
