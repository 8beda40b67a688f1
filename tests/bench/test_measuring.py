"""How engines are measured: turns, disturbance, records, errors, and which interpreter runs what."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import machine, measure, peers, records
from bench.__main__ import main
from bench.cases import Case, read_arrays, relative_error, write_arrays
from bench.commands import install, measuring
from bench.commands.real import model_folders
from bench.engine import Timing
from bench.records import Record
from bench.turns import ContestantLost, Rules, Standing, Turn, take_turns
from bench.worker import serve


class Fake:
    """An engine whose turns are given; `diary` is shared by all."""

    def __init__(self, name: str, diary: list[str], turns: list[Turn | str]) -> None:
        self.name, self.diary, self.turns = name, diary, turns

    def resume(self) -> None:
        self.diary.append(f"+{self.name}")

    def pause(self) -> None:
        self.diary.append(f"-{self.name}")

    def take_turn(self) -> Turn:
        self.diary.append(self.name)
        turn = self.turns.pop(0)
        if isinstance(turn, str):
            raise ContestantLost(turn)
        return turn


QUIET = Turn((1.0, 2.0), 0.0)


def test_the_order_rotates_and_one_runs_at_a_time() -> None:
    diary: list[str] = []
    engines = [Fake(name, diary, [QUIET] * 3) for name in "abc"]
    found = take_turns(engines, Rules(rounds=3))
    assert "".join(entry for entry in diary if entry in "abc") == "abcbcacab"
    for first, second, third in zip(diary[::3], diary[1::3], diary[2::3], strict=True):
        assert (first, third) == (f"+{second}", f"-{second}")
    assert [len(standing.turns) for standing in found] == [3, 3, 3]


def test_a_disturbed_turn_is_taken_again_and_the_least_disturbed_counts() -> None:
    bad, worse, good = Turn((9.0,), 0.4), Turn((9.0,), 0.6), Turn((1.0,), 0.01)
    rules = Rules(rounds=1, tolerated=0.05, repeats=2)
    (standing,) = take_turns([Fake("a", [], [bad, good, worse])], rules)
    assert standing == Standing([good], repeated=1)
    (standing,) = take_turns([Fake("a", [], [worse, bad, worse, good])], rules)
    assert standing == Standing([bad], repeated=2)


def test_an_engine_that_is_lost_takes_no_more_turns_and_stops_no_other() -> None:
    diary: list[str] = []
    engines = [Fake("a", diary, [QUIET, "died"]), Fake("b", diary, [QUIET] * 3)]
    lost, kept = take_turns(engines, Rules(rounds=3))
    assert lost.lost == "died" and diary.count("a") == 2 and diary.count("-a") == 2
    assert len(kept.turns) == 3 and not kept.lost
    assert records.times(lost) == {"failure": "died"}


def test_times_of_turns() -> None:
    turns = [Turn((0.001, 0.002, 0.003), 0.0), Turn((0.003, 0.004, 0.010), 0.02)]
    found = records.times(Standing(turns, repeated=1))
    assert (found["median_ms"], found["min_ms"], found["p90_ms"]) == (3.0, 1.0, 10.0)
    assert found["spread"] == pytest.approx(2 / 3, abs=1e-4)  # medians 2 and 4 ms, and 3 ms in the middle
    assert (found["calls"], found["turns"], found["repeated_turns"], found["disturbed"]) == (6, 2, 1, 0.02)


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.1, 1), (0.5, 5), (0.9, 9), (0.91, 10), (1.0, 10)])
def test_percentiles(share: float, value: float) -> None:
    assert records.percentile(list(range(10, 0, -1)), share) == value


def test_of_two_records_the_later_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for median in (1.0, 2.0):
        records.write(Record("networks", "m", 1, "tilewright", median_ms=median), path)
    records.write(Record("networks", "m", 2, "tilewright", median_ms=9.0), path)
    assert [r.median_ms for r in records.read([path])] == [2.0, 9.0]
    path.write_text(path.read_text() + "{broken\n")
    with pytest.raises(ValueError, match="line 4"):
        records.read([path])


def test_fields_of_a_newer_version_are_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"kind": "k", "model": "m", "threads": 1, "engine": "e", "of_tomorrow": 3}\n\n')
    assert records.read([path]) == [Record("k", "m", 1, "e")]


@pytest.mark.parametrize(
    ("results", "references", "expected"),
    [
        ([[1.0, 2.0]], [[1.0, 2.002]], 0.002 / 2.002),
        ([[[1.0]], [4.0]], [[1.0], [5.0]], 0.2),  # another shape, another scale for each output
        ([[1.0]], [[1.0], [1.0]], float("inf")),
        ([[1.0, 2.0]], [[1.0]], float("inf")),
        ([[np.nan]], [[1.0]], float("inf")),
        ([[np.nan, np.inf, 2.0]], [[np.nan, np.inf, 2.0]], 0.0),
        ([[0.5]], [[0.0]], 0.5),
        ([[True]], [[True]], 0.0),
    ],
)
def test_relative_errors(results: list[list[float]], references: list[list[float]], expected: float) -> None:
    found = relative_error([np.array(r) for r in results], [np.array(r) for r in references])
    assert found == pytest.approx(expected)


def test_arrays_come_back_in_order(tmp_path: Path) -> None:
    references = [np.full(1, float(k)) for k in range(12)]
    given = {"x:0": np.ones((2, 3), np.float32).T, "rate": np.array(16000)}
    write_arrays(tmp_path / "a.npz", given, references)
    inputs, found = read_arrays(tmp_path / "a.npz")
    assert {name: array.shape for name, array in inputs.items()} == {"x:0": (3, 2), "rate": ()}
    assert inputs["x:0"].flags.c_contiguous
    assert [float(array[0]) for array in found] == list(range(12))


def test_disturbance_is_what_others_took_of_our_cpus() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9\ncpu0 {0} 0 0 50 0 0 0 0 0 0\ncpu1 {1} 1 2 70 8 3 4 5 0 0\nintr 1\n"
    assert machine.busy_seconds(stat.format(0, 100), [1]) == (100 + 1 + 2 + 3 + 4 + 5) / machine.TICK
    before = machine.Moment(10.0, 5.0, 1.0)
    assert machine.disturbance(before, machine.Moment(12.0, 7.0, 3.0), 1) == 0.0
    assert machine.disturbance(before, machine.Moment(12.0, 7.0, 1.0), 1) == pytest.approx(
        1 - 1 / machine.TICK
    )
    assert machine.disturbance(before, machine.Moment(12.0, 7.0, 1.0), 2) == pytest.approx(
        0.5 - 0.5 / machine.TICK
    )


def test_a_worker_answers_with_what_failed() -> None:
    class Broken:
        def load(self) -> dict[str, object]:
            raise RuntimeError("no such operator")

        def turn(self, warm_s: float) -> dict[str, object]:
            return {"seconds": [warm_s]}

    commands, answers = io.StringIO('{"do": "load"}\n{"do": "turn", "warm_s": 2.5}\n'), io.StringIO()
    serve(Broken(), commands, answers)  # type: ignore[arg-type]
    first, second = map(json.loads, answers.getvalue().splitlines())
    assert first == {"failed": "RuntimeError: no such operator"} and second == {"seconds": [2.5]}


def test_processes_are_measured_and_failures_told(tmp_path: Path) -> None:
    """Ours in a process of its own, beside an engine whose Python lacks it."""
    from bench.shapes.sample import make_case

    case = make_case(3, 14, tmp_path)  # a perceptron
    plan = measure.Plan(
        {"tilewright": sys.executable, "iree": sys.executable},
        tmp_path / "cache",
        Rules(rounds=2, tolerated=1.0),
        Timing(warm_s=0.0, least_s=0.0, least_calls=3),
        cold=True,
    )
    ours, other = measure.measure(case, 1, plan)
    assert ours.failure == "" and ours.calls == 6 and ours.turns == 2
    assert ours.relative_error is not None and ours.relative_error < 1e-5
    assert ours.cold_load_s is not None and ours.load_s is not None and ours.median_ms is not None
    assert other.engine == "iree" and other.median_ms is None and "iree" in other.failure


def test_ours_of_another_checkout_is_measured_beside_ours(tmp_path: Path) -> None:
    """The worker of the other checkout is what runs: this one answers a version of its own."""
    other = tmp_path / "other"
    (other / "bench").mkdir(parents=True)
    (other / "bench" / "__init__.py").write_text("")
    (other / "bench" / "worker.py").write_text(
        "import sys\n"
        "for line in sys.stdin:\n"
        "    print('{\"version\": \"of ' + sys.argv[1] + ' elsewhere\"}' if 'load' in line\n"
        "          else '{\"seconds\": [0.5], \"disturbed\": 0.0}', flush=True)\n"
    )
    options = parsed("--against", str(other), "--peers", "", "--home", str(tmp_path), "--rounds", "1")
    plan = measuring.plan_of(options)
    assert list(plan.pythons) == ["tilewright", "before"]
    case = Case("real", "m", tmp_path / "m.onnx", tmp_path / "m.npz")
    _, found = measure.measure(case, 1, plan)
    assert (found.engine, found.version, found.median_ms) == ("before", "of tilewright elsewhere", 500.0)


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--against .*: there is no bench/worker.py in it"):
        measuring.plan_of(parsed("--against", str(tmp_path)))


def parsed(*words: str) -> argparse.Namespace:
    """The options of a command that measures."""
    parser = argparse.ArgumentParser()
    measuring.add_options(parser, "all")
    return parser.parse_args(words)


def test_a_model_that_breaks_its_process_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    write_arrays(tmp_path / "m.npz", {}, [])
    plan = measure.Plan({"tilewright": sys.executable}, tmp_path / "cache")
    (found,) = measure.measure(Case("real", "m", tmp_path / "m.onnx", tmp_path / "m.npz"), 1, plan)
    assert found.median_ms is None and "m.onnx" in found.failure


def test_every_engine_describes_itself() -> None:
    names = peers.names()
    assert names[0] == "tilewright" and len(names) == len(set(names)) >= 9
    for name in names:
        peer = peers.describe(name)
        assert peer.title and peer.packages and all(isinstance(v, str) for v in peer.variables(1).values())
    with pytest.raises(ValueError, match="the engines are tilewright, "):
        peers.describe("abacus")


def test_engines_share_environments(tmp_path: Path) -> None:
    found = install.environments([], tmp_path)
    assert {"onnxruntime", "openvino"} < set(found[tmp_path / "venv-onnx"])
    assert tmp_path / "venv-tilewright" not in found  # ours runs where the suite runs, unless asked for
    assert found[tmp_path / "venv-torch"].count("torch") == 1
    assert list(install.environments(["ncnn"], tmp_path)) == [tmp_path / "venv-ncnn"]


def test_interpreters_are_those_given_then_those_installed(tmp_path: Path) -> None:
    python = tmp_path / "venv-onnx" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    names = ["tilewright", "onnxruntime", "mnn"]
    found = measuring.pythons(names, tmp_path, {"mnn": sys.executable, "jax": "/nowhere"})
    assert found == {"tilewright": sys.executable, "onnxruntime": str(python), "mnn": sys.executable}
    with pytest.raises(ValueError, match=r"not installed: ncnn; use `python -m bench install ncnn`"):
        measuring.pythons(["tilewright", "ncnn"], tmp_path, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--threads", "0"], "no list of thread counts"),
        (["run", "--peers", "abacus"], "there is no engine abacus"),
        (["random", "--python", "mnn"], "is not ENGINE=PATH"),
        (["fly"], "invalid choice"),
        (["run", "--out", f"{__file__}/x.jsonl"], f"cannot write {__file__}"),
        (["roofline", "--out", f"{Path(__file__).parent}"], "it is not a regular file"),
        (["compile", "--json", f"{__file__}/deep/x.json"], f"cannot write {__file__}"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert said in capsys.readouterr().err


def test_models_that_are_missing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "vgg16", "--zoo", str(tmp_path), "--peers", ""]) == 1
    assert "vgg16.onnx" in capsys.readouterr().err
    assert main(["real", str(tmp_path)]) == 1
    assert main(["zoo", "alexnet", "--home", str(tmp_path)]) == 1
    assert "no such model: alexnet" in capsys.readouterr().err


def test_folders_of_trained_models(tmp_path: Path) -> None:
    for name in ("b", "a", "empty"):
        (tmp_path / name / "test_data_set_0").mkdir(parents=True)
    for name in ("b", "a"):
        (tmp_path / name / "model.onnx").touch()
    assert [f.name for f in model_folders(tmp_path)] == ["a", "b"]
    assert [f.name for f in model_folders(tmp_path, "b")] == ["b"]
    assert model_folders(tmp_path / "a") == [tmp_path / "a"]
