"""The demo on real files, beside the package's own answers."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("magika")
pytest.importorskip("onnxruntime")

from magika import Magika
from magika.types.seekable import Seekable

from examples import file_types as demo

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_tells_the_types_of_this_repositorys_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    demo.main([])
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    for file, kind in (
        ("README.md", "markdown"),
        ("pyproject.toml", "toml"),
        ("tilewright/compiler.py", "python"),
    ):
        assert rows[file][1] == rows[file][3] == kind  # ours, and ONNX Runtime's
    assert rows["compiled"] and rows["latency"]


@pytest.mark.parametrize(
    "content",
    [
        b"  \n\t{'a': 1}  \n",
        b"x" * 1500,
        bytes(range(256)) * 40,
        b" " * 5000 + b"word" + b"\n" * 5000,
        b" " * 20,
    ],
)
def test_the_encoding_is_the_packages(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    types = demo.FileTypes.installed()
    config = types.config

    theirs = Magika._extract_features_from_seekable(
        Seekable(BytesIO(content)), config["beg_size"], 0, config["end_size"], config["padding_token"],
        config["block_size"], False,
    )  # fmt: skip
    assert types.encode(path).tolist() == [*theirs.beg, *theirs.end]


def test_an_unsure_answer_is_said_to_be_one() -> None:
    types = demo.FileTypes.installed()
    labels = types.config["target_labels_space"]
    scores = np.full(len(labels), 0.1 / len(labels), np.float32)
    scores[labels.index("python")] = 0.2
    assert types.answer(scores) == "txt (perhaps python, 20.0%)"


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a file of at least"):
        demo.main([str(tmp_path)])
