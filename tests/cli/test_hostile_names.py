"""Names that a stranger chose: no command, and no text of the library, prints a control character, a mark of direction
or a name of a hundred thousand letters. JSON data have names as they are."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

import tilewright
from tests.frontends.helpers import info, model_of
from tilewright.cli.app import COMMANDS, commands
from tilewright.cli.output import SafeConsole, log_to_stderr
from tilewright.cli.progress import counting, working
from tilewright.profiling import machine
from tilewright.profiling.records import MachineRates, PeakRate, ReadRate
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import PerformanceWarning, Remark, short_name
from tilewright.runtime.report.records import AddedProgram, CallRecord
from tilewright.runtime.report.shown import Report
from tilewright.stages import programs

BAD = "\x1b[31mred\x07\x00\u202eevil\u200f\r\n[bold]:warning:"
LONG = "n" * 100_000
WORDS = "a b " * 25_000
LONGEST_LINE = 4000


def check_text(text: str) -> None:
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line[:200])
        assert len(line) <= LONGEST_LINE, line[:200]


def model() -> onnx.ModelProto:
    x, w, t, y, z = BAD + "x", f"{BAD}w{LONG}", f"t{WORDS}", f"{BAD}y{LONG}", f"z {BAD}{WORDS}"
    nodes = [
        helper.make_node("MatMul", [x, w], [t], name=BAD + LONG),
        helper.make_node("Relu", [t], [y], name=BAD + WORDS),
        helper.make_node("Sub", [t, x], [z], name=BAD),
    ]
    outputs = [info(y, [BAD + "d", 4]), info(z, [BAD + "d", 4, WORDS])]
    made = model_of(nodes, [info(x, [BAD + "d", LONG])], outputs, opset=17)
    made.graph.initializer.append(numpy_helper.from_array(np.eye(4, dtype=np.float32), w))
    return made


_PEAKS, _READS = (PeakRate("f32", "", 1, 1),), (ReadRate("DRAM", None, 1, 1),)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "\x1b[31m\u202em.onnx"
    path.write_bytes(model().SerializeToString())
    return path


def lines(source: Path) -> Iterator[tuple[str, ...]]:
    """Of each command what makes it print names."""
    path, compiled = str(source), str(source.with_suffix(".tw"))
    yield "check", path
    yield "-v", "compile", path, "-o", compiled, "--force", "--report"
    for model_path in (path, compiled):
        yield "explain", model_path, "--all"
        yield "explain", model_path, f"{BAD}{WORDS}"
        yield "explain", model_path, "\x1b\u202enothing"
        yield "run", model_path, "--input", "random"
    yield "run", path, "--input", "random", "--output", str(source.parent / "\x07results"), "--force"
    yield "run", path, "--input", "\x1b=3"
    yield "record", path, "\x1b.npy", "-o", str(source.with_name("\x1brecorded"))
    yield "run", str(source.with_name("\x1bmissing.onnx"))
    yield "inspect", compiled
    yield "sign", compiled, "--key", "\x1b.pem"
    yield "bench", path, "--rounds", "1", "--turn", "0.001"
    yield "bench", path, "--rounds", "1", "--kernels"
    yield "profile", path, "--runs", "1", "--trace", str(source.parent / "\x1btrace.json"), "--force"
    yield "compile", path, "-o", compiled, "--force", "--override", "\x1b=\x1b.ll"
    for level in ("import", "graph", "schedule", "loops", "llvm", "asm"):
        yield "show", path, "--level", level
    yield "opt", str(source.with_suffix(".ir"))
    yield "diff", path, path, "--random", "1"
    yield "quantize", path, "--data", "\x1b.npz", "--max-drop", "1%", "-o", str(source.with_name("\x1bq.onnx"))
    yield "verify", path, "--data", "\x1b.npz"
    yield "convert", path, "-o", str(source.with_name("\x1bc.onnx"))
    yield "export", path, "-o", str(source.with_name("\x1bl.so")), "--name", "net"
    yield "export", path, "-o", str(source.with_name("libm.so")), "--name", "\x1b"
    yield "memory", path
    yield "report", path, "--estimate", "-o", str(source.with_name("\x1bp.html")), "--force"
    yield "profile", path, "--plot", "\x1b.pdf"
    yield "embed", path, "\x1b"
    yield "generate", path, "--prompt", "\x1b"
    yield "chat", path
    yield "serve", path, "--port", "0"
    yield "cost", path
    yield "score", path, str(source.with_name("\x1b.txt"))
    yield ("cache",)
    yield ("info",)
    yield ("\x1b\u202ecommand",)


def test_no_command_prints_them(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "measure", lambda facts: MachineRates(facts, 1, _PEAKS, _READS, ""))
    seen: set[str] = set()
    for arguments in lines(source):
        if arguments[0] == "opt":
            Path(arguments[1]).write_text("\n".join(programs(source, "import").values()), encoding="utf-8")
        result = CliRunner().invoke(commands, arguments)
        seen.update(arguments[:2])
        assert result.exit_code in (0, 1, 2), (arguments[0], result.output[:2000])
        check_text(result.output)
        check_text(result.stderr)
    assert seen.issuperset(COMMANDS)


def test_json_has_names_whole(source: Path) -> None:
    result = CliRunner().invoke(commands, ["run", str(source), "--input", "random", "--json"])
    assert [o["name"] for o in json.loads(result.stdout)["outputs"]] == [f"{BAD}y{LONG}", f"z {BAD}{WORDS}"]


def test_no_text_of_the_library_has_them() -> None:
    made = tilewright.compile(model(), cache=False)
    report = made.report()
    calls = (CallRecord(BAD + LONG, BAD, (BAD, WORDS), LONG),)
    remarks = (Remark(BAD, BAD + WORDS, LONG, "failed"),)
    variants = (AddedProgram({BAD: 1}, 1, None, 2, 3),)
    hostile = Report(model=BAD + LONG, calls=calls, variants=variants, attached={BAD + WORDS: BAD}, remarks=remarks)
    for text in (repr(made), made._repr_html_(), str(report), str(hostile), repr(hostile)):
        check_text(text)
    for part in (report._repr_html_(), hostile._repr_html_()):
        assert part.replace("\n", "").isprintable()
        assert len(part) < 50_000
    check_text(str(TensorInfo(BAD + WORDS, "float32", (2,))))
    check_text(str(PerformanceWarning(BAD + LONG)))
    with pytest.warns(PerformanceWarning) as caught:
        warnings.warn(BAD, PerformanceWarning, stacklevel=1)
    check_text(str(caught[0].message))


def test_no_log_line_has_them(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    path = tmp_path / "\x1b\u202em.onnx"
    path.write_bytes(model().SerializeToString())
    with caplog.at_level(logging.INFO, "tilewright"):
        tilewright.compile(path)
    assert caplog.messages
    check_text("\n".join(caplog.messages))


def test_the_log_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("tilewright")
    before = logger.handlers, logger.level
    try:
        log_to_stderr(logging.INFO)
        logger.info("%s", BAD + LONG)
    finally:
        logger.handlers, logger.level = before
    text = capsys.readouterr().err
    assert "evil" in text
    check_text(text)


def test_progress_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with working(BAD + LONG):
        pass
    with counting(BAD + LONG, 2) as (progress, task):
        assert len(progress.tasks[task].description) < 300
        assert progress.tasks[task].description.isprintable()
    assert "\u202e" not in capsys.readouterr().err


def test_styles_stay_where_texts_are_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    SafeConsole(force_terminal=True, color_system="standard").print("[bold]name :warning: \\[x]")
    assert capsys.readouterr().out == "\x1b[1mname :warning: [x]\x1b[0m\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [("plain", "plain"), ("a\nb", "a\\nb"), ("ä\u202e", "ä\\u202e"), ("x" * 201, "x" * 200 + "..."), ("", "")],
)
def test_short_names(name: str, text: str) -> None:
    assert short_name(name) == text
