"""Files that `tilewright convert` writes: whole or not at all, and over nothing that is wanted."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import tilewright
from tests.exporters.round_trip import parsed, run
from tests.frontends.tflite import models as tflite
from tilewright.cli.app import commands
from tilewright.exporters.onnx import file as files
from tilewright.exporters.onnx.write import write_onnx
from tilewright.frontends.onnx.load import load_onnx
from tilewright.frontends.tflite.load import load_tflite
from tilewright.runtime.errors import ArtifactError, OptionError

W = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(parsed('g (float["läng/e", 64] x) => (float["läng/e", 64] y) { [dense] y = MatMul (x, w) }', w=W), path)
    return path


def test_a_file_is_written_and_its_path_given(source: Path, tmp_path: Path) -> None:
    (out, *others) = tilewright.convert(source, tmp_path / "out.onnx", opset=17)
    assert out == tmp_path / "out.onnx" and not others
    proto = onnx.load(out)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.producer_name == "tilewright" and proto.opset_import[0].version == 17
    np.testing.assert_allclose(run(proto, {"x": X})[0], X @ W, rtol=1e-4, atol=1e-4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


def test_weights_beside_the_model(source: Path, tmp_path: Path) -> None:
    (out, *_) = tilewright.convert(source, tmp_path / "out.onnx", external_data=True)
    assert out.stat().st_size < 1000 and (tmp_path / "out.onnx.data").stat().st_size == W.nbytes
    onnx.checker.check_model(str(out), full_check=True)
    np.testing.assert_allclose(run(onnx.load(out), {"x": X})[0], X @ W, rtol=1e-4, atol=1e-4)
    (y,) = tilewright.compile(out, cache=False)(X)
    np.testing.assert_allclose(y, X @ W, rtol=1e-4, atol=1e-4)


def test_weights_of_two_gigabytes_lie_beside_the_model_by_themselves(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", W.nbytes)
    tilewright.convert(source, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").exists()
    with pytest.raises(ArtifactError, match="holds less than 2 GB, and the model has"):
        tilewright.convert(source, tmp_path / "other.onnx", external_data=False)
    assert not (tmp_path / "other.onnx").exists()


def test_the_bytes_of_a_file_are_those_of_protocol_buffers(source: Path, tmp_path: Path) -> None:
    (out, *_) = tilewright.convert(source, tmp_path / "out.onnx")
    proto = onnx.load(out)
    again = onnx.ModelProto.FromString(proto.SerializeToString())
    assert again == proto and onnx.numpy_helper.to_array(proto.graph.initializer[0]).tobytes() == W.tobytes()


def test_nothing_that_is_wanted_is_replaced(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    with pytest.raises(ArtifactError, match="it is what is read from"):
        tilewright.convert(source, source)
    link = tmp_path / "link.onnx"
    link.symlink_to(source)
    with pytest.raises(ArtifactError, match="it is what is read from"):
        tilewright.convert(source, link)
    other = tmp_path / "notes.onnx"
    other.write_text("not a model")
    with pytest.raises(ArtifactError, match="a file that is not an ONNX model"):
        tilewright.convert(source, other)
    assert source.read_bytes() == before and other.read_text() == "not a model"
    tilewright.convert(source, source, force=True)
    assert onnx.load(source).producer_name == "tilewright"
    tilewright.convert(source, tmp_path / "out.onnx")
    tilewright.convert(source, tmp_path / "out.onnx", external_data=True)  # a model is replaced by another one
    assert onnx.load(tmp_path / "out.onnx").producer_name == "tilewright"


@pytest.mark.parametrize("external", [False, True])
def test_an_interrupted_write_leaves_what_was_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    (out, *_) = tilewright.convert(source, tmp_path / "out.onnx")
    before = out.read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files, "write_slices", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tilewright.convert(source, out, external_data=external)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx", "out.onnx"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    with pytest.raises(ArtifactError, match="cannot write"):
        tilewright.convert(source, folder / "out.onnx")


def test_a_folder_that_does_not_exist(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot write .*none/out\.onnx: No such file"):
        tilewright.convert(source, tmp_path / "none" / "out.onnx")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"output": "out.bin"}, "the suffix is .onnx"),
        ({"output": 3}, "give the path of a file"),
        ({"opset": 13}, "versions of the operator set that are written are 14 to"),
        ({"opset": True}, "opset=True is not allowed"),
        ({"opset": "17"}, "opset='17' is not allowed"),
        ({"external_data": 1}, "give True, False or None"),
    ],
)
def test_wrong_arguments(source: Path, tmp_path: Path, arguments: dict, message: str) -> None:
    given = {"output": tmp_path / "out.onnx", **arguments}
    with pytest.raises(OptionError, match=message):
        tilewright.convert(source, **given)


def test_strings_are_refused(tmp_path: Path) -> None:
    lower = 'StringNormalizer <case_change_action = "LOWER">'
    proto = parsed(f"g (string[n] x) => (string[n] y) {{ [lower] y = {lower} (x) }}")
    with pytest.raises(tilewright.UnsupportedError, match=r"normalize_text: strings are not converted \[node 'lower'"):
        tilewright.convert(proto.SerializeToString(), tmp_path / "out.onnx")
    assert list(tmp_path.iterdir()) == []


def test_names_of_any_characters(tmp_path: Path) -> None:
    proto = parsed('g (float[2] "a b/ü;\\n") => (float[2] "::", float[2] same, float[2] again) '
                   '{ "::" = Relu ("a b/ü;\\n") same = Identity ("a b/ü;\\n") again = Identity ("::") }')  # fmt: skip
    out = onnx.load(tilewright.convert(proto.SerializeToString(), tmp_path / "out.onnx")[0])
    name = proto.graph.input[0].name
    assert [i.name for i in out.graph.input] == [name]
    assert [o.name for o in out.graph.output] == ["::", "same", "again"]
    x = np.array([-1, 2], np.float32)
    for found, wanted in zip(run(out, {name: x}), ([0, 2], x, [0, 2]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_the_module_is_as_it_was(source: Path, tmp_path: Path) -> None:
    from tilewright.exporters.onnx.write import write_onnx
    from tilewright.ir.text import print_module

    module = load_onnx(source)
    before, users = print_module(module), [len(v.users) for op in module.main.body.ops for v in op.results]
    write_onnx(module, tmp_path / "out.onnx", opset=14)
    assert print_module(module) == before
    assert [len(v.users) for op in module.main.body.ops for v in op.results] == users


def test_the_command(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = CliRunner().invoke(commands, ["convert", str(source), "-o", str(out), "--opset", "18", "--external-data"])
    assert done.exit_code == 0, done.output
    assert f"{out}: " in done.output and f"{out}.data: 16 KiB" in done.output
    assert onnx.load(out).opset_import[0].version == 18
    shaped = CliRunner().invoke(commands, ["convert", str(source), "-o", str(out), "--shape", "x=5,64", "--json"])
    assert shaped.exit_code == 0 and '"bytes"' in shaped.output
    assert onnx.load(out).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 5
    again = CliRunner().invoke(commands, ["convert", str(source)])
    assert again.exit_code == 1 and "it is what is read from" in again.output
    wrong = CliRunner().invoke(commands, ["convert", str(source), "-o", str(out), "--opset", "3"])
    assert wrong.exit_code == 2 and "are 14 to" in wrong.output


def test_a_value_of_a_layer_of_many_steps_keeps_its_name(tmp_path: Path) -> None:
    """A convolution of TFLite is transposes around one of ONNX, and cubes look alike before and behind each of them."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 8, 8, 8), (8, 3, 3, 8)))
    tensors = [tflite.Tensor("x", x.shape), tflite.constant("w", w)]
    tensors += [tflite.Tensor(name, x.shape) for name in ("first", "second")]
    slide = {"stride_h": 1, "stride_w": 1, "padding": 0}
    layers = [tflite.Node("CONV_2D", [a, "w", None], [b], slide) for a, b in (("x", "first"), ("first", "second"))]
    module = load_tflite(tflite.written(tflite.Graph(tensors, layers, ["x"], ["second"])))
    proto = onnx.load(write_onnx(module, tmp_path / "out.onnx")[0])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("first", onnx.TensorProto.FLOAT, x.shape))
    (first,) = tflite.run(tflite.written(tflite.Graph(tensors[:3], layers[:1], ["x"], ["first"])), x)
    np.testing.assert_allclose(run(proto, {"x": x})[1], first, rtol=1e-4, atol=1e-4)
