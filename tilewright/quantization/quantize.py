"""`tilewright.quantize`: the whole way from a model and samples to a smaller model with a certificate."""

from __future__ import annotations

import hashlib
import os
import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tilewright.api import compile as compile_model
from tilewright.frontends.onnx.file import read_model
from tilewright.ir.diag import UnsupportedError
from tilewright.options import OnProgress, Progress
from tilewright.quantization.calibration import count_moments, observe
from tilewright.quantization.certificate import KEY, Certificate, LayerRecord, name_of, with_certificate
from tilewright.quantization.checks import check_quantised
from tilewright.quantization.data import fingerprint, open_data
from tilewright.quantization.decision.choose import Alternative, grow, order
from tilewright.quantization.decision.judge import Judge, Metric, Verdict
from tilewright.quantization.decision.timing import ROUNDS, Comparison, UnitTimes, compare, gains, unit_times
from tilewright.quantization.forms import KINDS, Form, Former, Recipe, why_not
from tilewright.quantization.methods.equalise import equalised
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.methods.ranges import METHODS
from tilewright.quantization.methods.smooth import SHARES
from tilewright.quantization.network import BLOCK_OPSET, LEAST_OPSET, LayerGroup, Network, load_weights
from tilewright.quantization.probe import Probe, Tap
from tilewright.quantization.qdq import Writer
from tilewright.quantization.state import State
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import OptionError, TilewrightError
from tilewright.runtime.storage.files import replacing, write_slices

MOST_CHOICE_SAMPLES = 32
"""Samples with which units are ordered; the judgement takes all of its part."""

FEW_CHOICE_SAMPLES = 4
"""Of these, with which the recipes of one unit are compared: most of a quantisation is spent there."""

MOST_MOMENTS = 1 << 30
"""Bytes of the moments that are kept at once; units beyond are not reconstructed."""

TIMED_FEEDS = 3
"""Feeds of different sizes with which times are measured."""


class BudgetError(TilewrightError):
    """Nothing can be made smaller within the budget, though there is what would be faster. `result` holds the float32
    model with its certificate."""

    result: Quantized | None = None


@dataclass(frozen=True)
class Quantized:
    """A model with its certificate: `model` is ONNX (QuantizeLinear and DequantizeLinear around the layers)."""

    model: onnx.ModelProto
    certificate: Certificate

    def save(self, path: str | Path, *, threads: int | None = None) -> None:
        """Write an .onnx file, or for .tw compile it for this machine."""
        path = Path(path)
        if path.suffix == ".tw":
            self.artifact(threads).save(path)
        else:
            from_bytes(path, self.model.SerializeToString())

    def artifact(self, threads: int | None = None) -> Artifact:
        """The model compiled for this machine and so many threads, with the certificate."""
        compiled = compile_model(self.model, threads=threads, cache=False)
        record = self.certificate.record()
        return replace(compiled.artifact, report={**compiled.artifact.report, KEY: record})


@dataclass(frozen=True)
class _Asked:
    """What a caller may choose, checked."""

    max_drop: float
    confidence: float
    metric: Metric
    kinds: tuple[str, ...]
    calibration: str
    threads: int | None


