"""What cannot be compiled of PyTorch is refused with one error, which says where and how to go on."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tilewright  # noqa: E402
from tilewright import ModelError, TilewrightError, UnsupportedError  # noqa: E402
from tilewright.frontends.torch.load import load_captured, program_of  # noqa: E402
from tilewright.runtime.errors import OptionError  # noqa: E402

nn = torch.nn
AUTO = torch.export.Dim.AUTO


def refusal(model: Any, *inputs: Any, kind: type[TilewrightError] = ModelError, **how: Any) -> str:
    with pytest.raises(kind) as caught:
        tilewright.compile(model, inputs or None, cache=False, **how)
    return str(caught.value)


class Part(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class Whole(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.part = Part(function)

    def forward(self, *inputs: Any) -> Any:
        return self.part(*inputs)


X = torch.ones(4, 4)


def test_all_operators_without_a_binding_are_listed_with_module_and_line() -> None:
    module = Whole(lambda x: torch.linalg.eigvals(x).real + torch.linalg.ldl_factor(x)[0]).eval()
    text = refusal(module, X, kind=UnsupportedError)
    assert "linalg_eig" in text and "ldl_factor" in text and "part/" in text and "test_refused_modules.py:" in text


def test_results_that_are_not_translated_are_named() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    text = refusal(Whole(lambda q: attention(q, q, q)[1]).eval(), torch.ones(1, 2, 4, 4), kind=UnsupportedError)
    assert "result 1 of aten._scaled_dot_product_flash_attention_for_cpu" in text and "test_refused_modules.py:" in text


def test_branches_on_data_name_the_module_and_the_line() -> None:
    text = refusal(Whole(lambda x: x if x.sum() > 0 else -x).eval(), X)
    assert "part, " in text and "test_refused_modules.py:" in text and "torch.cond" in text


def test_examples_that_do_not_fit_name_the_module() -> None:
    text = refusal(nn.Sequential(nn.ReLU(), nn.Linear(5, 3)).eval(), X)
    assert "where: 1" in text and "example inputs" in text
    assert "missing a required argument" in refusal(Two().eval(), X)


class Two(nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x + y


def test_modules_in_training_mode() -> None:
    assert ".eval()" in refusal(nn.Linear(4, 4), X)
    halfway = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    halfway[1].train()
    assert "1.running_mean" in refusal(halfway, X, kind=UnsupportedError)


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (lambda: X.to_sparse(), ("sparse", ".to_dense()")),
        (lambda: torch.nested.nested_tensor([X, X]), ("nested", "to_padded_tensor")),
        (lambda: X.to("meta"), ("meta", "on the CPU")),
        (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), ("quantized", "PT2E")),
    ],
)
def test_tensors_that_are_not_dense(tensor: Any, words: tuple[str, ...]) -> None:
    text = refusal(nn.Linear(4, 4).eval(), tensor(), kind=UnsupportedError)
    assert all(word in text for word in words) and "example input [0]" in text


def test_weights_that_are_not_there() -> None:
    with torch.device("meta"):
        module = nn.Linear(4, 4).eval()
    assert "'weight' has no values" in refusal(module, X, kind=UnsupportedError)
    with torch._subclasses.FakeTensorMode():
        module = nn.Linear(4, 4).eval()
    assert "'weight' has no values (a fake tensor)" in refusal(module, X, kind=UnsupportedError)


def test_weights_that_are_packed() -> None:
    kinds = {nn.Linear, nn.LSTM}
    for layer in (nn.Linear(4, 4), nn.LSTM(4, 4)):
        packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer).eval(), kinds, dtype=torch.qint8)
        text = refusal(packed, X, kind=UnsupportedError)
        assert "'0." in text and "packed weights" in text and "PT2E" in text


def test_lines_of_pythons_own_library_are_not_named() -> None:
    text = refusal(Whole(lambda x: x + copy.deepcopy(re)).eval(), X)
    assert "part, " in text and "test_refused_modules.py:" in text and "copy.py" not in text


def test_what_is_no_module_or_no_tensor() -> None:
    assert "torch.nn.Module" in refusal(lambda x: x, X, kind=OptionError)
    assert "examples of its inputs" in refusal(nn.ReLU().eval(), kind=OptionError)
    assert "torch.from_numpy" in refusal(nn.ReLU().eval(), X.numpy())
    assert "TorchScript" in refusal(torch.jit.script(nn.ReLU().eval()), X, kind=UnsupportedError)
    assert "no tensor" in refusal(Whole(lambda x: (x, "text")).eval(), X, kind=UnsupportedError)


def test_dims_that_are_fixed_by_the_module() -> None:
    text = refusal(nn.Linear(4, 4).eval(), X, dynamic_shapes=({1: torch.export.Dim("width")},))
    assert "width" in text and "specialized" in text
    dim = torch.export.Dim("rows", min=9, max=12)
    for dims in ({0: dim}, {0: "rows"}, {2: dim}):
        text = refusal(nn.Linear(4, 4).eval(), X, dynamic_shapes=(dims,))
        assert "dynamic_shapes" in text
    assert "names axis 2" in text
    assert "dynamic_shapes=" in refusal(nn.Linear(4, 4).eval(), X, dynamic_shapes="rows")


def test_dims_that_tracing_fixed_are_said_when_called() -> None:
    """PyTorch fixes what it is left to choose where code needs it; the size is part of what the model says it takes."""
    module = Whole(lambda x: x + torch.ones(5, 1)).eval()
    model = tilewright.compile(
        module, (torch.ones(5, 3),), dynamic_shapes=(({0: AUTO, 1: AUTO},),), cache=False
    )
    with pytest.raises(TilewrightError, match="dim 0 must be 5"):
        model(torch.ones(4, 3))


def test_custom_operators_that_write_are_named() -> None:
    with torch.library._scoped_library("refused_modules", "FRAGMENT") as library:
        library.define("scale_into(Tensor x, Tensor(a!) out) -> ()")
        library.impl("scale_into", lambda x, out: None, "CompositeExplicitAutograd")

        def scaled(x: Any) -> Any:
            out = torch.empty_like(x)
            torch.ops.refused_modules.scale_into(x, out)
            return out

        assert "refused_modules.scale_into" in refusal(Whole(scaled).eval(), X, kind=UnsupportedError)


# Files


@pytest.fixture(scope="module")
def archive(tmp_path_factory: Any) -> bytes:
    path = tmp_path_factory.mktemp("torch") / "model.pt2"
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    batch = {0: torch.export.Dim("batch", max=100)}
    torch.export.save(torch.export.export(module, (X,), dynamic_shapes=(batch,), strict=False), path)
    return path.read_bytes()


def changed(archive: bytes, path: Path, change: Any, name: str = "models/model.json") -> Path:
    """The archive in a file, one of its records as `change` makes it."""
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(path, "w") as new:
        for record in old.infolist():
            data = old.read(record)
            new.writestr(record.filename, change(data) if record.filename.endswith(name) else data)
    return path


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_files_run_no_code(archive: bytes, tmp_path: Path) -> None:
    """Pickled examples are not read, pickled weights only as weights, and names and sizes are no Python code."""
    mark, path = tmp_path / "mark", tmp_path / "model.pt2"
    pickled = pickle.dumps(Payload(mark))
    tilewright.compile(changed(archive, path, lambda _: pickled, "sample_inputs/model.pt"), cache=False)
    asks = lambda data: data.replace(b'"use_pickle": false', b'"use_pickle": true')  # noqa: E731
    first = changed(archive, path, lambda _: pickled, "weight_0").read_bytes()
    assert "would run code" in refusal(changed(first, path, asks, "weights_config.json"), kind=UnsupportedError)
    code = f"__import__('pathlib').Path('{mark}').touch()"
    size = re.compile(rb'"expr_str": "[^"]*"')
    evil = lambda data: size.sub(b'"expr_str": ' + json.dumps(code).encode(), data)  # noqa: E731
    assert "the size" in refusal(changed(archive, path, evil))
    name = lambda data: data.replace(b'"name": "input"', b'"name": ' + json.dumps(f"x={code}").encode())  # noqa: E731
    assert "the name" in refusal(changed(archive, path, name))
    target = lambda data: data.replace(b"torch.ops.aten.relu.default", b"torch.hub.load")  # noqa: E731
    assert "the operator" in refusal(changed(archive, path, target))
    assert not mark.exists()


def test_damaged_and_foreign_files(archive: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(archive[: len(archive) // 2])
    assert "damaged" in refusal(path)
    path.write_bytes(b"no archive")
    assert "no archive" in refusal(path)
    torch.save({"weight": X}, path)
    assert "a checkpoint of PyTorch" in refusal(path)
    major = lambda data: re.sub(rb'"major": \d+', b'"major": 99', data)  # noqa: E731
    assert "schema 99" in refusal(changed(archive, path, major))
    assert "'cuda'" in refusal(
        changed(archive, path, lambda d: d.replace(b'"type": "cpu"', b'"type": "cuda"')), kind=UnsupportedError
    )
    assert "does not exist" in refusal(tmp_path / "none.pt2")
    unknown = lambda data: data.replace(b"aten.relu.default", b"somebodys.relu.default")  # noqa: E731
    text = refusal(changed(archive, path, unknown), kind=UnsupportedError)
    assert "somebodys::relu" in text and "import the package" in text


def test_programs_that_contradict_themselves(archive: bytes, tmp_path: Path) -> None:
    """What a file says of a result is compared with what PyTorch gives for the operands."""

    def another_size(data: bytes) -> bytes:
        program = json.loads(data)
        told = program["graph_module"]["graph"]["tensor_values"]["relu"]
        told["sizes"][1] = {"as_int": 5}
        return json.dumps(program).encode()

    def number_for_a_tensor(data: bytes) -> bytes:
        program = json.loads(data)
        for node in program["graph_module"]["graph"]["nodes"]:
            if node["target"].endswith("relu.default"):
                node["inputs"][0]["arg"] = {"as_int": 3}
        return json.dumps(program).encode()

    text = refusal(changed(archive, tmp_path / "model.pt2", another_size))
    assert "PyTorch gives" in text and "4]" in text and "5]" in text
    assert "PyTorch" in refusal(changed(archive, tmp_path / "model.pt2", number_for_a_tensor))


def test_any_damage_is_an_error_of_ours(archive: bytes, tmp_path: Path) -> None:
    """Tokens of the texts are exchanged, bits flipped: the program is read, or refused."""
    rng, path = random.Random(0), tmp_path / "model.pt2"
    names = ["models/model.json", "models/model.json", "weights_config.json", "weight_0", "archive_version"]

    def damage(data: bytes) -> bytes:
        text = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            tokens = [m.span() for m in re.finditer(rb'"[^"]*"|-?[0-9.]+|true|false|null', bytes(text))]
            if tokens and rng.random() < 0.7:
                (a, b), (c, d) = rng.choice(tokens), rng.choice(tokens)
                text[a:b] = rng.choice([bytes(text[c:d]), b"-1", b"99999999999999", b"null", b'"x"', b"[]"])
            elif text:
                text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
        return bytes(text)

    for _ in range(40):
        changed(archive, path, damage, rng.choice(names))
        try:
            load_captured(program_of(path))
        except TilewrightError as error:
            assert not isinstance(error, tilewright.InternalError), error


def test_states_that_share_memory() -> None:
    """PyTorch itself cannot decompose writes to buffers that are parts of one."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.zeros(2, 4)
            self.register_buffer("a", both[0])
            self.register_buffer("b", both[1])

        def forward(self, x: Any) -> Any:
            self.a[1:].add_(x)
            return self.a + self.b

    text = refusal(Shared().eval(), torch.ones(3), kind=UnsupportedError)
    assert "'a'" in text and "those that share no memory" in text and "torch.compile" in text
