"""GGUF files: right ones are mapped, and others give an error that says what is wrong where."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.frontends.weights.gguf_files import NUMBERS, Gguf, Q, W, small, text, value
from tilewright.frontends.weights.gguf import Texts, read_gguf
from tilewright.ir.diag import ModelError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 4096])
def test_what_a_file_holds(path: Path, version: int, alignment: int) -> None:
    file = small().key("general.alignment", "u32", alignment)
    file.version, file.alignment = version, alignment
    found = read_gguf(file.write(path))
    assert found.version == version
    assert list(found.metadata) == [name for name, _ in file.keys]
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["tokens"] == ["a", "", "Ġé", "<s>"]
    assert found.metadata["none"] == [] and found.metadata["nothing"].dtype == np.float32
    for k, type in enumerate(NUMBERS):
        number = True if type == "bool" else k + 0.5 if type.startswith("f") else k
        one, some = found.metadata[f"one.{type}"], found.metadata[f"some.{type}"]
        assert one == number and isinstance(one, float if type.startswith("f") else int)
        assert some.tolist() == [number] * 3 and some.dtype.itemsize == len(value(type, number)) - 4
    w, q = found.tensors.values()
    assert (w.name, w.shape, w.kind.name) == ("w", (3, 4), "F32")
    assert (q.name, q.shape, q.kind.name) == ("q", (2, 64), "Q4_0")
    np.testing.assert_array_equal(w.decoded(), W)
    np.testing.assert_array_equal(w.elements(), W)
    assert q.elements() is None and not q.data.flags.writeable
    np.testing.assert_array_equal(q.data, Q)


def test_strings_are_decoded_when_they_are_asked_for(path: Path) -> None:
    file = Gguf().key("tokens", "[str]", ["one", b"\xff\xfe", "three"])
    texts = read_gguf(file.write(path)).metadata["tokens"]
    assert isinstance(texts, Texts) and len(texts) == 3
    assert (texts[0], texts[-1], texts[::2], texts.raw(1)) == ("one", "three", ["one", "three"], b"\xff\xfe")
    with pytest.raises(IndexError):
        texts[3]
    for read in (lambda: texts[1], lambda: list(texts)):
        with pytest.raises(ModelError, match=r"the text is not in UTF-8.*\n.*string 1 of key 'tokens' of .*m.gguf"):
            read()


def test_a_file_without_anything(path: Path) -> None:
    found = read_gguf(Gguf().write(path))
    assert not found.metadata and not found.tensors


def test_tensors_of_no_elements_and_of_rank_0(path: Path) -> None:
    file = Gguf().tensor("none", (0, 4), "F32", b"").tensor("one", (), "F32", np.float32(2).tobytes())
    file.tensor("empty", (3, 0), "Q4_0", b"")
    found = read_gguf(file.write(path)).tensors
    assert found["none"].decoded().shape == (0, 4) and found["empty"].decoded().shape == (3, 0)
    assert found["one"].decoded() == np.float32(2)


LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "the file is empty"),
    "other": (lambda: b"PK\3\4" + bytes(60), r"begins with b'PK\\x03\\x04', a GGUF file with b'GGUF'.*\n.*byte 0 "),
    "short": (lambda: b"GGUF\3\0", "the version needs 4 bytes, and 2 are left"),
    "big endian": (lambda: b"GGUF\0\0\0\3" + bytes(16), r"is big-endian.*\n.*\n.*gguf_convert_endian"),
    "version 1": (lambda: b"GGUF\1\0\0\0" + bytes(16), r"version 1 of GGUF; versions 2 and 3 are read.*\n.*byte 4"),
    "version 4": (lambda: b"GGUF\4\0\0\0" + bytes(16), r"version 4 of GGUF.*(\n.*)*a newer version needs"),
    "version 0": (lambda: b"GGUF\0\0\0\0" + bytes(16), "version 0 of GGUF"),
    "keys": (lambda: Gguf(counts=(0, 2**40)).bytes(), f"number of keys is {2**40}, for which the file is too short"),
    "tensors": (lambda: Gguf(counts=(2**63, 0)).bytes(), f"the number of tensors is {2**63}"),
    "a key too much": (lambda: Gguf(counts=(0, 1)).bytes() + bytes(9), "the number of keys is 1"),
    "length of a key": (
        lambda: Gguf([("", value("u8", 1))], counts=(0, 1)).header()[:24] + struct.pack("<Q", 2**63) + bytes(20),
        f"the key 0 has {2**63} bytes; at most 65535 are possible",
    ),
    "key without end": (
        lambda: Gguf([("", value("u8", 1))], counts=(0, 1)).header()[:24] + struct.pack("<Q", 200) + bytes(20),
        "the key 0 needs 200 bytes, and 20 are left",
    ),
    "key in another code": (
        lambda: Gguf(counts=(0, 1)).header() + text(b"\xff\xfe") + value("u8", 1),
        r"the key 0 is no text in UTF-8.*\n.*byte 32",
    ),
    "two keys": (lambda: Gguf().key("a", "u8", 1).key("a", "u8", 1).bytes(), "the key 'a' is there twice"),
    "type": (lambda: Gguf([("a", struct.pack("<IQ", 13, 0))]).bytes(), "'a' has the unknown type 13"),
    "type of elements": (
        lambda: Gguf([("a", struct.pack("<IIQ", 9, 13, 0))]).bytes(),
        "elements of 'a' have the unknown type 13",
    ),
    "nested": (lambda: Gguf([("a", struct.pack("<IIQ", 9, 9, 0))]).bytes(), "'a' is an array of arrays"),
    "bool": (lambda: Gguf([("a", struct.pack("<IB", 7, 2))]).bytes(), "'a' is neither true nor false but 2"),
    "bools": (
        lambda: Gguf([("a", struct.pack("<IIQ3B", 9, 7, 3, 0, 1, 2))]).bytes(),
        "an element of 'a' is neither true nor false",
    ),
    "long text": (
        lambda: Gguf([("a", struct.pack("<IQ", 8, 2**64 - 1))]).bytes(),
        f"the text of 'a' needs {2**64 - 1} bytes, and 0 are left",
    ),
    "long array": (
        lambda: Gguf([("a", struct.pack("<IIQ", 9, 12, 2**61))]).bytes(),
        f"the array 'a' of {2**61} needs {2**64} bytes",
    ),
    "many strings": (lambda: Gguf([("a", struct.pack("<IIQ", 9, 8, 2**61))]).bytes(), f"'a' has {2**61} strings"),
    "a long string": (
        lambda: Gguf([("a", struct.pack("<IIQ", 9, 8, 2) + text("b") + struct.pack("<Q", 2**63) + bytes(9))]).bytes(),
        "the 2 strings of 'a' go beyond the end of the file(.*\\n)+.*byte 58 of",
    ),
    "alignment 0": (lambda: small().key("general.alignment", "u32", 0).bytes(), "'general.alignment' is 0, and"),
    "alignment 24": (lambda: small().key("general.alignment", "u32", 24).bytes(), "'general.alignment' is 24, and"),
    "alignment text": (lambda: small().key("general.alignment", "str", "8").bytes(), "'general.alignment' is None"),
    "huge alignment": (
        lambda: small().key("general.alignment", "u32", 2**31).bytes(),
        rf"'w' \(F32\[3, 4\]\) takes bytes {2**31} to",
    ),
    "two tensors": (
        lambda: Gguf().tensor("a", (1,), "F32", bytes(4)).tensor("a", (1,), "F32", bytes(4)).bytes(),
        "the tensor 'a' is there twice",
    ),
    "long name": (lambda: Gguf().tensor("a" * 1025, (1,), "F32", bytes(4)).bytes(), "name of tensor 0 has 1025 bytes"),
    "rank": (lambda: Gguf().tensor("a", (1,) * 5, "F32", bytes(4)).bytes(), "'a' has 5 dimensions; 4 are possible"),
    "huge rank": (
        lambda: Gguf(counts=(1, 0)).header() + text("a") + struct.pack("<I", 2**32 - 1) + bytes(60),
        f"'a' has {2**32 - 1} dimensions",
    ),
    "dimension": (lambda: Gguf().tensor("a", (2**63, 2), "F32", bytes(4)).bytes(), f"'a' has a dimension of {2**63}"),
    "overflow": (
        lambda: Gguf().tensor("a", (2**31, 2**31, 4), "F32", bytes(4)).bytes(),
        rf"'a' \(F32\[{2**31}, {2**31}, 4\]\) takes bytes 96 to {2**66 + 96}, and the file ends at 100",
    ),
    "unknown kind": (
        lambda: Gguf().tensor("a", (1,), 99, bytes(4)).tensor("b", (1,), 16, bytes(4)).bytes(),
        r"not supported: 'a' is unknown \(number 99\), 'b' is IQ2_XXS(.*\n)+.*supported: F32, F16, .*MXFP4",
    ),
    "part of a block": (
        lambda: Gguf().tensor("a", (2, 48), "Q4_0", bytes(54)).bytes(),
        "'a' has rows of 48 elements, which are no whole blocks of Q4_0: 32 elements",
    ),
    "a number in blocks": (lambda: Gguf().tensor("a", (), "Q4_0", bytes(18)).bytes(), "'a' has rows of 1 elements"),
    "offset": (
        lambda: Gguf().tensor("a", (1,), "F32", bytes(4), offset=16).bytes(),
        "'a' begins at 16, which is no multiple of 32",
    ),
    "far away": (
        lambda: Gguf().tensor("a", (1,), "F32", bytes(4), offset=2**63).bytes(),
        f"takes bytes {2**63 + 64} to {2**63 + 68}, and the file ends at 68",
    ),
    "cut off": (lambda: small().bytes()[:-1], r"'q' \(Q4_0\[2, 64\]\) takes bytes \d+ to (\d+), and the file ends at"),
    "overlap": (
        lambda: Gguf().tensor("a", (9,), "F32", bytes(36)).tensor("b", (1,), "F32", bytes(4), offset=32).bytes(),
        "'b' begins within the bytes of 'a'",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_file_that_lies_is_refused(path: Path, name: str) -> None:
    make, message = LIES[name]
    path.write_bytes(make())
    with pytest.raises(ModelError, match=message) as error:
        read_gguf(path)
    assert str(path) in str(error.value) and "hint" in str(error.value)


def test_every_beginning_of_a_file_is_refused(path: Path) -> None:
    whole = small().bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelError):
            read_gguf(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (("none", "No such file"), ("pipe", "not a regular file"), ("", "directory"), ("\0", "null")):
        with pytest.raises(ModelError, match=f"the weights cannot be read: .*{reason}"):
            read_gguf(tmp_path / name)


# Files in parts


def in_parts(folder: Path, count: int = 3, total: int | None = None) -> list[Path]:
    paths = [folder / f"m-{k + 1:05}-of-{count:05}.gguf" for k in range(count)]
    for k, path in enumerate(paths):
        file = Gguf().key("split.no", "u16", k).key("split.count", "u16", count)
        if k == 0:
            file.key("general.architecture", "str", "llama")
            file.key("split.tensors.count", "i32", count if total is None else total)
        file.tensor(f"t{k}", (2,), "F32", np.full(2, k, np.float32).tobytes()).write(path)
    return paths


def test_parts_are_read_as_one(tmp_path: Path) -> None:
    for path in in_parts(tmp_path):
        found = read_gguf(path)
        assert found.metadata["general.architecture"] == "llama"
        assert [t.decoded().tolist() for t in found.tensors.values()] == [[0, 0], [1, 1], [2, 2]]


def test_parts_that_are_missing_or_do_not_belong_together(tmp_path: Path) -> None:
    first, second, third = in_parts(tmp_path)
    kept = second.read_bytes()
    second.unlink()
    with pytest.raises(ModelError, match=r"split in 3 parts, of which these are missing: m-00002-of-00003.gguf"):
        read_gguf(third)
    second.write_bytes(third.read_bytes())
    with pytest.raises(ModelError, match="by its name it is part 2 of 3, by its metadata another one"):
        read_gguf(first)
    second.write_bytes(kept.replace(b"t1", b"t0"))
    with pytest.raises(ModelError, match="the tensor 't0' is in two parts"):
        read_gguf(first)
    in_parts(tmp_path, total=4)
    with pytest.raises(ModelError, match="the parts hold 3 tensors, the first one says 4"):
        read_gguf(first)
    with pytest.raises(ModelError, match=r"it is part 1 of 3, and the others cannot be found by(.*\n)+.*-00001-"):
        read_gguf(first.rename(tmp_path / "renamed.gguf"))
    Gguf().key("split.count", "str", "3").write(tmp_path / "m.gguf")
    with pytest.raises(ModelError, match=r"'split\.count' is '3', which counts nothing"):
        read_gguf(tmp_path / "m.gguf")
