"""Files that `torch.export.save` writes: zip archives of a program in JSON, and of tensors.

`torch.export.load` unpickles what an archive tells it to, and evaluates text, so that a file may run any code. Here
tensors are taken from the bytes of their records, pickled ones are read as weights only, and the program is handed to
PyTorch when its text has been checked.
"""

from __future__ import annotations

import importlib
import io
import json
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde.serialize import (
    ExportedProgramDeserializer,
    _dict_to_dataclass,
    deserialize_scalar_type,
)
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tilewright.frontends.files import check_file
from tilewright.frontends.problems import shown
from tilewright.frontends.torch.archive.text import (
    checked_program,
    guards_in,
    operators_of,
    with_known_containers,
)
from tilewright.ir.diag import ModelError, TilewrightError, UnsupportedError

_AGAIN = "export the model again with torch.export.save"
_VERSION = "0"


def read_program(path: Path) -> ExportedProgram:
    """The exported program in a file. ModelError for a file that is none, is damaged, or of another version."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _Archive(archive, path.stat().st_size).program()
    except TilewrightError as error:
        error.where = error.where or str(path)
        raise
    except zipfile.BadZipFile as error:
        raise ModelError(
            f"the file is no archive of torch.export.save, or it is damaged: {error}",
            where=str(path),
            hint=_AGAIN,
        ) from error
    except Exception as error:
        (first, *_) = str(error).splitlines() or [""]
        raise ModelError(
            f"PyTorch {torch.__version__} cannot read the exported program: {type(error).__name__}: {first[:300]}",
            where=str(path),
            hint="export it again with this version of PyTorch",
        ) from error


class _Archive:
    """The records of a file of `size` bytes. All names begin with one folder's."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        infos = archive.infolist()
        if sum(info.file_size for info in infos) > size or any(
            info.compress_type != zipfile.ZIP_STORED for info in infos
        ):
            raise ModelError("the archive has compressed or overlapping records", hint=_AGAIN)
        self._records = {info.filename.partition("/")[2]: info for info in infos}

    def program(self) -> ExportedProgram:
        if self._text("archive_format") != "pt2" or self._text("archive_version") != _VERSION:
            raise ModelError(
                "the file is no archive of torch.export.save, or one of another version",
                hint=f"{_AGAIN}, of PyTorch {torch.__version__}",
            )
        names = [name for name in self._records if name.startswith("models/") and name.endswith(".json")]
        if len(names) != 1:
            raise ModelError(
                f"the archive has {len(names)} exported programs", hint="save one of them by itself"
            )
        model = names[0].removeprefix("models/").removesuffix(".json")
        whole = self._json(names[0])
        text, guards = checked_program(whole), guards_in(whole)
        _require_operators(operators_of(text))
        text = with_known_containers(text, pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE)
        program = _dict_to_dataclass(schema.ExportedProgram, text)
        major = program.schema_version.major
        if major != schema.SCHEMA_VERSION[0]:
            raise ModelError(
                f"the file has schema {major}, PyTorch {torch.__version__} reads {schema.SCHEMA_VERSION[0]}",
                hint=f"{_AGAIN}, of PyTorch {torch.__version__}",
            )
        weights, constants = self._tensors("weights", model), self._tensors("constants", model)
        found = ExportedProgramDeserializer().deserialize(program, weights, constants, None)
        found._guards_code = guards
        return found

    # Tensors

    def _tensors(self, kind: str, model: str) -> dict[str, torch.Tensor]:
        """The tensors that a program knows by name; those that lie in one record share memory."""
        found: dict[str, torch.Tensor] = {}
        records: dict[str, torch.Tensor] = {}
        for name, told in self._json(f"data/{kind}/{model}_{kind}_config.json")["config"].items():
            path = f"data/{kind}/{told['path_name']}"
            if not told["path_name"].startswith(("weight_", "tensor_")):
                raise UnsupportedError(
                    f"'{shown(name)}' is an object of a custom class", hint="models take tensors: export it without"
                )
            if told["use_pickle"]:
                found[name] = self._unpickled(path, name)
                continue
            if path not in records:
                records[path] = self._bytes_of(path)
            tensor = _tensor(records[path], told["tensor_meta"], name)
            found[name] = torch.nn.Parameter(tensor, requires_grad=False) if told["is_param"] else tensor
        return found

    def _unpickled(self, path: str, name: str) -> torch.Tensor:
        try:
            found = torch.load(io.BytesIO(self._read(path)), weights_only=True)
        except Exception as error:
            raise UnsupportedError(
                f"'{shown(name)}' is pickled, and reading it would run code from the file",
                hint="load the file with torch.export.load if you trust it, and compile the program that it gives",
            ) from error
        if not isinstance(found, torch.Tensor):
            raise ModelError(f"'{shown(name)}' is no tensor", hint=_AGAIN)
        return found

    def _bytes_of(self, path: str) -> torch.Tensor:
        data = self._read(path)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

    # Records

    def _read(self, name: str) -> bytes:
        info = self._records.get(name)
        if info is None:
            raise ModelError(f"the archive has no record '{shown(name)}'", hint=_AGAIN)
        return self._archive.read(info)

    def _text(self, name: str) -> str:
        return self._read(name).decode(errors="replace")

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self._read(name))
        except (ValueError, RecursionError) as error:
            raise ModelError(f"the record '{shown(name)}' is damaged: {error}"[:300], hint=_AGAIN) from error


def _require_operators(wanted: set[tuple[str, str]]) -> None:
    """UnsupportedError for operators that nobody has registered in this process."""
    if any(namespace == "quantized_decomposed" for namespace, _ in wanted):
        with suppress(ImportError):
            importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers them
    unknown = sorted(f"{space}::{name}" for space, name in wanted if not hasattr(getattr(torch.ops, space), name))
    if unknown:
        raise UnsupportedError(
            f"PyTorch {torch.__version__} has no operators {', '.join(map(shown, unknown))}",
            hint="import the package that registers them before the file is compiled; if they are PyTorch's own, "
            "export the model again with this version",
        )


def _tensor(record: torch.Tensor, told: Mapping[str, Any], name: str) -> torch.Tensor:
    """The elements that a record's bytes are, as `told`; ModelError where it has too few."""
    if told["device"]["type"] != "cpu":
        raise UnsupportedError(
            f"'{shown(name)}' lies on the device '{shown(told['device']['type'])}'",
            hint="move the module to the CPU with .cpu() before it is exported",
        )
    dtype = deserialize_scalar_type(told["dtype"])
    sizes, strides = ([int(d["as_int"]) for d in told[key]] for key in ("sizes", "strides"))
    offset = int(told["storage_offset"]["as_int"])
    if len(sizes) != len(strides) or min((offset, *sizes, *strides)) < 0:
        raise ModelError(f"'{shown(name)}' has sizes {sizes} and strides {strides}", hint=_AGAIN)
    last = 0 if 0 in sizes else offset + 1 + sum((d - 1) * s for d, s in zip(sizes, strides, strict=True))
    if last * dtype.itemsize > record.numel() or record.numel() % dtype.itemsize:
        raise ModelError(
            f"'{shown(name)}' has {last} elements of {dtype}, its record {record.numel()} bytes", hint=_AGAIN
        )
    return torch.as_strided(record.view(dtype), sizes, strides, offset if last else 0)
