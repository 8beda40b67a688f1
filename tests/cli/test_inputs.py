"""Inputs on the command line: usual sizes of unknown dims that the model takes, numbers, images, sound, recordings."""

from __future__ import annotations

import wave
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tilewright.cli.app import commands
from tilewright.cli.inputs.first_calls import first_call, given_inputs
from tilewright.cli.inputs.search import Search, elements_of
from tilewright.cli.inputs.sizes import find_sizes, size_of, usual_sizes
from tilewright.cli.inputs.specs import read_specs
from tilewright.quantization.data import open_data
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError
from tilewright.runtime.values.recorded import read_input

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Image = pytest.importorskip("PIL.Image")


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def refuse(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 1 and "Traceback" not in result.output, result.output
    return " ".join(result.output.split())


def model(
    folder: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], dtype: int = FLOAT,
    **weights: np.ndarray,
) -> Path:  # fmt: skip
    infos = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    y = helper.make_tensor_value_info("y", dtype, None)
    known = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", infos, [y], known)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return models.written(proto, folder, "model")


def windows(folder: Path) -> Path:
    """A convolution of 7x7, and blocks of 32 columns of an image."""
    return model(
        folder,
        [
            helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[7, 7], pads=[3, 3, 3, 3]),
            helper.make_node("Reshape", ["c", "s"], ["y"]),
        ],
        {"x": ["N", 3, "h", "k"]},
        w=np.zeros((4, 3, 7, 7), np.float32),
        s=np.array([0, 0, -1, 96], np.int64),
    )


@pytest.mark.parametrize("dims", [["N", 3, "height", "width"], ["N", 3, "a", "b"], [1, 3, "H", "W"]])
def test_images_have_a_usual_size(tmp_path: Path, dims: list[int | str]) -> None:
    pool = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[32, 32], strides=[32, 32])
    said = succeed("run", model(tmp_path, [pool], {"x": dims}), "--input", "random")
    assert "float32[1, 3, 7, 7]" in said and "=224" in said and "--dim changes them" in said


def test_sizes_are_multiples_where_the_model_wants_them(tmp_path: Path) -> None:
    """224 times 224 is no multiple of 96."""
    path = windows(tmp_path)
    assert "h*k % 96" in refuse("run", path, "--input", "random", "--dim", "h=224", "--dim", "k=224")
    assert "96]" in succeed("run", path, "--input", "random")
    assert "h=224" not in succeed("run", path, "--input", "random", "--dim", "k=224")


def test_sizes_are_equal_where_the_model_wants_them(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "z"], ["y"])
    said = succeed("run", model(tmp_path, [add], {"x": ["b", "seq"], "z": ["b", "height"]}), "--input", "random")
    seq, height = (int(said.split(f"{name}=")[1].split()[0].strip(",")) for name in ("seq", "height"))
    assert seq == height


def test_sizes_are_large_enough(tmp_path: Path) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[80])
    path = model(tmp_path, [conv], {"x": ["b", 40, "n"]}, w=np.zeros((4, 40, 80), np.float32))
    assert "float32[1, 4, " in succeed("run", path, "--input", "random")
    assert "x [1, 40, " in succeed("bench", path, "--rounds", 1, "--turn", 0)


BLOCKS = (
    # shape of the input, shape of the result, sizes, of which the least that fits is found
    (["a"], [-1, 7, 160], "a=1120"),
    (["a", "b", "c"], [-1, 7, 160], "a=1, b=56, c=100"),
    (["a", "b", "c", "d"], [13, 17, -1], "a=1, b=221, c=224, d=224"),
    (["a", "b"], [3001, 3], "a=1, b=9003"),
    (["n", "m"], [65521, 2], "m=131042, n=1"),
)


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("dims", "shape", "sizes"), BLOCKS)
def test_products_of_sizes_are_what_the_model_assumes(
    tmp_path: Path, dims: list[int | str], shape: list[int], sizes: str
) -> None:
    reshape = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = model(tmp_path, [reshape], {"x": dims}, s=np.array(shape, np.int64))
    assert sizes in succeed("run", path, "--input", "random")
    assert "x [" in succeed("bench", path, "--rounds", 1, "--turn", 0)


