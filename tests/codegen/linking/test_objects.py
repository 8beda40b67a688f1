"""The relocatable objects of a compiled model, for whoever links them in another way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.models import mlp
from tilewright.codegen.cpu.assemble import ObjectFile
from tilewright.codegen.cpu.linking.elf import read_elf
from tilewright.codegen.cpu.linking.link import link
from tilewright.compiler import compile_request
from tilewright.options import Options, Request
from tilewright.session import Session
from tilewright.target.named import NAMED


@pytest.mark.parametrize("target", ["zen4", "neoverse-n1", "apple-m1"])
def test_objects_are_given_by_kind_and_are_what_the_image_is_linked_of(target: str) -> None:
    given: list[Sequence[ObjectFile]] = []
    options = Options(target=target, cache=False)
    artifact = compile_request(Request.of(mlp(), None, None), options, session=Session(), on_objects=given.append)
    (files,) = given
    assert [file.kind for file in files].count("program") == [file.kind for file in files].count("pool") == 1
    kernels = [file.name for file in files if file.kind == "kernel"]
    assert kernels == list(dict.fromkeys(call.kernel for call in artifact.report.calls))
    machine = {"x86_64": 62, "aarch64": 183}[NAMED[target].arch]
    assert all(read_elf(file.data, file.name).machine == machine for file in files)
    assert link([file.data for file in files]) == artifact.image
