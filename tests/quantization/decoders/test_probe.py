"""Language models whose matrices come with the call, in float32 and in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.frontends.decoders.checkpoints import IDS, cases, tensor, write_folder
from tests.frontends.decoders.encoded import cases as encoders
from tests.frontends.decoders.test_architectures import check, stepped
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.frontends.weights.forms import WeightForm
from tilewright.ir.diag import UnsupportedError
from tilewright.quantization.decoders.probe import DecoderProbe
from tilewright.quantization.decoders.widened import widened

CASES = cases()


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", CASES)
def test_graphs_in_float64_compute_what_transformers_computes(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    module = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16))
    wide = widened(module)
    found = stepped(wide, (len(IDS),))
    assert found.dtype == np.float64
    check(found, case)
    pieces = stepped(wide, (3, 1, len(IDS) - 4))
    assert np.abs(pieces - found).max() < 1e-10 * np.abs(found).max()  # what float32 rounds is gone
    again = {name: array.dtype for name, array in module.constants.items()}
    assert np.dtype(np.float32) in again.values()  # the module is as it was


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("name", "part"), [("qwen2", "mlp"), ("mixtral", "experts")])
def test_both_probes_give_the_logits_of_the_graph(tmp_path: Path, name: str, part: str) -> None:
    case = CASES[name]
    write_folder(tmp_path, case["config"], case["tensors"])
    probe = DecoderProbe(tmp_path, 16, threads=1, cache=False)
    module = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16))
    ids = np.array(IDS)
    run = probe.narrow()
    begin = run(ids[:3])
    wide, narrow = probe.wide()(ids), run(ids)
    assert wide.dtype == np.float64 and narrow.dtype == np.float32
    exact = stepped(widened(module), (len(IDS),))
    np.testing.assert_allclose(wide, exact, rtol=1e-12, atol=1e-12 * np.abs(exact).max())
    np.testing.assert_allclose(narrow, exact, rtol=1e-4, atol=1e-5 * np.abs(exact).max())
    np.testing.assert_array_equal(run(ids[:3]), begin)  # a run leaves nothing to the next one
    forms = {name: WeightForm.of("int4:64") for name in probe.matrices.stored if part in name}
    assert forms
    rounded = load_decoder(DecoderSource(tmp_path, logits="all", capacity=16, weights={f"*{part}*": "int4:64"}))
    few = probe.narrow(forms)(ids)
    np.testing.assert_allclose(few, stepped(rounded, (len(IDS),)), rtol=1e-4, atol=1e-4)
    assert not np.allclose(few, narrow, atol=1e-4)


def test_what_columns_are_multiplied_by_is_seen(tmp_path: Path) -> None:
    """That of the head are normed rows: their squares have a mean of one, times those of the norm's weights."""
    case = CASES["llama"]
    write_folder(tmp_path, case["config"], case["tensors"])
    probe = DecoderProbe(tmp_path, 16, threads=1, cache=False)
    run = probe.wide()
    assert probe.seen == {}
    for _ in range(2):
        run(np.array(IDS))
    assert set(probe.seen) == {name for name in probe.matrices.stored if name != "model.embed_tokens.weight"}
    assert all(probe.seen[n].shape == (probe.matrices.stored[n].shape[1],) for n in probe.seen)
    norm = tensor("model.norm.weight", case["tensors"]["model.norm.weight"]).astype(np.float64)
    assert (probe.seen["lm_head.weight"] / norm**2).mean() == pytest.approx(1, rel=1e-3)


def test_what_reads_more_than_tokens_is_refused(tmp_path: Path) -> None:
    case = next(iter(encoders().values()))
    write_folder(tmp_path, case["config"], case["tensors"])
    with pytest.raises(UnsupportedError, match="beside tokens are not compared"):
        DecoderProbe(tmp_path, 16)
