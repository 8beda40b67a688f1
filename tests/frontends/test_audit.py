"""Every operator of the standard, in every version of it and every element type, is translated or refused by name."""

from __future__ import annotations

import random

import onnx
import pytest

from docs.operators import STANDARD
from tests import element_types
from tests.element_types import Variant, is_explained, outcome, variants
from tilewright.frontends.onnx.registry import find_adapter, find_host_adapter, refused
from tilewright.frontends.onnx.schema import has_body

SAMPLE = 15
"""Variants that are compiled anew in every run of the tests; `python -m tests.element_types` does all."""

SCHEMAS = [
    s for s in onnx.defs.get_all_schemas_with_history() if s.since_version <= STANDARD.get(s.domain, s.since_version)
]


def is_bound(schema: onnx.defs.OpSchema) -> bool:
    key = schema.domain, schema.name, schema.since_version
    return bool(find_adapter(*key) or find_host_adapter(*key) or has_body(schema))


def test_every_version_of_every_operator_is_translated_or_refused_by_name() -> None:
    """With an adapter of that version, or with the function body that the standard gives."""
    assert len(SCHEMAS) > 600
    missing = {f"{s.domain}.{s.name}-{s.since_version}" for s in SCHEMAS if not is_bound(s)}
    named = {f"{domain}.{name}-1" for domain, name in refused() if domain in ("", "ai.onnx.preview.training")}
    assert missing <= named == {".ATen-1", ".GRUUnit-1", ".GivenTensorFill-1", "ai.onnx.preview.training.Gradient-1"}


@pytest.fixture(scope="module")
def all_variants() -> list[Variant]:
    return list(variants())


@pytest.mark.fresh_seeds(1)
def test_operators_in_element_types_drawn_afresh(all_variants: list[Variant], fresh_seed: int) -> None:
    open_ones = [v for v in all_variants if not is_explained(v)]
    assert len(open_ones) > 1000
    for variant in random.Random(fresh_seed).sample(open_ones, SAMPLE):
        assert outcome(variant)[0] in ("agrees", "unknown"), (str(variant), outcome(variant))


def test_each_explanation_is_about_a_variant(all_variants: list[Variant]) -> None:
    known = {v.type for v in all_variants} | {v.case.operator for v in all_variants}
    assert set(element_types.EXPLAINED) <= known
