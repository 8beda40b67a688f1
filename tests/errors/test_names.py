"""Names of a model as they are in messages: nothing in them steers a terminal, or fills it."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of

HOSTILE = "a\x1b[31mred\x07\u202egnp\u2066\x00x\rline\u200f\x7f\x9b"


@pytest.mark.parametrize("name", [HOSTILE, "n" * 100_000])
def test_names_in_errors_of_calls(name: str) -> None:
    node = helper.make_node("Softmax", [name], ["y"], name=name)
    model = tilewright.compile(model_of([node], [info(name, [name, 4])], ["y"]), cache=False, threads=1)
    calls = [(np.ones((2, 5), np.float32),), (np.ones((2, 4)),), (), (np.ones(3, np.float32),)]
    for arguments in calls:
        with pytest.raises(tilewright.InputError) as caught:
            model(*arguments)
        text = str(caught.value)
        assert len(text) < 2000
        assert not [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf")]
