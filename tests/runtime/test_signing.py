"""Signed artefacts: what one key signed is loaded by who trusts it, and nothing that was changed afterwards."""

from __future__ import annotations

import dataclasses
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.native import STATIC_CONSTANTS, static_artifact
from tilewright.runtime import Artifact, load, sign
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage import container, signing
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.signing import TRAILER_BYTES, Signature

ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")

X = np.ones((2, 3), np.float32)
SECRET = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEZ7\n-----END PRIVATE KEY-----\n"


def new_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Files of a private key and its public one, as openssl writes them."""
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    key = ed25519.Ed25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "theirs"):
        new_key(folder, name)
    return folder


@pytest.fixture
def signed(tmp_path: Path, keys: Path) -> Path:
    static_artifact().save(tmp_path / "model.tw")
    sign(tmp_path / "model.tw", keys / "ours.pem")
    return tmp_path / "model.tw"


@pytest.mark.parametrize("mmap", [False, True])
def test_who_trusts_the_key_loads_the_model(signed: Path, keys: Path, mmap: bool) -> None:
    public = keys / "ours.pub"
    raw = serialization.load_pem_public_key(public.read_bytes()).public_bytes_raw()
    for trust in (public, str(public), public.read_bytes(), raw, [keys / "theirs.pub", public]):
        with load(signed, trust=trust, mmap=mmap) as model:
            np.testing.assert_array_equal(model(X)[0], 2 * X + STATIC_CONSTANTS)
            image = model.artifact.image
            assert image is not None and image.pages is None  # who may write to the file does not reach the code
    load(signed, mmap=mmap)  # others need not look


def test_bytes_are_trusted_like_files(signed: Path, keys: Path) -> None:
    assert load(signed.read_bytes(), trust=keys / "ours.pub")(X)
    with pytest.raises(ArtifactError, match="the given buffer is signed with the key"):
        load(signed.read_bytes(), trust=keys / "theirs.pub")


def test_the_model_in_it_is_the_same(signed: Path, keys: Path) -> None:
    assert Artifact.load(signed) == static_artifact()
    again = signed.with_name("again.tw")
    sign(signed, (keys / "ours.pem").read_bytes(), again)
    assert again.read_bytes() == signed.read_bytes()  # Ed25519 has no chance in it
    sign(signed, keys / "theirs.pem")
    load(signed, trust=keys / "theirs.pub")
    Artifact.load(signed).save(again)
    with pytest.raises(ArtifactError, match="is not signed"):
        load(again, trust=keys / "ours.pub")


def test_unsigned_and_wrongly_signed_models_are_refused(signed: Path, keys: Path, tmp_path: Path) -> None:
    static_artifact().save(tmp_path / "plain.tw")
    with pytest.raises(ArtifactError, match=r"plain.tw is not signed.*\n  hint: sign it with `tilewright sign`"):
        load(tmp_path / "plain.tw", trust=keys / "ours.pub")
    with pytest.raises(ArtifactError, match=r"is signed with the key [0-9a-f]{64}, which is not trusted"):
        load(signed, trust=keys / "theirs.pub")


def test_no_flipped_bit_goes_unseen(signed: Path, keys: Path) -> None:
    saved = signed.read_bytes()
    for position in [*range(0, 128), *range(128, len(saved), 61), *range(len(saved) - TRAILER_BYTES, len(saved))]:
        data = bytearray(saved)
        data[position] ^= 1 << position % 8
        with pytest.raises(ArtifactError):
            load(bytes(data), trust=keys / "ours.pub")


def forged(saved: bytes, section: str, **others: object) -> bytes:
    """A file with other weights or code and all checksums right, under the old signature."""
    (length,) = struct.unpack_from("<Q", saved, 16)
    metadata = json.loads(saved[64 : 64 + length])
    (entry,) = [s for s in metadata.pop("sections") if s["kind"] == section]
    old = container._of_bytes(saved).read(entry["offset"], entry["size"])
    artifact = Artifact.load(saved)
    changed = bytearray(old)
    changed[-1] ^= 1
    if section == "weights":
        artifact = dataclasses.replace(artifact, constants=bytes(changed))
    else:
        assert artifact.image is not None
        size = artifact.image.layout.text
        image = dataclasses.replace(artifact.image, text=bytes(changed[:size]), data=bytes(changed[size:]))
        artifact = dataclasses.replace(artifact, image=image)
    made = container.read_head(container._of_bytes(saved)).signature
    sections = artifact._sections()
    table = container._table(sections, is_signed=True)
    return b"".join(container._parts(artifact._metadata(), table, sections, lambda digest: made))


@pytest.mark.parametrize("section", ["weights", "image"])
def test_a_forged_file_has_no_signature_of_ours(signed: Path, keys: Path, section: str) -> None:
    fake = forged(signed.read_bytes(), section)
    Artifact.load(fake)  # which is sound
    with pytest.raises(ArtifactError, match="was changed since it was signed"):
        load(fake, trust=keys / "ours.pub")


def test_weights_of_the_same_checksum_are_not_those_that_were_signed(signed: Path, keys: Path) -> None:
    """A crc32 is no digest: bytes with the same one are made in no time."""
    data = bytearray(signed.read_bytes())
    (length,) = struct.unpack_from("<Q", data, 16)
    (entry,) = [s for s in json.loads(data[64 : 64 + length])["sections"] if s["kind"] == "weights"]
    polynomial = 0x1DB710641  # a multiple of it changes no crc32
    for bit in range(33):
        if polynomial >> bit & 1:
            data[entry["offset"] + bit // 8] ^= 1 << bit % 8
    load(bytes(data), check_weights=True)
    with pytest.raises(ArtifactError, match="damaged: wrong digest"):
        load(bytes(data), trust=keys / "ours.pub", check_weights=False)


def test_damaged_models_are_not_signed(tmp_path: Path, keys: Path) -> None:
    static_artifact().save(tmp_path / "model.tw")
    data = bytearray((tmp_path / "model.tw").read_bytes())
    data[-1] ^= 1
    (tmp_path / "model.tw").write_bytes(data)
    with pytest.raises(ArtifactError, match="wrong checksum"):
        sign(tmp_path / "model.tw", keys / "ours.pem")
    assert (tmp_path / "model.tw").read_bytes() == data


def test_keys_that_are_none(signed: Path, keys: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import x25519

    other = x25519.X25519PrivateKey.generate()
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (tmp_path / "other.pem").write_bytes(other.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = other.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    locked = ed25519.Ed25519PrivateKey.generate().private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    for key, message in (
        (tmp_path / "absent.pem", "cannot be read: .*No such file"),
        (b"nonsense", "the key cannot be read"),
        (locked, "the key cannot be read"),
        ((keys / "ours.pub").read_bytes(), "the key cannot be read"),
        (tmp_path / "other.pem", "is a X25519PrivateKey, and no Ed25519 key"),
        (3, "key= is of the type int: give the path"),
        (SECRET, r"key= is the text of a key, and no path\n  hint: give its bytes"),
        (bytearray(SECRET, "ascii"), "key= is of the type bytearray: give the path"),
    ):
        with pytest.raises(OptionError, match=message) as caught:
            sign(signed, key)  # type: ignore[arg-type]
        assert "MC4CAQ" not in str(caught.value)  # errors end up in logs
    for trust, message in (
        (tmp_path / "absent.pub", "cannot be read: .*No such file"),
        (b"nonsense", "trust= has a key that cannot be read"),
        (public, "trust= has a X25519PublicKey, and no Ed25519 key"),
        ([], "trust= is empty: give the path of a public key, or several"),
        (3, "trust= is of the type int: give the path of a public key, or several"),
        ([3], "trust= is of the type int: give the path of a key, or its bytes"),
        (public.decode(), "trust= is the text of a key, and no path"),
    ):
        with pytest.raises(OptionError, match=message):
            load(signed, trust=trust)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match="was changed since"):  # 32 bytes that are no point of the curve
        head = container.read_head(container._of_bytes(signed.read_bytes()))
        odd = b"\2" + bytes(31)
        signing.check_signature("it", head.digest, Signature(odd, bytes(64)), frozenset([odd]))


def test_without_the_package_an_error_names_it(signed: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    with pytest.raises(OptionError, match=r"need the package cryptography\n  hint: pip install cryptography"):
        load(signed, trust=keys / "ours.pub")
    load(signed)


def test_a_file_is_described_without_being_loaded(signed: Path, tmp_path: Path) -> None:
    file = ArtifactFile.of(signed)
    artifact = static_artifact()
    assert file.size == signed.stat().st_size and len(file.signed_by) == len(file.digest) == 64
    assert (file.cpu, file.triple, file.kind) == (artifact.target.cpu, artifact.target.triple, "cpu")
    assert [section.kind for section in file.sections] == ["image", "weights"]
    assert file.sections[1].size == 24 and file.sections[1].digest
    assert file.functions == 1 and file.imports == ()
    data = bytearray(signed.read_bytes())
    data[file.sections[1].offset] ^= 1
    shutil.copy(signed, tmp_path / "other.tw")
    (tmp_path / "other.tw").write_bytes(data)
    assert ArtifactFile.of(tmp_path / "other.tw") == file  # sections are not looked at
    (tmp_path / "other.tw").write_bytes(data[:100])
    with pytest.raises(ArtifactError, match="cut off"):
        ArtifactFile.of(tmp_path / "other.tw")