def quantize(
    model: str | Path | bytes | onnx.ModelProto,
    data: Any,
    *,
    max_drop: float,
    metric: Metric = None,
    kinds: Sequence[str] = KINDS,
    calibration: str = "auto",
    confidence: float = 0.95,
    batch: int | None = None,
    threads: int | None = None,
    output: str | Path | None = None,
    work: str | Path | None = None,
    progress: OnProgress | None = None,
) -> Quantized:
    """Make layers of a model smaller where that is faster on this machine, and the metric drops by no more than
    `max_drop` (0.005: half a point) with `confidence`. docs/quantize.md describes every step.

    data: a .npz file, a folder of such files, or an iterable of feeds (dicts of arrays by input name), which may hold
        "labels".
    metric: "accuracy", "top1", "recall", "cosine", "FILE.py:FUNCTION" or a function of (outputs, labels or feeds) that
        gives a score for each item; by default what the outputs are, compared with float32.
    kinds: of "int8", "bf16", "w8", "w4".
    calibration: "auto" (the best for each layer), "min-max", "percentile", "entropy" or "mse".
    batch: samples in a call, where an array holds single samples and the model has a symbolic first dim.
    output: a file to write, .onnx or .tw; findings are kept beside it in `work` until it is written.

    Raises InputError and OptionError for what is wrong with the data or the arguments, and BudgetError where something
    would be faster and nothing is within the budget; the float32 model is then written with its certificate.
    """
    asked = _asked(max_drop, confidence, metric, kinds, calibration, threads)
    if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
        raise OptionError(f"batch={batch!r} is not allowed: give a number of samples from 1 on")
    if output is not None and Path(output).suffix not in (".onnx", ".tw"):
        raise OptionError(f"output={str(output)!r} is not allowed: the suffix is .onnx or .tw")
    source, folder = read_model(model)
    loaded = onnx.ModelProto()
    loaded.CopyFrom(source)
    load_weights(loaded, folder)
    check_quantised(loaded)
    run = _Run(loaded, name_of(model), data, batch, asked, _work(output, work), progress)
    try:
        result = run.result()
    except BudgetError as error:
        if output is not None and error.result is not None:
            error.result.save(output, threads=threads)
            run.state.done()
        raise
    if output is not None:
        result.save(output, threads=threads)
    run.state.done()
    return result


def _asked(
    max_drop: float,
    confidence: float,
    metric: Metric,
    kinds: Sequence[str],
    calibration: str,
    threads: int | None,
) -> _Asked:
    if isinstance(max_drop, bool) or not isinstance(max_drop, int | float) or not 0 <= max_drop < 1:
        raise OptionError(
            f"max_drop={max_drop!r} is not allowed: give a number from 0 to 1", hint="0.005 is half a percent"
        )
    if not isinstance(confidence, int | float) or not 0.5 <= confidence < 1:
        raise OptionError(
            f"confidence={confidence!r} is not allowed: give a number from 0.5 to 1, such as 0.95"
        )
    chosen = [kinds] if isinstance(kinds, str) else list(kinds)
    for kind in chosen:
        if kind not in KINDS and kind != "float32":
            raise OptionError(f"kinds={kind!r} is not known: of {', '.join(KINDS)}")
    if calibration != "auto" and calibration not in METHODS:
        raise OptionError(f"calibration={calibration!r} is not known: auto, {', '.join(METHODS)}")
    wanted = tuple(kind for kind in KINDS if kind in chosen)
    return _Asked(float(max_drop), float(confidence), metric, wanted, calibration, threads)


def _work(output: str | Path | None, work: str | Path | None) -> Path | None:
    if work is not None:
        return Path(work)
    return None if output is None else Path(f"{os.fspath(output)}.work")