def test_sizes_of_a_flattened_image_are_found(tmp_path: Path) -> None:
    """The classifier of a network for one size of images, whose dims the exporter has forgotten."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Reshape", ["c", "s"], ["f"]),
        helper.make_node("MatMul", ["f", "v"], ["y"]),
    ]
    w, v = np.zeros((4, 3, 3, 3), np.float32), np.zeros((4 * 27 * 41, 5), np.float32)
    path = model(tmp_path, nodes, {"x": ["N", 3, "H", "W"]}, w=w, v=v, s=np.array([0, -1], np.int64))
    said = succeed("run", path, "--input", "random")
    h, w_ = (int(said.split(f"{name}=")[1].split()[0].strip(",")) for name in "HW")
    assert ((h - 3) // 2 + 1) * ((w_ - 3) // 2 + 1) == 27 * 41 and "N=1" in said


def test_sizes_that_are_not_found_ask_for_dim(tmp_path: Path) -> None:
    """3001 is a prime, and no square."""
    reshape = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = model(tmp_path, [reshape], {"x": ["n", "n"], "z": ["my batch"]}, s=np.array([3001], np.int64))
    said = refuse("run", path, "--input", "random")
    assert "n*n == 3001" in said and "in place of these: --dim my_batch=1 --dim n=" in said
    assert "--dim n=" in refuse("bench", path, "--rounds", 1)
    assert "in place" not in refuse("run", path, "--input", "random", "--dim", "n=1")


def satisfying(
    conditions: list[str], most: int = 1 << 20, known: dict[str, int] | None = None, **usual: int
) -> dict[str, int]:
    choices = {name: (size, 2 * size) for name, size in usual.items()}

    def elements(sizes: Mapping[str, Any]) -> Any:
        return elements_of([["a", "b"]], {"a": 1, "b": 1, **sizes})

    return Search(choices, known or {}, elements, most).satisfying(conditions)


def test_a_search_changes_few_sizes() -> None:
    assert satisfying(["a >= 1"], a=7, b=9) == {"a": 7, "b": 9}
    assert satisfying(["a % 5 == 0"], a=7, b=9) == {"a": 5, "b": 9}
    assert satisfying(["a == 2*b"], a=7, b=9) == {"a": 18, "b": 9}
    assert satisfying(["a == c + 1"], known={"c": 40}, a=7, b=9) == {"a": 41, "b": 9}
    assert satisfying(["a == 3 or one of them is 1", "b < 6 and b != 5"], a=1, b=9) == {"a": 1, "b": 1}
    assert satisfying(["max(a, b, 3) == 3", "select(a == 2, b, 0) == 2"], a=7, b=9) == {"a": 2, "b": 2}
    assert satisfying(["a*b == 1000000000000037"], most=1 << 30, a=7, b=9) == {"a": 7, "b": 9}  # which nobody finds
    assert satisfying(["a*b % 1000 == 0"], most=10, a=7, b=9) == {"a": 7, "b": 9}  # and which would be too large
    unreadable = ["a +", "other > 3", "a // 0 == 1", "a**b == 3", "a(b) == 1", "'a'"]
    assert satisfying(unreadable, a=7, b=9) == {"a": 7, "b": 9}


def test_a_search_with_many_dims_ends() -> None:
    names = [f"d{k}" for k in range(40)]
    conditions = [f"{one}*{other} == 62615533" for one, other in pairwise(names)]
    assert satisfying(conditions, **dict.fromkeys(names, 3)).keys() == {*names}


def test_dims_with_names_that_are_no_words(tmp_path: Path) -> None:
    reshape = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = model(tmp_path, [reshape], {"x": ["seq-len", "?"]}, s=np.array([-1, 7, 11], np.int64))
    assert "7, 11]" in succeed("run", path, "--input", "random")


def test_given_arrays_say_the_sizes_of_dims(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "z"], ["y"])
    path = model(tmp_path, [add], {"x": ["b", "n"], "z": ["b", "n"]})
    np.save(tmp_path / "x.npy", np.ones((5, 13), np.float32))
    said = succeed("run", path, "--input", f"x={tmp_path / 'x.npy'}", "--input", "random")
    assert "float32[5, 13]" in said and "sizes:" not in said


@pytest.mark.parametrize(
    ("info", "sizes"),
    [
        (TensorInfo("x", "float32", ("batch", "sequence_length")), {"batch": 1, "sequence_length": 32}),
        (TensorInfo("x", "float32", ("batch", 3, "h", "w")), {"batch": 1, "h": 224, "w": 224}),
        (TensorInfo("x", "float32", ("unk", 3, "x_2", "x_3")), {"unk": 1, "x_2": 224, "x_3": 224}),
        (TensorInfo("audio", "float32", ("batch", "audio_1")), {"batch": 1, "audio_1": 16000}),
        (TensorInfo("x", "float32", ("b", "num_samples")), {"b": 1, "num_samples": 16000}),
        (TensorInfo("ids", "int64", ("d0", "d1")), {"d0": 1, "d1": 32}),
        (TensorInfo("x", "uint8", ("a", "b", 3)), {"a": 1, "b": 224}),
        (TensorInfo("mask", "int64", ("batch", "past_length + seq")), {"batch": 1, "past_length": 16, "seq": 32}),
    ],
)
def test_what_names_and_places_say(info: TensorInfo, sizes: dict[str, int]) -> None:
    assert {name: usual[0] for name, usual in usual_sizes([info]).items()} == sizes


def test_dims_may_be_computed() -> None:
    sizes = {"past": 3, "n": 8}
    for dim, size in (
        ("past + 1", 4), ("2*n", 16), ("(n - past) // 2", 2), ("max(n, past) % 5", 3), ("-past + 7", 4), (6, 6)
    ):  # fmt: skip
        assert size_of(dim, sizes) == size
    for dim in ("other + 1", "n // 0", "__import__('os')", "n ** n", "past +"):
        with pytest.raises(ValueError, match="cannot be computed"):
            size_of(dim, sizes)


def test_a_search_ends_with_the_first_error() -> None:
    def fails(sizes: dict[str, int]) -> InputError:
        return InputError(f"n is {sizes['n']}")

    with pytest.raises(InputError, match="n is 1"):
        find_sizes({"n": (1, 2, 3)}, fails)


def test_numbers_and_lists(tmp_path: Path) -> None:
    add = helper.make_node("Add", ["x", "z"], ["y"])
    path = model(tmp_path, [add], {"x": [3], "z": []}, INT64)
    said = succeed("run", path, "--input", "x=1,2,3", "--input", "z=16000", "--output", tmp_path / "out")
    assert "int64[3]" in said
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [16001, 16002, 16003]
    succeed("run", path, "--input", "x=7", "--input", "z=0", "--output", tmp_path / "out")
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [7, 7, 7]
    for wrong in ("1.5", "nan", "1e300", "99999999999999999999"):
        assert f"{wrong} is no value of int64" in refuse("run", path, "--input", f"x={wrong}", "--input", "z=1")
    assert "1.5 is no value of int64" in refuse("run", path, "--input", "x=1.5", "--input", "z=1")
    assert "[2]" in refuse("run", path, "--input", "x=1,2", "--input", "z=1")


def test_a_number_fills_whatever_size_is_found(tmp_path: Path) -> None:
    reshape = helper.make_node("Reshape", ["x", "s"], ["y"])
    path = model(tmp_path, [reshape], {"x": ["a", "b"]}, s=np.array([-1, 7, 11], np.int64))
    assert "7, 11] 0.5 0.5 0.5" in succeed("run", path, "--input", "x=0.5")
    assert "float32[3, 7, 11] 2" in succeed("run", path, "--input", "2", "--dim", "a=3", "--dim", "b=77")


@pytest.mark.parametrize("value", ["abc", "", "[1,2", "{}", "null", "[[1],[2,3]]", '"1"'])
def test_what_is_no_value_is_told(tmp_path: Path, value: str) -> None:
    path = model(tmp_path, [helper.make_node("Add", ["x", "z"], ["y"])], {"x": ["n", 3], "z": []})
    said = refuse("run", path, "--input", "x=1", "--input", f"z={value}")
    assert f"'{value}' is neither a number, nor a list, nor a file" in said
    assert "input 'z'" in said and "random, zeros, or a file (.npy, " in said


def test_names_and_values_that_are_meant(tmp_path: Path) -> None:
    path = model(tmp_path, [helper.make_node("Add", ["x", "bias"], ["y"])], {"x": ["n", 3], "bias": []})
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3), np.float32))
    assert "did you mean 'random'" in refuse("run", path, "--input", "x=randm", "--input", "bias=1")
    assert "did you mean 'bias'" in refuse("run", path, "--input", "x=1", "--input", "baes=1")
    assert "for: bias: float32[]" in refuse("run", path, "--input", tmp_path / "x.npz")
    said = refuse("run", path)
    assert "no values are given for: x: float32[n, 3], bias: float32[]" in said and "--input random" in said
    for value in ("7", tmp_path / "x.npy"):
        said = refuse("run", path, "--input", value)
        assert "does not say for which input it is" in said and "not given are: x, bias" in said
    assert "cannot read nowhere.npy" in refuse("run", path, "--input", "x=nowhere.npy", "--input", "bias=1")


def test_texts(tmp_path: Path) -> None:
    path = model(tmp_path, [helper.make_node("Identity", ["x"], ["y"])], {"x": ["n"]}, TensorProto.STRING)
    assert "string[2]" in succeed("run", path, "--input", 'x=["a", "b"]')
    assert "string[1]" in succeed("run", path, "--input", 'x="a"')
    for value in ("a", "[1]", "3"):
        assert "neither a text in quotes" in refuse("run", path, "--input", f"x={value}")


def test_a_file_of_arrays_has_all_inputs(tmp_path: Path) -> None:
    sub = helper.make_node("Sub", ["x", "z"], ["y"])
    path = model(tmp_path, [sub], {"x": ["n"], "z": ["n"]})
    x, z = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    np.savez(tmp_path / "both.npz", x=x, z=z)
    np.savez(tmp_path / "other.npz", x=x, other=z)
    for specs in ([tmp_path / "both.npz"], [f"x={tmp_path / 'both.npz'}", tmp_path / "both.npz"]):
        succeed("run", path, *(a for spec in specs for a in ("--input", spec)), "--output", tmp_path / "out")
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), x - z)
    assert "no input 'other'" in refuse("run", path, "--input", tmp_path / "other.npz")
    assert "holds several arrays: x, other" in refuse("run", path, "--input", f"z={tmp_path / 'other.npz'}")


PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        ("float32", (1, 3, 4, 6), PIXELS.transpose(2, 0, 1)[None] / 255),
        ("float32", ("n", 3, "h", "w"), PIXELS.transpose(2, 0, 1)[None] / 255),
        ("uint8", (1, "h", "w", 3), PIXELS[None]),
        ("uint8", (4, 6, 3), PIXELS),
        ("float16", (2, 3, 4, 6), np.stack([PIXELS.transpose(2, 0, 1)] * 2) / 255),
    ],
)
def test_an_image_becomes_what_the_input_says(
    tmp_path: Path, dtype: str, shape: tuple[int | str, ...], expected: np.ndarray
) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    found = read_input(tmp_path / "image.png", TensorInfo("x", dtype, shape))
    assert found.dtype == dtype and found.flags.c_contiguous
    np.testing.assert_allclose(found.astype(np.float64), expected, atol=1e-3)


def test_an_image_is_resized_and_made_grey(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    path = tmp_path / "image.png"
    assert read_input(path, TensorInfo("x", "float32", (1, 1, 8, 10))).shape == (1, 1, 8, 10)
    assert read_input(path, TensorInfo("x", "float32", (8, "w"))).shape == (8, 6)
    assert read_input(path, TensorInfo("x", "float32", (1, 3, "h", "w")), {"h": 32, "w": 64}).shape == (1, 3, 32, 64)
    with pytest.raises(InputError, match="an image is no float32"):
        read_input(path, TensorInfo("x", "float32", (5,)))
    damaged = tmp_path / "damaged.png"
    damaged.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match="cannot be read as an image"):
        read_input(damaged, TensorInfo("x", "float32", (1, 3, 4, 6)))


def test_images_on_the_command_line(tmp_path: Path) -> None:
    Image.fromarray(PIXELS).save(tmp_path / "image.jpg", format="PNG")  # told by what is in it
    identity = helper.make_node("Identity", ["x"], ["y"])
    path = model(tmp_path, [identity], {"x": ["n", 3, "h", "w"]})
    image = tmp_path / "image.jpg"
    assert "float32[1, 3, 4, 6]" in succeed("run", path, "--input", f"x={image}")
    assert "float32[1, 3, 9, 6]" in succeed("run", path, "--input", f"x={image}", "--dim", "h=9")


def sound(path: Path, samples: np.ndarray, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, samples.dtype.itemsize, 16000, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return path


def test_sound_becomes_what_the_input_says(tmp_path: Path) -> None:
    samples = np.array([0, 16384, -32768, 32767], np.int16)
    path = sound(tmp_path / "a.wav", samples)
    for shape in ((4,), (1, "n"), ("b", 1, "n")):
        found = read_input(path, TensorInfo("x", "float32", shape))
        assert found.shape == (1,) * (len(shape) - 1) + (4,)
        np.testing.assert_allclose(found.ravel(), samples / 32768)
    np.testing.assert_array_equal(read_input(path, TensorInfo("x", "int16", (4,))), samples)
    two = sound(tmp_path / "b.wav", np.array([0, 100, 200, 300], np.int16), channels=2)
    np.testing.assert_allclose(read_input(two, TensorInfo("x", "float32", ("n",))), np.array([50, 250]) / 32768)
    eight = sound(tmp_path / "c.wav", np.array([128, 255, 0], np.uint8))
    np.testing.assert_allclose(read_input(eight, TensorInfo("x", "float32", ("n",))), [0, 127 / 128, -1])
    with pytest.raises(InputError, match="sound is no string"):
        read_input(path, TensorInfo("x", "string", ("n",)))
    path.write_bytes(path.read_bytes()[:30])
    with pytest.raises(InputError, match="cannot be read as sound"):
        read_input(path, TensorInfo("x", "float32", ("n",)))


def test_sound_of_three_bytes(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 3, 16000, 0, "NONE", ""))
        file.writeframes(b"\x00\x00\x40\x00\x00\x80")
    np.testing.assert_allclose(read_input(tmp_path / "a.wav", TensorInfo("x", "float32", ("n",))), [0.5, -1])


def test_bench_measures_recorded_calls(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = models.written(models.mlp(), tmp_path, "mlp")
    (tmp_path / "calls").mkdir()
    for k in (2, 5):
        np.savez(tmp_path / "calls" / f"{k}.npz", x=np.full((k, 64), k, np.float32))
    said = succeed("bench", path, "--data", tmp_path / "calls", "--vs", "onnxruntime", "--rounds", 2, "--turn", 0.01)
    assert "calls of" in said and "x [" in said
    result = call("bench", path, "--data", tmp_path / "calls", "--dim", "batch=2")
    assert result.exit_code == 2 and "leave out" in result.output


def test_samples_may_be_arrays_images_and_sound(tmp_path: Path) -> None:
    (image,) = (TensorInfo("x", "float32", (1, 3, 4, 6)),)
    (tmp_path / "images").mkdir()
    for k in range(3):
        Image.fromarray(PIXELS + np.uint8(k)).save(tmp_path / "images" / f"{k}.png")
    found = open_data(tmp_path / "images", [image])
    assert found.count == 3 and found.read(0).feed["x"].shape == (1, 3, 4, 6)
    np.save(tmp_path / "x.npy", np.zeros((7, 3, 4, 6), np.float32))
    assert open_data(tmp_path / "x.npy", [image]).count == 7
    assert open_data(tmp_path / "images" / "1.png", [image]).count == 1
    two = [image, TensorInfo("z", "float32", (1,))]
    for path in (tmp_path / "x.npy", tmp_path / "images"):
        with pytest.raises(InputError, match="holds values of one input, and the model has 2"):
            open_data(path, two)


def test_values_are_those_of_the_sizes_found(tmp_path: Path) -> None:
    given = read_specs([TensorInfo("x", "float32", ("batch", "n"))], ["random"], {})
    seen: list[tuple[int, ...]] = []

    def run(inputs: dict[str, np.ndarray]) -> int:
        seen.append(inputs["x"].shape)
        if inputs["x"].shape[1] % 7:
            raise InputError("it must be that n % 7 == 0")
        return len(seen)

    inputs, result, sizes = given.first_call(run)
    assert inputs["x"].shape == seen[-1] == (1, sizes["n"]) and result == len(seen) and sizes["n"] % 7 == 0


def test_a_compiled_model_is_run_with_sizes_that_it_takes(tmp_path: Path) -> None:
    tilewright.compile(windows(tmp_path)).save(tmp_path / "m.tw")
    assert "96]" in succeed("run", tmp_path / "m.tw", "--input", "random")


def test_random_indices_are_within_what_they_look_up(tmp_path: Path) -> None:
    """Through what moves them and counts from the end, of all tables; where they are computed further, they are 0."""
    nodes = [
        helper.make_node("Unsqueeze", ["kind", "axes"], ["column"]),
        helper.make_node("Gather", ["two", "column"], ["a"]),
        helper.make_node("Less", ["ids", "zero"], ["is_less"]),
        helper.make_node("Add", ["ids", "rows"], ["turned"]),
        helper.make_node("Where", ["is_less", "turned", "ids"], ["counted"]),
        helper.make_node("Gather", ["many", "counted"], ["b"]),
        helper.make_node("Mul", ["factor", "rows"], ["far"]),
        helper.make_node("Gather", ["many", "far"], ["c"]),
        helper.make_node("Add", ["a", "b"], ["d"]),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    weights = {"axes": np.array([1]), "zero": np.int64(0), "rows": np.int64(500)}
    tables = {"two": np.arange(2), "many": np.arange(500)}
    inputs: dict[str, list[int | str]] = {"kind": [8], "ids": ["batch", 1], "factor": [1]}
    path = model(tmp_path, nodes, inputs, INT64, **weights, **tables)
    compiled = tilewright.compile(path)
    given = given_inputs(compiled, ["random"], {"batch": 200})
    assert given.indices({}) == {"kind": 2, "ids": 500}
    made = given.arrays()
    assert made["kind"].max() == 1 and 250 < made["ids"].max() < 500
    compiled.save(tmp_path / "m.tw")
    for each in (compiled, tilewright.load(tmp_path / "m.tw")):
        called = first_call(each, ["random"], {})
        assert called.inputs["factor"] == [0] and "zeros, as the model refuses random ones" in called.notes[-1]
    assert "an index is out of range" in refuse("run", path, "--input", "random")
    nodes[6:] = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = model(tmp_path, nodes, {"kind": [8], "ids": ["batch", 1]}, INT64, **weights, **tables)
    assert "kind below 2, ids below 500" in succeed("run", path, "--input", "random")
