"""Fuzzing what reads artefacts: whatever a file holds, also with right checksums, gives an ArtifactError, or is loaded.

Native code and what it relies on (the sizes, shapes and weights that it was made with) are trusted, as the contract of
`Artifact.load` says: code that was changed, or belongs to other data than it was made for, is mapped and not called.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.fuzz.files.documents import mutate
from tests.fuzz.files.limits import limited
from tests.fuzz.registry import Tried
from tests.models import gather, mlp
from tests.staging.models import model_of
from tilewright.api import compile_artifact
from tilewright.options import Options
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import ArtifactError, OptionError, TilewrightError
from tilewright.runtime.guarded import GUARD_ZONES as REPORT
from tilewright.runtime.report.kept import KeptReport
from tilewright.runtime.report.records import ProgramReport
from tilewright.runtime.storage import files
from tilewright.runtime.storage.container import FORMAT, MAGIC
from tilewright.runtime.storage.levels import load_level

HEADER = 64
CHANGES = (1, 1, 1, 2, 3)
LEVELS = ("x86-64", "x86-64-v4")


@functools.cache
def artifacts() -> tuple[Artifact, ...]:
    """Of fixed shapes, of symbolic ones, with variants, of two levels, whose weights are in parts, and staged: with
    native parts, and with functions of the host only."""
    i64, string = TensorProto.INT64, TensorProto.STRING
    sized = model_of(
        [helper.make_node("NonZero", ["x"], ["at"]), helper.make_node("Cast", ["at"], ["y"], to=1)],
        [("x", TensorProto.FLOAT, [4])],
        ["y"],
        {},
    )
    labels = {"keys_strings": ["ab", "b"], "values_int64s": [3, 4], "default_int64": -1}
    texts = model_of(
        [
            helper.make_node("StringConcat", ["a", "b"], ["c"]),
            helper.make_node("LabelEncoder", ["c"], ["y"], domain="ai.onnx.ml", **labels),
            helper.make_node("SequenceConstruct", ["c", "c"], ["s"]),
            helper.make_node("SequenceAt", ["s", "k"], ["z"]),
        ],
        [("a", string, ["n"]), ("b", string, ["n"]), ("k", i64, [])],
        ["y", "z"],
        {},
    )
    options = Options(cache=False, compile_threads=1)
    models = [mlp(), gather(), sized, texts, looped()]
    made = (
        *(compile_artifact(model, options=options) for model in models),
        compile_artifact(mlp(), options=options, shapes={"x": (2, 64)}),
        compile_artifact(mlp(), options=replace(options, frequent=({"batch": 3}, {"batch": 8}))),
        compile_artifact(looped(), options=replace(options, frequent=({"n": 3},))),
        compile_artifact(mlp(), options=replace(options, target=";".join(LEVELS))),
    )
    return tuple(map(_without_zones, made))


def _without_zones(artifact: Artifact) -> Artifact:
    """Without what it tells the guard zones, which trust it: damaged artefacts would be cut anywhere."""
    return replace(
        artifact,
        attached={name: told for name, told in artifact.attached.items() if name != REPORT},
        parts=tuple(map(_without_zones, artifact.parts)),
        variants=tuple(replace(v, artifact=_without_zones(v.artifact)) for v in artifact.variants),
        levels=tuple(map(_without_zones, artifact.levels)),
    )


def looped() -> Any:
    """A loop whose end is computed, with a sequence as its state."""
    i64, boolean = TensorProto.INT64, TensorProto.BOOL
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("Add", ["state", "state"], ["new"]),
            helper.make_node("Less", ["i", "limit"], ["more"]),
            helper.make_node("And", ["on", "more"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", i64, []),
            helper.make_tensor_value_info("go", boolean, []),
            helper.make_tensor_value_info("state", 1, ["n"]),
        ],
        [helper.make_tensor_value_info("next", boolean, []), helper.make_tensor_value_info("new", 1, ["n"])],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    return model_of([node], [("x", 1, ["n"]), ("trips", i64, []), ("limit", i64, [])], ["y"], {})


@functools.cache
def corpus() -> tuple[bytes, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_LEAST_PART", 1 << 10)  # of what is small otherwise, too
        return tuple(artifact.to_bytes() for artifact in artifacts())


@functools.cache
def trusted() -> tuple[Artifact, ...]:
    """The native artefacts, which may be called."""
    return tuple(_essence(native) for artifact in artifacts() for native in natives(artifact))


def natives(artifact: Artifact) -> tuple[Artifact, ...]:
    """All programs of native code."""
    own = artifact.parts if artifact.program is not None else (artifact,)
    return (*own, *(native for variant in artifact.variants for native in natives(variant.artifact)))


def _essence(artifact: Artifact) -> Artifact:
    no_report = KeptReport(ProgramReport())
    return replace(artifact, kept_report=no_report, producer="", constant_table=(), format=0, variants=())


@dataclass
class _Section:
    kind: str
    data: bytes
    parts: tuple[int, ...] = ()


def mutated(data: bytes, random: Random) -> bytes:
    """An artefact with a few changes, signed again in most cases; of bytes that are none, one of the corpus."""
    if random.random() < 0.1:
        return _damaged(data, random)
    metadata, sections = _parsed(data) or _parsed(random.choice(corpus())) or ({}, [])
    donor, others = _parsed(random.choice(corpus())) or ({}, [])
    for _ in range(random.choice(CHANGES)):
        if sections and random.random() < 0.15:
            _change_sections(sections, others, random)
        else:
            mutate(metadata, random, donor)
    return _written(metadata, sections, random)


def _damaged(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice(CHANGES)):
        at = random.randrange(len(changed) + 1)
        how = random.random()
        if how < 0.3:
            del changed[at:]
        elif how < 0.5:
            changed[at:at] = bytes(random.choice((1, 64)))
        elif at < len(changed):
            changed[at] ^= 1 << random.randrange(8)
    return bytes(changed)


def _parsed(data: bytes) -> tuple[dict[str, Any], list[_Section]] | None:
    """Metadata and sections of bytes that have the form of an artefact."""
    try:
        (length,) = struct.unpack_from("<Q", data, 16)
        metadata = json.loads(data[HEADER : HEADER + length])
        table = metadata.pop("sections")
        found = [
            _Section(
                e["kind"], data[e["offset"] : e["offset"] + e["size"]], tuple(p["size"] for p in e.get("parts", ()))
            )
            for e in table
        ]
        return metadata, found
    except Exception:  # of what random changes have left of it
        return None


def _change_sections(sections: list[_Section], others: Sequence[_Section], random: Random) -> None:
    at = random.randrange(len(sections))
    how, section = random.random(), sections[at]
    if how < 0.2:
        del sections[at]
    elif how < 0.4:
        sections.insert(at, random.choice([*sections, *others]))
    elif how < 0.5:
        section.kind = random.choice(("image", "code", "weights", "x"))
    else:
        section.data = _damaged(section.data, random)


def _written(metadata: dict[str, Any], sections: Sequence[_Section], random: Random) -> bytes:
    """The bytes of an artefact as `container` describes them, its table of sections changed now and then."""
    space = len(json.dumps(metadata)) + 200 * len(sections) + 64
    table, body = [], bytearray(space)
    for section in sections:
        body += bytes(-len(body) % 64)
        entry = {"offset": HEADER + len(body), "size": len(section.data), **_sums(section)}
        table.append({"kind": section.kind, **entry})
        body += section.data
    document = {**metadata, "sections": table}
    if random.random() < 0.05:
        mutate(document, random, document)
    text = json.dumps(document).encode().ljust(space)
    body[:space] = text
    head = struct.pack("<8sIIQQ", MAGIC, FORMAT, 0, len(text), HEADER + len(body))
    return head + hashlib.blake2b(head + text, digest_size=32).digest() + bytes(body)


def _sums(section: _Section) -> dict[str, Any]:
    if section.kind != "weights":
        return {"checksum": hashlib.blake2b(section.data, digest_size=32).hexdigest()}
    if not section.parts:
        return {"checksum": f"{zlib.crc32(section.data):08x}"}
    parts, at = [], 0
    for size in section.parts:
        parts.append({"size": size, "checksum": f"{zlib.crc32(section.data[at : at + size]):08x}"})
        at += size
    return {"checksum": "", "parts": parts}


def fuzz(seed: int) -> Tried:
    """An artefact of the corpus, changed."""
    random = Random(seed)
    return target(mutated(random.choice(corpus()), random))


def target(data: bytes) -> Tried:
    """Load an artefact, map its code, and call it where it is known, and all that it relies on."""
    known = trusted()
    with limited():
        return Counter({("artefact", _outcome(data, known)): 1})


def _outcome(data: bytes, known: Sequence[Artifact]) -> str:
    for name in LEVELS:  # of most files there is none
        with contextlib.suppress(ArtifactError, OptionError):
            load_level(data, name, check_weights=None, mmap=False, trust=None)
    try:
        artifact = Artifact.load(data)
    except ArtifactError:
        return "refused"
    with contextlib.suppress(ArtifactError):  # its report is read when it is asked for
        str(artifact.summary())
    assert Artifact.load(artifact.to_bytes()) == artifact
    try:
        model = Model(artifact, 1)
    except ArtifactError:
        return "not linked"
    with model:
        [(arg.name, arg.shape, arg.type) for arg in (*model.get_inputs(), *model.get_outputs())]
        if not all(_essence(a) in known for a in natives(artifact)):
            return "linked"
        model.max_seconds = 1
        values = [_value(info) for info in model.inputs]
        try:
            model(*values)
        except TilewrightError:
            return "not run"
        return "run"


def _value(info: Any) -> Any:
    shape = [d if isinstance(d, int) and 0 <= d < 100 else 3 for d in info.shape[:8]]
    if info.dtype in ("string", "object"):
        return np.full(shape, "b", object)
    return np.ones(shape, info.dtype)