class _Run:
    """One quantisation: each step is a method, called in order by `result`."""

    def __init__(
        self, model: onnx.ModelProto, name: str, data: Any, batch: int | None, asked: _Asked,
        work: Path | None, progress: OnProgress | None,
    ) -> None:  # fmt: skip
        self.original, self.name, self.asked = model, name, asked
        self._report = progress
        self.remarks: list[str] = []
        self.float32 = compile_model(model, threads=asked.threads)
        self.data = open_data(data, self.float32.inputs, batch=batch, spool=work)
        options = [
            asked.max_drop,
            asked.confidence,
            str(asked.metric),
            asked.kinds,
            asked.calibration,
            asked.threads,
        ]
        self.digest = digest_of(model)
        self.state = State(work, fingerprint(self.digest, self.data.digest, options))
        self.kinds = asked.kinds
        self.network = self._network()
        self.times: dict[str, dict[str, tuple[float, float]]] = {}
        self.forms: dict[tuple[str, str], Form] = {}
        self.candidates: list[Alternative] = []
        self.calibration: dict[str, Any] = {}
        self.given_up: dict[str, str] = {}

    def step(self, stage: str, done: int, total: int) -> None:
        if self._report is not None:
            self._report(Progress(stage, done, total))

    def result(self) -> Quantized:
        self._calibrate()
        judge = self._judge("judge")
        self._measure_times()
        eager = [u for u in self.network.units if any(self._gain(u, kind) > 0 for kind in self.kinds)]
        if not eager:
            return self._kept(judge, "nothing is faster in a smaller type on this machine")
        self._sensitivities(eager)
        return self._choose(judge)

    def _network(self) -> Network:
        if "w4" in self.kinds:
            try:
                return Network.of(self.original, BLOCK_OPSET)
            except UnsupportedError as error:
                self.kinds = tuple(kind for kind in self.kinds if kind != "w4")
                self.remarks.append(f"no weights of 4 bits: {error.what}")
        return Network.of(self.original, LEAST_OPSET)

    def _judge(self, part: str, most: int | None = None) -> Judge:
        samples = (self.data.read(i) for i in self.data.part(part)[:most])
        metric = self.asked.metric if part == "judge" else None
        return Judge(samples, self._run_float32, metric, self.asked.max_drop, self.asked.confidence)

    def _run_float32(self, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
        return _call(self.float32, feed)

    def _calibrate(self) -> None:
        start, before = time.perf_counter(), _peak_bytes()
        self.tap = Tap(self.network, self.asked.threads)
        self.former = Former(self.network, self._observed("ranges"))
        self.calibration = {
            "method": self.asked.calibration,
            "samples": len(self.data.part("ranges")),
            "seconds": time.perf_counter() - start,
            "memory bytes": max(_peak_bytes() - before, 0),
        }

    def _observed(self, name: str) -> dict[str, Observer]:
        return observe(self.tap, self.network, self.data, self.state, name, self.step)

    # times

    def _measure_times(self) -> None:
        kept = self.state.get("times")
        if kept is None:
            kept = self._timed_kinds()
            self.state.put("times", kept)
        self.times = {
            kind: {unit: tuple(pair) for unit, pair in found.items()} for kind, found in kept.items()
        }

    def _timed_kinds(self) -> dict[str, dict[str, tuple[float, float]]]:
        feeds = self._timed_feeds()
        models = {"float32": self.network.model}
        for kind in self.kinds:
            able = [u for u in self.network.units if not why_not(self.network, u, kind)]
            if able:
                codes = {u.name: self.former.form(u, self._first_recipe(kind)).written for u in able}
                models[kind] = Writer(self.network).model(codes)
        compiled: dict[str, Model] = {}
        for place, (kind, model) in enumerate(models.items()):
            self.step("compiling variants", place, len(models))
            try:
                compiled[kind] = compile_model(model, threads=self.asked.threads, cache=False, profile=True)
            except TilewrightError as error:
                if kind == "float32":
                    raise
                self.remarks.append(f"{kind} cannot be compiled: {error.what}")
        rounds: dict[str, list[UnitTimes]] = {kind: [] for kind in compiled}
        for number in range(ROUNDS):
            self.step("timing", number, ROUNDS)
            turn = list(compiled)
            for kind in turn[number % len(turn) :] + turn[: number % len(turn)]:
                rounds[kind].append(unit_times(compiled[kind], models[kind], self.network, feeds))
        base = rounds.pop("float32")
        return {kind: gains(base, found) for kind, found in rounds.items()}

    def _timed_feeds(self) -> list[dict[str, np.ndarray]]:
        """Of small, medium and large samples."""
        numbers = self.data.part("ranges")[:MOST_CHOICE_SAMPLES]
        feeds = sorted(
            (self.data.read(i).feed for i in numbers), key=lambda feed: sum(a.size for a in feed.values())
        )
        if len({tuple(a.shape for a in feed.values()) for feed in feeds}) == 1:
            return feeds[:1]
        return [feeds[len(feeds) * (2 * i + 1) // (2 * TIMED_FEEDS)] for i in range(TIMED_FEEDS)]

    def _gain(self, unit: LayerGroup, kind: str) -> float:
        if why_not(self.network, unit, kind):
            return 0.0
        return self.times.get(kind, {}).get(unit.name, (0.0, 0.0))[0]

    # sensitivities

    def _first_recipe(self, kind: str) -> Recipe:
        return Recipe(kind, "min-max" if self.asked.calibration == "auto" else self.asked.calibration)

    def _recipes(self, unit: LayerGroup, kind: str) -> list[Recipe]:
        first = self._first_recipe(kind)
        if kind != "int8" or self.asked.calibration != "auto":
            return [first]
        found = [Recipe(kind, method) for method in METHODS]
        if unit.layers[0].operator != "Conv":
            found += [Recipe(kind, "min-max", smooth=share) for share in SHARES]
        return found

    def _sensitivities(self, units: Sequence[LayerGroup]) -> None:
        """The best form of each candidate, and its energy. Ranges are chosen first, then rounding and biases."""
        judge, few = self._judge("choice", MOST_CHOICE_SAMPLES), self._judge("choice", FEW_CHOICE_SAMPLES)
        self._equalise(units, judge)
        probe = Probe(self.network, self.asked.threads)
        pairs = [(unit, kind) for unit in units for kind in self.kinds if self._gain(unit, kind) > 0]

        def energy(unit: LayerGroup, recipe: Recipe, by: Judge = few, made: Form | None = None) -> float:
            name = f"energy {unit.name} {recipe!r} on {len(by.samples)}"
            kept = self.state.get(name)
            if kept is None:
                form = made or self.former.form(unit, recipe)
                kept = by.judge(probe.runner({unit.name: form.probed})).energy
                self.state.put(name, kept)
            return float(kept)

        best: dict[tuple[str, str], tuple[float, Recipe]] = {}
        for place, (unit, kind) in enumerate(pairs):
            self.step("ranges of layers", place, len(pairs))
            tried = [(energy(unit, recipe), recipe) for recipe in self._recipes(unit, kind)]
            best[unit.name, kind] = min(tried, key=lambda pair: pair[0])
        for kind in self.kinds:
            group = [unit for unit, k in pairs if k == kind and kind != "bf16"]
            self._count_moments(group, {unit.name: best[unit.name, kind][1] for unit in group})
            for place, unit in enumerate(group):
                self.step(f"rounding {kind}", place, len(group))
                found = best[unit.name, kind]
                for change in (
                    {"correct": True},
                    {"reconstruct": True},
                    {"correct": True, "reconstruct": True},
                ):
                    recipe = _changed(best[unit.name, kind][1], change)
                    if "reconstruct" in change and self.former.moments[unit.name].square is None:
                        continue
                    trial = energy(unit, recipe)
                    if trial < found[0]:
                        found = (trial, recipe)
                best[unit.name, kind] = found
                self.forms[unit.name, kind] = self.former.form(unit, found[1])
        for place, (unit, kind) in enumerate(pairs):
            self.step("noise of layers", place, len(pairs))
            _, recipe = best[unit.name, kind]
            if kind == "bf16":
                self.forms[unit.name, kind] = self.former.form(unit, recipe)
            value = energy(unit, recipe, judge, self.forms[unit.name, kind])
            self.candidates.append(Alternative(unit.name, kind, self._gain(unit, kind), value))
        self.probe = probe

    def _count_moments(self, units: Sequence[LayerGroup], recipes: Mapping[str, Recipe]) -> None:
        self.former.moments = {unit.name: self.former.moments_for(unit, recipes[unit.name]) for unit in units}
        size = 0
        for moments in self.former.moments.values():
            size += 0 if moments.square is None else moments.square.nbytes
            if size > MOST_MOMENTS:
                moments.square = None
        if units:
            count_moments(self.tap, units, self.former.moments, self.data, self.step)

    def _equalise(self, units: Sequence[LayerGroup], judge: Judge) -> None:
        """Equalise layers where that makes all candidates together less noisy."""
        wanted = {layer.node for unit in units for layer in unit.layers if self._gain(unit, "int8") > 0}
        other, pairs = equalised(self.network)
        if not any({pair.first.node, pair.second.node} <= wanted for pair in pairs):
            return
        kept = self.network, self.former, self.tap
        before = self._noise_of_all(units, judge)
        self.network = other
        self.tap = Tap(other, self.asked.threads)
        self.former = Former(other, self._observed("equalised"))
        after = self._noise_of_all(units, judge)
        if after < before:
            self.remarks.append(f"{len(pairs)} pairs of layers are equalised")
        else:
            self.network, self.former, self.tap = kept
            self.remarks.append(
                f"{len(pairs)} pairs of layers are not equalised: the noise would not be smaller"
            )

    def _noise_of_all(self, units: Sequence[LayerGroup], judge: Judge) -> float:
        named = {unit.name for unit in units if self._gain(unit, "int8") > 0}
        forms = {
            unit.name: self.former.form(unit, self._first_recipe("int8")).probed
            for unit in self.network.units
            if unit.name in named
        }
        return judge.judge(Probe(self.network, self.asked.threads).runner(forms)).energy

    # the choice

    def _choose(self, judge: Judge) -> Quantized:
        ordered, excessive = order(self.candidates, self.asked.max_drop)
        best: list[float] = []

        def is_within(choice: Mapping[str, Alternative]) -> bool:
            name = "judged " + " ".join(sorted(f"{c.unit}={c.kind}" for c in choice.values()))
            kept = self.state.get(name)
            if kept is None:
                forms = {unit: self.forms[unit, c.kind].probed for unit, c in choice.items()}
                verdict = judge.judge(self.probe.runner(forms))
                kept = [verdict.bound, verdict.finding.drop]
                self.state.put(name, kept)
            best.append(max(kept))
            return max(kept) <= self.asked.max_drop

        chosen, ended = grow(ordered, is_within, lambda done, total: self.step("choosing", done, total))
        if not chosen and not ordered and excessive:
            first = min(excessive, key=lambda c: c.energy)
            is_within({first.unit: first})
        whole_slower = False
        while chosen:
            model = Writer(self.network).model({u: self.forms[u, c.kind].written for u, c in chosen.items()})
            compiled = compile_model(model, threads=self.asked.threads, cache=False)
            self.step("comparing", 0, 1)
            verdict = judge.judge(partial(_call, compiled))
            if verdict.within(self.asked.max_drop):
                comparison = compare(self.float32, compiled, self._timed_feeds())
                if comparison.is_faster:
                    return self._finished(model, verdict, comparison, chosen, excessive, ended, compiled)
                whole_slower = True
            reason = _SLOWER if whole_slower else _NOT_WITHIN
            worst_last = sorted(chosen.values(), key=lambda c: -c.gain if whole_slower else c.energy)
            kept = worst_last[: len(chosen) // 2] if whole_slower else worst_last[:-1]
            self.given_up |= {c.unit: reason for c in worst_last[len(kept) :]}
            chosen = {c.unit: c for c in kept}
        if whole_slower:
            return self._kept(judge, "the model as a whole is not faster with what the budget allows")
        result = self._kept(judge, "no layer that would be faster is within the budget")
        least_drop = min(best, default=float("inf"))
        error = BudgetError(
            f"no layer can be made smaller within a drop of {self.asked.max_drop:.4g}: the best has "
            f"{_percent(least_drop)} at most, at a confidence of {self.asked.confidence:.0%} "
            f"on {result.certificate.items} items",
            hint="allow a larger drop, give more samples (bounds become tighter), or keep float32",
        )
        error.result = result
        raise error

    def _kept(self, judge: Judge, outcome: str) -> Quantized:
        """The float32 model as it is, and why."""
        verdict = judge.judge(self._run_float32)
        seconds = sum(before for _, before in next(iter(self.times.values()), {}).values())
        comparison = Comparison(seconds, seconds, 0.0)
        return self._certified(self.original, verdict, comparison, {}, [], None, outcome)

    def _finished(
        self, model: onnx.ModelProto, verdict: Verdict, comparison: Comparison, chosen: Mapping[str, Alternative],
        excessive: Sequence[Alternative], ended: Alternative | None, compiled: Model,
    ) -> Quantized:  # fmt: skip
        saved = 1 - comparison.after / comparison.before
        outcome = (
            f"{len(chosen)} of {len(self.network.units)} groups of layers are smaller, {saved:.0%} less time"
        )
        return self._certified(model, verdict, comparison, chosen, excessive, ended, outcome)

    def _certified(
        self, model: onnx.ModelProto, verdict: Verdict, comparison: Comparison, chosen: Mapping[str, Alternative],
        excessive: Sequence[Alternative], ended: Alternative | None, outcome: str,
    ) -> Quantized:  # fmt: skip
        finding = verdict.finding
        basis = finding.basis
        if verdict.guard is not None:
            basis = f"{basis}; too few for this budget, so the outputs are bound too: {verdict.guard.basis}"
        if self.data.count == 1:
            self.remarks.append("one sample: ranges and judgement are of the same data")
        certificate = Certificate(
            metric=verdict.metric, before=finding.before, after=finding.after, drop=finding.drop,
            interval=list(finding.interval), bound=verdict.bound, max_drop=self.asked.max_drop,
            confidence=self.asked.confidence, basis=basis, items=finding.items, changed=finding.changed,
            outcome=outcome, layers=tuple(self._records(chosen)),
            seconds_before=comparison.before, seconds_after=comparison.after,
            bytes_before=self.original.ByteSize(), bytes_after=model.ByteSize(), calibration=self.calibration,
            model=self.name, model_digest=self.digest, weights_digest=digest_of(model), data=self.data.about,
            data_digest=self.data.digest, remarks=tuple(self.remarks),
            options={"kinds": list(self.asked.kinds), "metric": _worded(self.asked.metric), "threads":
                     self.float32.threads},
        )  # fmt: skip
        return Quantized(with_certificate(model, certificate), certificate)

    def _records(self, chosen: Mapping[str, Alternative]) -> Iterable[LayerRecord]:
        alone = {(c.unit, c.kind): c.drop for c in self.candidates}
        for unit in self.network.units:
            before = max((found[unit.name][1] for found in self.times.values()), default=0.0)
            taken = chosen.get(unit.name)
            gains = {kind: self._gain(unit, kind) for kind in self.times}
            drops = {kind: alone[unit.name, kind] for kind in self.kinds if (unit.name, kind) in alone}
            finite = {kind: drop for kind, drop in drops.items() if np.isfinite(drop)}
            for layer in unit.layers:
                kind = taken.kind if taken else "float32"
                recipe = self.forms[unit.name, kind].recipe.text if taken else ""
                reason = "faster, and within the budget" if taken else self._why_wide(unit, gains, drops)
                yield LayerRecord(
                    layer.node, layer.operator, unit.name, kind, recipe, reason, 1000 * before, gains, finite
                )
        for node, reason in self.network.left_alone.items():
            yield LayerRecord(node, "", "", "float32", "", reason, 0.0, {}, {})

    def _why_wide(self, unit: LayerGroup, gains: Mapping[str, float], drops: Mapping[str, float]) -> str:
        faster = [kind for kind, gain in gains.items() if gain > 0]
        if not faster:
            reasons = {why_not(self.network, unit, kind) for kind in self.kinds} - {""}
            more = f" ({'; '.join(sorted(reasons))})" if reasons else ""
            return f"no smaller type is faster on this machine{more}"
        if drops and min(drops.values()) > self.asked.max_drop:
            return f"alone it may cost {_percent(min(drops.values()))}, more than the budget"
        return self.given_up.get(unit.name, _NOT_WITHIN)


_NOT_WITHIN = "with it, the bound of the drop would be above the budget"
_SLOWER = "with it, the model as a whole was not faster"


def _call(model: Model, feed: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    return model(*[feed[info.name] for info in model.inputs])


def _changed(recipe: Recipe, change: Mapping[str, bool]) -> Recipe:
    return replace(recipe, correct="correct" in change, reconstruct="reconstruct" in change)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if np.isfinite(share) else "more than can be told"


def _worded(metric: Metric) -> str | None:
    return metric if metric is None or isinstance(metric, str) else getattr(metric, "__name__", "a function")


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def digest_of(model: onnx.ModelProto) -> str:
    """Of the graph: what is said in the metadata changes nothing."""
    return hashlib.blake2b(model.graph.SerializeToString(deterministic=True), digest_size=16).hexdigest()


def from_bytes(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as file:
        write_slices(file, data)
