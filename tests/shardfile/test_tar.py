"""The walk over a tar: right members, or a TarError, and nothing in between."""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastfeed.errors import OptionError, TarError
from fastfeed.shardfile.tar import EXTENSION_LIMIT, read_member, ustar_header, walk

EIGHT = [(f"{i:03d}.bin", bytes([i + 1]) * (200 + 100 * i)) for i in range(8)]


def listed(members):
    return [(m.name, m.kind, m.size) for m in members]


def contents(data, members):
    return [(m.name, data[m.offset : m.offset + m.size]) for m in members]


def extended(name: str, flag: bytes, body: bytes) -> bytes:
    """Return an extension header with its body, as blocks."""
    block = bytearray(ustar_header(name, len(body)))
    return sealed(block, {156: flag}) + body + bytes(-len(body) % 512)


def sealed(block: bytes, changes: dict[int, bytes]) -> bytes:
    """Return a header block with some bytes changed and its checksum made right again."""
    block = bytearray(block)
    for start, value in changes.items():
        block[start : start + len(value)] = value
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def record(key: str, value: bytes) -> bytes:
    body = b" " + key.encode() + b"=" + value + b"\n"
    length = len(body) + 1
    while len(b"%d" % length) + len(body) != length:
        length += 1
    return b"%d" % length + body


END = bytes(1024)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_are_found_in_each_format(pack, walk_bytes, format):  # noqa: A002
    """Names of any length and alphabet, sizes and data agree with Python's tarfile."""
    long = f"{'d' * 60}/{'e' * 60}/{'f' * 90}.jpg"
    names = ["a.jpg", long, "ä/日本.json", "with space.txt"]
    if format != tarfile.USTAR_FORMAT:
        names.append("g" * 300 + ".x")
    members = [(name, os.urandom(700 * i)) for i, name in enumerate(names)]
    data = pack(*members, format=format)
    assert contents(data, walk_bytes(data)) == members


def test_header_offsets_include_extension_headers(pack, walk_bytes):
    """`header` is where the member begins, long-name blocks included, and reads back alone."""
    data = pack(("a.x", b"1"), ("n" * 200 + ".x", b"2"), format=tarfile.GNU_FORMAT)
    first, second = walk_bytes(data)
    assert (first.header, second.header) == (0, 1024)
    assert second.offset == 1024 + 3 * 512
    again = read_member(lambda o, n: data[o : o + n], len(data), header=second.header, shard="s")
    assert again == second


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (lambda d, m: d[: m[3].header], "no end blocks"),
        (lambda d, m: d[: m[3].header + 300], "cut inside a header"),
        (lambda d, m: d[: m[3].header] + bytes(512) + d[m[3].offset :], "data follows a block"),
        (lambda d, m: d[: m[3].header + 150] + b"7" + d[m[3].header + 151 :], "checksum"),
        (lambda d, m: d[: m[3].offset + 10], "beyond the end"),
        (lambda d, m: d[: m[-1].offset + 1024], "no end blocks"),
        (lambda d, m: d[: m[-1].offset + 1024 + 512], "only one of its two end blocks"),
        (lambda d, m: d + b"\0" * 100 + b"x", "data follows a block"),
        (lambda d, m: d + d, "data follows a block"),
        (lambda d, m: b"", "no end blocks"),
    ],
    ids=[
        "cut at a member", "cut in a header", "header zeroed", "checksum byte", "cut in data",
        "end blocks missing", "one end block", "junk at the end", "two archives", "empty file",
    ],
)  # fmt: skip
def test_c01_damage_is_never_an_end(pack, walk_bytes, damage, fact):
    """Each way to cut or damage a shard raises, with the shard, the offset and the last member."""
    data = pack(*EIGHT)
    members = walk_bytes(data)
    with pytest.raises(TarError, match=fact) as caught:
        walk_bytes(damage(data, members))
    assert caught.value.shard == "s"
    assert caught.value.offset is not None
    assert "good" in caught.value.fact


def test_c01_members_before_the_damage_are_still_listed(pack, walk_bytes):
    """The walk yields what is good before it raises, so that a report can count it."""
    data = pack(*EIGHT)
    cut = data[: walk_bytes(data)[5].header]
    seen = []
    with pytest.raises(TarError, match=r"004\.bin"):
        seen.extend(m.name for m in walk(lambda o, n: cut[o : o + n], len(cut), shard="s"))


