"""C31 and C33 in whole loaders: any exception, raised at any step, reaches the loop in its turn."""

from __future__ import annotations

import io
import os
import tarfile

import pytest
import torch
from torch.utils.data import BatchSampler, Dataset, IterableDataset, SequentialSampler
from torch.utils.data import DataLoader as Torchs

import fastfeed as ff
from fastfeed.errors import DecodeError, FastfeedError, OptionError, StorageError, WorkerError


class Simple(ValueError):
    """Made from one message."""


class TwoArguments(Exception):
    """Made from two."""

    def __init__(self, name, code):
        super().__init__(f"{name}: {code}")


class KeywordOnly(Exception):
    """Made from a keyword."""

    def __init__(self, *, name):
        super().__init__(name)


class FailsItself(Exception):
    """Cannot be made from a message."""

    def __init__(self, places):
        super().__init__(places["shard"])


class Unprintable(Exception):
    """Has no words."""

    def __str__(self):
        raise RuntimeError("no words")


class Basal(BaseException):
    """Neither exit nor interrupt."""


def unpicklable():
    error = Simple("the item is broken")
    error.handle = lambda: None
    return error


def local():
    class Local(Exception):
        pass

    return Local("the item is broken")


# What is raised, and whether a process can hand on its type; torch's does for the same ones.
RAISED = {
    "simple": (lambda: Simple("the item is broken"), True),
    "two arguments": (lambda: TwoArguments("the item is broken", 3), False),
    "keyword only": (lambda: KeywordOnly(name="the item is broken"), False),
    "constructor raises": (lambda: FailsItself({"shard": "the item is broken"}), False),
    "unpicklable attribute": (unpicklable, True),
    "local class": (local, False),
    "base": (lambda: Basal("the item is broken"), False),
    "group": (lambda: ExceptionGroup("the item is broken", [Simple("a"), KeyError("b")]), False),
    "stop": (lambda: StopIteration("the item is broken"), False),
    "key error": (lambda: KeyError("the item is broken\nin two lines"), True),
    "huge": (lambda: ValueError("the item is broken" + "x" * 50_000_000), True),
    "unprintable": (Unprintable, True),
    "missing file": (lambda: FileNotFoundError(2, "the item is broken", "a.jpg"), True),
    "memory": (lambda: MemoryError("the item is broken"), True),
    "not implemented": (lambda: NotImplementedError("the item is broken"), True),
    "assertion": (lambda: AssertionError("the item is broken"), True),
    "ours": (lambda: DecodeError("the item is broken", shard="s", key="k", field="jpg"), True),
}


class Failing(Dataset):
    """Item 6 raises."""

    def __init__(self, make, *, at=6):
        self.make, self.at = make, at

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.at:
            raise self.make()
        return torch.full((3,), index)


def around(batches):
    """Return the batches before and after the one exception, and the exception."""
    before, after, error = [], [], None
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return before, error, after
        except BaseException as caught:  # noqa: BLE001
            assert error is None, "raised twice"
            error = caught
        else:
            (before if error is None else after).append(batch[:, 0].tolist())


@pytest.mark.parametrize("name", RAISED)
def test_c31_process_hands_on_any_exception(leak_gauge, name):
    """The type where it can be made, else WorkerError; words, traceback, worker; the loop goes on.

    Batches before and after it are all there: nothing is lost, and nothing old comes again.
    """
    make, keeps_type = RAISED[name]
    loader = ff.DataLoader(Failing(make), batch_size=2, num_workers=2)
    before, error, after = around(iter(loader))
    assert before == [[0, 1], [2, 3], [4, 5]]
    assert after == [[8, 9], [10, 11]]
    assert type(error) is (type(make()) if keeps_type else WorkerError)
    assert isinstance(error, RuntimeError) or keeps_type
    if name == "unprintable":
        text = error.args[0]
    else:
        text = "\n".join([str(error), *getattr(error, "__notes__", [])])
        assert "the item is broken" in text
    assert "in DataLoader worker process 1" in text
    assert "in __getitem__" in text
    assert len(text) < 100_000
    assert error.__cause__ is None
    del error


KEPT = [name for name, (_, keeps) in RAISED.items() if keeps]


@pytest.mark.parametrize("name", [n for n in KEPT if n not in {"huge", "ours"}])
def test_c31_types_are_those_of_torch(name):
    """Whatever type torch's workers hand on, ours do."""
    found = []
    for kind in (ff.DataLoader, Torchs):
        _, error, _ = around(iter(kind(Failing(RAISED[name][0]), batch_size=2, num_workers=1)))
        found.append(type(error))
        del error
    assert found[0] is found[1]


@pytest.mark.parametrize("name", [n for n in RAISED if n != "stop"])
def test_c31_threads_hand_on_any_exception(leak_gauge, name):
    """A worker thread's exception comes with its words, in its turn."""
    make, keeps_type = RAISED[name]
    loader = ff.DataLoader(Failing(make), batch_size=2, num_workers=2, worker_kind="thread")
    before, error, after = around(iter(loader))
    assert before == [[0, 1], [2, 3], [4, 5]]
    assert after == [[8, 9], [10, 11]]
    if keeps_type:
        assert type(error) is type(make())
    if name != "unprintable":
        assert "the item is broken" in "\n".join([str(error), *getattr(error, "__notes__", [])])
    del error


def bad_tar(folder, texts):
    """Write a shard whose fields `cls` are texts."""
    path = folder / "n.tar"
    with tarfile.open(path, "w", tarfile.USTAR_FORMAT) as tar:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number:03d}.cls")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    return path