def test_more_zero_padding_is_fine(pack, walk_bytes):
    """Any number of zeros may follow the end blocks, also a number that fills no block."""
    data = pack(*EIGHT)
    assert walk_bytes(data + bytes(70_001)) == walk_bytes(data)


def test_c01_a_file_of_zeros_is_no_empty_shard(walk_bytes):
    """What a power cut leaves of a shard is not taken for one without samples."""
    assert listed(walk_bytes(bytes(1024))) == listed(walk_bytes(bytes(10240))) == []
    with pytest.raises(TarError, match=r"nothing but 1,742,848 bytes of zeros.* build the shard"):
        walk_bytes(bytes(1742848))


def test_c07_positions_beyond_4_gib(tmp_path):
    """A sparse file of more than 4 GiB as first member: the second is found behind it."""
    path = tmp_path / "big.tar"
    size = 2**32 + 10
    with path.open("wb") as file:
        file.write(ustar_header("a.bin", size))
        file.seek(512 + -(-size // 512) * 512)
        file.write(ustar_header("b.bin", 5) + b"hello" + bytes(507) + END)
    with path.open("rb") as file:

        def read_at(offset, count):
            return os.pread(file.fileno(), count, offset)

        members = list(walk(read_at, path.stat().st_size, shard="s"))
        assert listed(members) == [("a.bin", "file", size), ("b.bin", "file", 5)]
        assert members[1].offset > 2**32
        assert read_at(members[1].offset, 5) == b"hello"


@pytest.mark.parametrize("size", [0, 8**11 - 1, 8**11, 2**40, 2**62])
def test_c07_sizes_of_8_gib_and_more(size):
    """The size field is octal up to 8 GiB, then base 256; both read back, here and in tarfile."""
    block = ustar_header("a.bin", size)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").size == size
    member = next(walk(lambda o, n: block[o : o + n], 2**63, shard="s"))
    assert (member.offset, member.size) == (512, size)


def test_c08_every_kind_of_member(pack, walk_bytes):
    """Folders, links, devices and pipes have their kind, and no data."""
    kinds = {
        "d": (tarfile.DIRTYPE, "dir"),
        "s": (tarfile.SYMTYPE, "symlink"),
        "h": (tarfile.LNKTYPE, "hardlink"),
        "f": (tarfile.FIFOTYPE, "other"),
        "c": (tarfile.CHRTYPE, "other"),
        "b": (tarfile.BLKTYPE, "other"),
        "7": (tarfile.CONTTYPE, "file"),
    }
    infos = []
    for name, (flag, _) in kinds.items():
        info = tarfile.TarInfo(name)
        info.type, info.linkname = flag, "target.jpg"
        infos.append(info)
    data = pack(*infos, ("target.jpg", b""))
    found = walk_bytes(data)
    assert [(m.name.rstrip("/"), m.kind) for m in found[:-1]] == [
        (n, k) for n, (_, k) in kinds.items()
    ]
    assert found[2].link == "target.jpg"
    assert found[-1].size == 0


def test_v7_folder_is_known_by_its_slash(walk_bytes):
    """In v7 tars a name that ends with a slash is a folder."""
    data = sealed(ustar_header("d/x", 0), {0: b"d/\0", 156: b"\0", 257: bytes(8)}) + END
    assert listed(walk_bytes(data)) == [("d/", "dir", 0)]


def test_pax_records_override_the_header(walk_bytes):
    """Path, size and linkpath of a pax header count more than the fields of the header."""
    body = record("path", "ö/x.jpg".encode()) + record("size", b"0" * 22 + b"5")
    data = extended("p", b"x", body) + ustar_header("y", 0) + b"hello" + bytes(507) + END
    (member,) = walk_bytes(data)
    assert contents(data, [member]) == [("ö/x.jpg", b"hello")]


def test_global_pax_records_hold_until_replaced(walk_bytes):
    """A global header changes all later members, except where their own says otherwise."""
    data = extended("g", b"g", record("linkpath", b"all"))
    link = sealed(ustar_header("l.x", 0), {156: b"2"})
    own = extended("p", b"x", record("linkpath", b"own"))
    data += link + own + link + extended("g", b"g", record("linkpath", b"")) + link + END
    assert [m.link for m in walk_bytes(data)] == ["all", "own", ""]


@pytest.mark.parametrize(
    "body",
    [
        b"nonsense", b"5 a=b\n", b"7 a=b\n", b"6 a=b ", b"5 abc\n", b"999999 path=x\n", b"-1 a=b\n",
        b"0 a=b\n", b"4 =\n", record("size", b"-1"), record("size", b"1e3"),
        record("size", b"9" * 5000), record("path", b"a\0b"), record("path", b"x")[:-1],
        "٣ a=b\n".encode(),
    ],
)  # fmt: skip
def test_c10_malformed_pax_records(walk_bytes, body):
    """A pax record that does not hold together is a TarError with its offset."""
    data = extended("p", b"x", body) + ustar_header("y.x", 0) + END
    with pytest.raises(TarError) as caught:
        walk_bytes(data)
    assert caught.value.offset == 0


@pytest.mark.parametrize(
    "size",
    [b"00000000009\0", b"-0000000001\0", b"0o000000010\0", b"1_0\0", b"zz\0", b"\xff" * 12],
)
def test_c10_sizes_that_are_no_numbers(walk_bytes, size):
    """A size that is not octal, or negative, is a TarError."""
    data = sealed(ustar_header("y.x", 0), {124: size}) + END
    with pytest.raises(TarError, match="size"):
        walk_bytes(data)


def test_c10_sparse_members_keep_their_real_name(walk_bytes):
    """Old GNU and pax sparse members are called sparse, under the name the user gave them."""
    mark = record("GNU.sparse.major", b"1") + record("GNU.sparse.name", b"real.bin")
    pax = extended("p", b"x", record("path", b"GNUSparseFile.0/real.bin") + mark)
    data = pax + ustar_header("y", 4) + b"data" + bytes(508)
    old = sealed(ustar_header("old.bin", 4), {156: b"S", 257: b"ustar  \0", 482: b"\1"})
    data += old + bytes(504) + b"\1" + bytes(7) + bytes(512) + b"DATA" + bytes(508) + END
    members = walk_bytes(data)
    assert listed(members) == [("real.bin", "sparse", 4), ("old.bin", "sparse", 4)]
    assert contents(data, members)[1][1] == b"DATA"


def test_extension_headers_are_bounded():
    """An extension header of a gigabyte is refused before a byte of it is read."""
    block = sealed(ustar_header("p", EXTENSION_LIMIT + 1), {156: b"x"})
    asked = []

    def read_at(offset, size):
        asked.append(size)
        return block[offset : offset + size]

    with pytest.raises(TarError, match="too large"):
        list(walk(read_at, 2**40, shard="s"))
    assert max(asked) <= 1 << 20


def test_many_extension_headers_take_no_memory(walk_bytes):
    """Unknown pax keys are dropped, and a member may have many headers."""
    junk = b"".join(record(f"k{i}", b"v") for i in range(1000))
    data = extended("p", b"x", junk) * 50 + ustar_header("y.x", 0) + END
    assert listed(walk_bytes(data)) == [("y.x", "file", 0)]


@pytest.mark.parametrize("flag", [b"L", b"K", b"x"])
def test_extension_header_without_member(walk_bytes, flag):
    """Headers that describe a member which never comes are an error."""
    body = record("path", b"x") if flag == b"x" else b"name\0"
    with pytest.raises(TarError, match="without a member"):
        walk_bytes(extended("p", flag, body) + END)


@pytest.mark.parametrize(
    ("magic", "name"),
    [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\x52\x2a\x4d\x18", "zstd"),
     (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")],
)  # fmt: skip
@pytest.mark.parametrize("length", [50, 5000])
def test_compressed_shards_are_named(walk_bytes, magic, name, length):
    """A compressed file is not called a damaged tar but by its compression."""
    with pytest.raises(TarError, match=name):
        walk_bytes(magic.ljust(length, b"\x55"))


def test_signed_checksums_of_old_tars(walk_bytes):
    """Some old programs summed signed bytes; their tars read."""
    block = bytearray(ustar_header("ü.x", 0))
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(b - 256 if b > 127 else b for b in block)
    assert listed(walk_bytes(bytes(block) + END)) == [("ü.x", "file", 0)]


def test_a_file_that_shrinks_is_an_error(pack):
    """The size is known from the start; a reader that ends before it raises."""
    data = pack(*EIGHT)
    with pytest.raises(TarError):
        list(walk(lambda o, n: data[o : min(o + n, 3000)], len(data), shard="s"))


def test_large_data_is_not_read(tmp_path):
    """Only headers are read: of 100 members of 1 MiB less than 1 % of the bytes."""
    parts = [ustar_header(f"{i:03d}.x", 1 << 20) + bytes(1 << 20) for i in range(20)]
    data = b"".join(parts) + END
    read = []

    def read_at(offset, size):
        read.append(size)
        return data[offset : offset + size]

    assert len(list(walk(read_at, len(data), shard="s"))) == 20
    assert sum(read) < len(data) // 100


def test_c10_flip_of_each_byte_of_the_first_headers(pack, walk_bytes):
    """Any change of one header byte gives the right data or a TarError, nothing else."""
    data = pack(("ä" * 60 + ".x", b"one"), ("b.x", b"two"), format=tarfile.GNU_FORMAT)
    right = contents(data, walk_bytes(data))
    for place in range(3 * 512):
        for flip in (0x01, 0x20, 0x80, 0xFF):
            broken = bytearray(data)
            broken[place] ^= flip
            try:
                found = contents(data, walk_bytes(bytes(broken)))
            except TarError:
                continue
            # The long name's own bytes have no checksum in any tar.
            assert [c for _, c in found] == [c for _, c in right]
            assert found == right or 512 <= place < 1024


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_resealed_headers_never_escape_as_other_errors(data):
    """Random header fields under a right checksum end in members or a TarError."""
    flag = data.draw(st.sampled_from([b"0", b"L", b"x", b"g", b"S", b"\0", b"5", b"1", b"Z"]))
    changes = data.draw(
        st.dictionaries(st.integers(0, 500), st.binary(min_size=1, max_size=12), max_size=4)
    )
    body = data.draw(st.binary(max_size=600))
    block = sealed(ustar_header("name.x", len(body)), {156: flag, **changes})[:512]
    file = block + body + bytes(-len(body) % 512) + ustar_header("z.x", 0) + END
    with suppress(TarError):
        members = list(walk(lambda o, n: file[o : o + n], len(file), shard="s"))
        assert all(m.offset + m.size <= len(file) for m in members)


@given(st.binary(max_size=2000))
def test_junk_is_a_tar_error(junk):
    """Random bytes are no tar, unless they are zeros."""
    try:
        members = list(walk(lambda o, n: junk[o : o + n], len(junk), shard="s"))
    except TarError:
        return
    assert members == []
    assert not any(junk)


@given(
    st.lists(
        st.tuples(st.from_regex(r"([a-z]{1,9}/){0,3}[a-zä]{1,9}\.[a-z]{1,4}", fullmatch=True),
                  st.binary(max_size=1500)),
        max_size=6,
    )
)  # fmt: skip
def test_headers_we_write_read_back(members):
    """A tar of our headers is the same to us and to Python's tarfile."""
    data = b"".join(
        ustar_header(name, len(body)) + body + bytes(-len(body) % 512) for name, body in members
    )
    data += END
    found = list(walk(lambda o, n: data[o : o + n], len(data), shard="s"))
    assert contents(data, found) == members
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert [(m.name, m.size) for m in tar] == [(n, len(b)) for n, b in members]
        assert all((m.mode, m.uid, m.mtime) == (0o444, 0, 0) for m in tar)


def test_long_names_are_split_or_refused():
    """Up to 255 bytes a name fits if a slash is at the right place; otherwise it is refused."""
    fits = f"{'d' * 150}/{'n' * 96}.jpg"
    block = ustar_header(fits, 0)
    assert tarfile.TarInfo.frombuf(block, "utf-8", "strict").name == fits
    for name in ("n" * 101, f"{'d' * 156}/n.jpg", "", "a/", "a\0b"):
        with pytest.raises(OptionError):
            ustar_header(name, 0)