class Pinnable(list):
    """A batch that cannot be pinned if 10 is in it."""

    def pin_memory(self):
        if 10 in self:
            raise LookupError("the pinning failed")
        return self


class Unloadable:
    """Can be sent and not received."""

    def __reduce__(self):
        return fail_loading, ()


def fail_loading():
    raise LookupError("the loading failed")


class FailingStream(IterableDataset):
    """Fails after ten items."""

    def __iter__(self):
        yield from range(10)
        raise LookupError("the stream failed")


def fail(words):
    raise LookupError(words)


def fails_at_ten(make):
    """Return a collate function that fails for the batch with 10."""
    return lambda batch: make(batch) if 10 in batch else list(batch)


STEPS = {
    "data set": (
        lambda: {"dataset": Failing(lambda: LookupError("the item failed"), at=10)},
        LookupError,
        "the item failed",
    ),
    "collate": (
        lambda: {
            "dataset": range(14),
            "collate_fn": fails_at_ten(lambda _: fail("the collating failed")),
        },
        LookupError,
        "the collating failed",
    ),
    "pack": (
        lambda: {"dataset": range(14), "collate_fn": fails_at_ten(lambda _: (i for i in "ab"))},
        TypeError,
        "generator",
    ),
    "unpack": (
        lambda: {"dataset": range(14), "collate_fn": fails_at_ten(lambda _: Unloadable())},
        LookupError,
        "the loading failed",
    ),
    "pin": (
        lambda: {"dataset": range(14), "collate_fn": Pinnable, "pin_memory": True},
        LookupError,
        "the pinning failed",
    ),
    "stream": (
        lambda: {"dataset": FailingStream()},
        LookupError,
        "the stream failed",
    ),
    "sampler": (
        lambda: {
            "dataset": range(14),
            "sampler": (i if i < 10 else fail("the sampler failed") for i in range(14)),
        },
        LookupError,
        "the sampler failed",
    ),
}


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_c33_batches_before_a_failing_step_are_right(monkeypatch, step, persistent):
    """Whichever step fails at batch 5: what came before is right, then its error, no old batch.

    The pinning is asked of a batch of a user's class, so it needs no accelerator.
    """
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    make, kind, words = STEPS[step]
    options = {"collate_fn": list, **make(), "num_workers": 1, "batch_size": 2}
    if options["dataset"] is not None and step == "data set":
        options["collate_fn"] = lambda batch: [int(one[0]) for one in batch]
    batches = iter(ff.DataLoader(**options, persistent_workers=persistent))
    seen = []
    with pytest.raises(kind, match=words):
        seen.extend(iter(lambda: next(batches), None))
    if step == "sampler":  # it is asked ahead, so its end comes earlier; as with torch
        assert seen == [[2 * i, 2 * i + 1] for i in range(len(seen))]
    else:
        assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    rest = []
    while True:
        try:
            rest.append(next(batches))
        except StopIteration:
            break
    firsts = [first for first, _ in seen + rest]
    assert firsts == sorted(set(firsts))
    assert 10 not in firsts


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("damage", "kind", "words"),
    [("text", DecodeError, r"n\.tar.*010"), ("cut", StorageError, r"n\.tar")],
)
def test_c33_reading_and_decoding_shards(tmp_path, workers, damage, kind, words):
    """A sample that cannot be decoded, a shard cut while it is read: five batches, then which."""
    texts = [b"bad" if damage == "text" and n == 10 else b"%d" % n for n in range(14)]
    path = bad_tar(tmp_path, texts)
    data = ff.ShardDataset(path, {"n": ff.Int("cls")})
    assert len(data) == 14  # the index is made
    if damage == "cut":
        os.truncate(path, 1024 * 10)
    loader = ff.DataLoader(data, batch_size=2, num_workers=workers)
    seen = []
    with pytest.raises(FastfeedError, match=words) as caught:
        seen.extend(batch["n"].tolist() for batch in loader)
    assert isinstance(caught.value, kind)
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    del caught


def test_c33_a_transform_fails(tmp_path):
    """The user's own function: its own exception with the worker's traceback."""
    path = bad_tar(tmp_path, [b"%d" % n for n in range(14)])

    def check(sample):
        if sample["n"] == 10:
            raise LookupError("the transform failed")
        return sample

    data = ff.ShardDataset(path, {"n": ff.Int("cls")}, transform=check)
    seen = []
    with pytest.raises(LookupError, match=r"(?s)worker process [01].*in check.*transform failed"):
        seen.extend(batch["n"].tolist() for batch in ff.DataLoader(data, 2, num_workers=2))
    assert seen == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_c33_iterating_on_after_an_error_never_repeats():
    """Errors in several batches: each in its place, between the right batches, as torch has it."""

    class Third(Failing):
        def __getitem__(self, index):
            if index % 3 == 2:
                raise LookupError(f"item {index}")
            return index

    found = []
    for kind in (ff.DataLoader, Torchs):
        loader = kind(
            Third(None),
            batch_sampler=BatchSampler(SequentialSampler(range(12)), 1, False),
            num_workers=2,
        )
        batches, said = iter(loader), []
        while True:
            try:
                said.append(next(batches).tolist())
            except StopIteration:
                break
            except LookupError as error:
                said.append(str(error).splitlines()[-1])
        found.append(said)
    assert found[0] == found[1]
    assert len(found[0]) == 12


def test_option_errors_of_a_worker_keep_their_way_out():
    """Our own errors cross a process whole."""
    loader = ff.DataLoader(
        Failing(lambda: OptionError("not like that", way_out="Do it so")), num_workers=1
    )
    with pytest.raises(OptionError, match=r"not like that\. Do it so"):
        list(loader)
