"""One quantisation: each step is a method, and `Quantization.result` calls them in their order."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_model
from tilewright.ir.core import Module
from tilewright.options import OnProgress, Progress
from tilewright.quantization.calibration import gather, in_groups, observe
from tilewright.quantization.certificate import Certificate, LayerRecord
from tilewright.quantization.data import fingerprint, open_data
from tilewright.quantization.decision.bounds import items_needed, least_items
from tilewright.quantization.decision.choose import Alternative, Choice, grow, order, steps
from tilewright.quantization.decision.criteria import NEAR
from tilewright.quantization.decision.judge import Judge, Metric, Verdict, as_function
from tilewright.quantization.decision.timing import LEAST_WHOLE_GAIN, Comparison, compare, time_kinds
from tilewright.quantization.forms import Form, Former, why_not
from tilewright.quantization.methods.equalise import equalised
from tilewright.quantization.methods.histogram import Observer
from tilewright.quantization.network import LayerGroup, Network
from tilewright.quantization.probe import Probe, Tap
from tilewright.quantization.recipes import best_form, first_recipe
from tilewright.quantization.result import BudgetError, Quantized, as_read_again, bytes_of, digest_of
from tilewright.quantization.state import State
from tilewright.quantization.written import written
from tilewright.runtime.errors import InputError

MOST_CHOICE_SAMPLES = 32
"""Samples on which the noise of single units is measured at most."""

LEAST_CHOICE_SAMPLES = 4
"""And at least; between them as many as take `NOISE_S`."""

NOISE_S = 120.0
"""Seconds to spend on the noise of all units together."""

TIMED_FEEDS = 3
"""Feeds of different sizes with which times are measured."""


@dataclass(frozen=True)
class Asked:
    """What a caller may choose, checked."""

    max_drop: float
    confidence: float
    metric: Metric
    kinds: tuple[str, ...]
    calibration: str
    threads: int | None


class Quantization:
    """What is known of a quantisation so far."""

    def __init__(
        self, model: Module, name: str, data: Any, batch: int | None, asked: Asked,
        work: Path | None, progress: OnProgress | None,
    ) -> None:  # fmt: skip
        self.original, self.name, self.asked = model, name, asked
        self._report = progress
        self.remarks: list[str] = []
        self.step("compiling float32", 0, 1)
        self.float32 = compile_model(model, threads=asked.threads)
        self.data = open_data(data, self.float32.inputs, batch=batch, spool=work)
        self._check_count()
        options = [
            asked.max_drop,
            asked.confidence,
            _key_of(asked.metric),
            asked.kinds,
            asked.calibration,
            asked.threads,
        ]
        self.digest = digest_of(model)
        self.state = State(work, fingerprint(self.digest, self.data.digest, options))
        self.kinds = asked.kinds
        self.network = Network.of(model)
        self.times: dict[str, dict[str, tuple[float, float]]] = {}
        self.forms: dict[tuple[str, str], Form] = {}
        self.candidates: list[Alternative] = []
        self.calibration: dict[str, Any] = {}
        self.given_up: dict[str, str] = {}
        self.excessive: set[tuple[str, str]] = set()
        self._probe: tuple[Network, Probe] | None = None

    def _check_count(self) -> None:
        """InputError where there are fewer different items than a bound needs: none is proved by one item, however
        often it comes."""
        items, different = self.data.items("judge")
        needed = least_items(self.asked.max_drop, self.asked.confidence, items, NEAR)
        if different < needed:
            _, in_all = self.data.items("all")
            raise InputError(
                f"the data has {in_all} different items, of which {different} are held back to judge with; a bound of "
                f"{_percent(self.asked.max_drop)} with a confidence of {self.asked.confidence:.0%} needs {needed} of "
                "them",
                where=self.data.about,
                hint=f"give at least {-(-needed * 5 // 3)} items that differ, allow a larger drop, or ask for less "
                "confidence",
            )

    def step(self, stage: str, done: int, total: int) -> None:
        if self._report is not None:
            self._report(Progress(stage, done, total))

    def result(self) -> Quantized:
        """All of it. BudgetError where something would be faster and nothing is within the budget."""
        self._calibrate()
        judge = self._judge("judge")
        self._measure_times()
        eager = [u for u in self.network.units if any(self._gain(u, kind) > 0 for kind in self.kinds)]
        if not eager:
            return self._kept(judge, "nothing is faster in a smaller type on this machine")
        most = sum(max(self._gain(unit, kind) for kind in self.kinds) for unit in eager)
        if most < LEAST_WHOLE_GAIN * self._float32_seconds():
            return self._kept(judge, f"all that is faster would save less than {LEAST_WHOLE_GAIN:.0%} of the time")
        self._equalise(eager)
        names = {unit.name for unit in eager}
        eager = [unit for unit in self.network.units if unit.name in names]
        pairs = [(unit, kind) for unit in eager for kind in self.kinds if self._gain(unit, kind) > 0]
        self._make_forms(pairs)
        self._measure_noise(pairs)
        return self._choose(judge)

    def _judge(self, part: str, most: int | None = None) -> Judge:
        metric = self.asked.metric if part == "judge" else None
        return Judge(
            self.data.samples(part, most), as_function(self.float32), metric, self.asked.max_drop,
            self.asked.confidence,
        )  # fmt: skip

    def _calibrate(self) -> None:
        start, before = time.perf_counter(), _peak_bytes()
        self.step("compiling with taps", 0, 1)
        self.tap = Tap(self.network, self.asked.threads)
        self.former = Former(self.network, self._observed("ranges"))
        self.calibration = {
            "method": self.asked.calibration,
            "samples": len({*self.data.part("ranges"), *self.data.part("choice")}),
            "seconds": time.perf_counter() - start,
            "memory bytes": max(_peak_bytes() - before, 0),
        }

    def _observed(self, name: str) -> dict[str, Observer]:
        return observe(self.tap, self.network, self.data, self.state, name, self.step)

    # times

    def _measure_times(self) -> None:
        kept = self.state.get("times")
        if kept is None:
            models = {"float32": self.network.module}
            for kind in self.kinds:
                able = [u for u in self.network.units if not why_not(u, kind)]
                if able:
                    recipe = first_recipe(kind, self.asked.calibration)
                    codes = {unit.name: self.former.form(unit, recipe).code for unit in able}
                    models[kind] = written(self.network, codes)
                    self.former.release()
            feeds = self._timed_feeds()
            kept, remarks = time_kinds(models, self.network, feeds, self.asked.threads, self.step)
            self.remarks += remarks
            self.state.put("times", kept)
        self.times = {
            kind: {unit: tuple(pair) for unit, pair in found.items()} for kind, found in kept.items()
        }

    def _timed_feeds(self) -> list[dict[str, np.ndarray]]:
        """Of small, medium and large samples."""
        samples = self.data.samples("ranges", MOST_CHOICE_SAMPLES)
        feeds = sorted((s.feed for s in samples), key=lambda feed: sum(a.size for a in feed.values()))
        if len({tuple(a.shape for a in feed.values()) for feed in feeds}) == 1:
            return feeds[:1]
        return [feeds[len(feeds) * (2 * i + 1) // (2 * TIMED_FEEDS)] for i in range(TIMED_FEEDS)]

    def _gain(self, unit: LayerGroup, kind: str) -> float:
        if why_not(unit, kind):
            return 0.0
        return self.times.get(kind, {}).get(unit.name, (0.0, 0.0))[0]

    def _float32_seconds(self) -> float:
        """Of all layers that could become smaller."""
        return sum(before for _, before in next(iter(self.times.values()), {}).values())

    # forms and their noise

    def _equalise(self, units: Sequence[LayerGroup]) -> None:
        """Equalise layers where that makes all candidates together less noisy."""
        wanted = {layer.node for unit in units for layer in unit.layers if self._gain(unit, "int8") > 0}
        other, pairs = equalised(self.network)
        if not any({pair.first.node, pair.second.node} <= wanted for pair in pairs):
            return
        said = f"{len(pairs)} pairs of layers are "
        is_better = self.state.get("equalised")
        if is_better is False:
            self.remarks.append(said + _NOT_EQUALISED)
            return
        judge = self._judge("choice", MOST_CHOICE_SAMPLES) if is_better is None else None
        before = self._noise_of_all(units, judge) if judge else 0.0
        kept = self.network, self.former, self.tap, self._probe
        self.network, self.tap = other, Tap(other, self.asked.threads)
        self.former = Former(other, self._observed("equalised ranges"))
        if judge:
            is_better = self._noise_of_all(units, judge) < before
            self.state.put("equalised", is_better)
        if not is_better:
            self.network, self.former, self.tap, self._probe = kept
        self.remarks.append(said + ("equalised" if is_better else _NOT_EQUALISED))

    def _noise_of_all(self, units: Sequence[LayerGroup], judge: Judge) -> float:
        named = {unit.name for unit in units if self._gain(unit, "int8") > 0}
        recipe = first_recipe("int8", self.asked.calibration)
        forms = {
            unit.name: self.former.form(unit, recipe).probed(self.network, unit)
            for unit in self.network.units
            if unit.name in named
        }
        return judge.judge(self.probe.runner(forms)).energy

    @property
    def probe(self) -> Probe:
        """Of the network as it is now."""
        if self._probe is None or self._probe[0] is not self.network:
            self.step("compiling with weights as inputs", 0, 1)
            self._probe = self.network, Probe(self.network, self.asked.threads)
        return self._probe[1]

    def _make_forms(self, pairs: Sequence[tuple[LayerGroup, str]]) -> None:
        """The best form of each candidate."""
        pending: dict[str, list[str]] = {}
        for unit, kind in pairs:
            kept = self.state.get(f"form {unit.name} {kind}")
            if kept is not None:
                self.forms[unit.name, kind] = Form.restored(unit, kept)
            elif kind == "bf16":
                self.forms[unit.name, kind] = best_form(self.former, unit, kind, self.asked.calibration)
            else:
                pending.setdefault(unit.name, []).append(kind)
        done = 0
        for group in in_groups([u for u in self.network.units if u.name in pending]):
            inputs = gather(self.tap, group, self.data, self.step)
            for unit in group:
                self.step("recipes of layers", done, len(pending))
                done += 1
                self.former.inputs = {unit.name: inputs.pop(unit.name)}
                for kind in pending[unit.name]:
                    form = best_form(self.former, unit, kind, self.asked.calibration)
                    self.forms[unit.name, kind] = form
                    self.state.put(f"form {unit.name} {kind}", form.record(unit))
                self.former.release()

    def _measure_noise(self, pairs: Sequence[tuple[LayerGroup, str]]) -> None:
        """What each candidate alone does to the outputs."""
        judge = self._judge("choice", self._noise_samples(len(pairs)))
        for place, (unit, kind) in enumerate(pairs):
            self.step("noise of layers", place, len(pairs))
            name = f"noise of {unit.name} {kind} on {len(judge.samples)}"
            kept = self.state.get(name)
            if kept is None:
                form = self.forms[unit.name, kind].probed(self.network, unit)
                verdict = judge.judge(self.probe.runner({unit.name: form}))
                kept = [verdict.energy, verdict.caution]
                self.state.put(name, kept)
            energy, caution = map(float, kept)
            self.candidates.append(Alternative(unit.name, kind, self._gain(unit, kind), energy, caution))

    def _noise_samples(self, count: int) -> int:
        """How many samples the noise of so many candidates is measured on."""
        kept = self.state.get("noise samples")
        if kept is None:
            run, (sample,) = self.probe.runner({}), self.data.samples("choice", 1)
            run(sample.feed)
            start = time.perf_counter()
            run(sample.feed)
            seconds = (time.perf_counter() - start) * count
            kept = min(max(int(NOISE_S / seconds), LEAST_CHOICE_SAMPLES), MOST_CHOICE_SAMPLES)
            self.state.put("noise samples", kept)
        return int(kept)

    # the choice

    def _choose(self, judge: Judge) -> Quantized:
        least = LEAST_WHOLE_GAIN * self._float32_seconds()
        ordered, excessive = order(self.candidates, self.asked.max_drop, least)
        self.excessive = {(c.unit, c.kind) for c in excessive}
        bounds: list[float] = []

        def is_within(choice: Choice) -> bool:
            name = "judged " + " ".join(sorted(f"{c.unit}={c.kind}" for c in choice.values()))
            kept = self.state.get(name)
            if kept is None:
                verdict = judge.judge(self.probe.runner(self._probed(choice)))
                kept = [verdict.bound, verdict.finding.drop]
                self.state.put(name, kept)
            bounds.append(max(kept))
            return max(kept) <= self.asked.max_drop

        choices = steps(ordered, self.asked.max_drop)
        passed = grow(choices, is_within, lambda done, total: self.step("choosing", done, total))
        if not ordered and excessive:
            first = min(excessive, key=lambda c: c.energy)
            is_within({first.unit: first})
        proven = self._proven(passed, judge)
        if proven is not None:
            return proven
        if passed and self.given_up and _SLOWER in self.given_up.values():
            return self._kept(judge, "the model as a whole is not faster with what the budget allows")
        result = self._kept(judge, "no layer that would be faster is within the budget")
        error = BudgetError(
            f"no layer can be made smaller within a drop of {self.asked.max_drop:.4g}: the best has "
            f"{_percent(min(bounds, default=np.inf))} at most, at a confidence of {self.asked.confidence:.0%} "
            f"on {result.certificate.items} items",
            hint="allow a larger drop, give more samples (bounds become tighter), or keep float32",
        )
        error.result = result
        raise error

    def _probed(self, choice: Choice) -> dict[str, Any]:
        units = {unit.name: unit for unit in self.network.units}
        return {
            name: self.forms[name, c.kind].probed(self.network, units[name]) for name, c in choice.items()
        }

    def _proven(self, passed: Sequence[Choice], judge: Judge) -> Quantized | None:
        """The largest choice that holds as it is compiled, and is faster as a whole. Sums of integers and of floats
        differ in their last bits: where that breaks the budget, smaller choices follow that passed before."""
        back = 1
        chosen = dict(passed[-1]) if passed else {}
        is_slower = False
        while chosen:
            self.step("compiling the choice", 0, 1)
            codes = {name: self.forms[name, c.kind].code for name, c in chosen.items()}
            graph = written(self.network, codes)
            again = as_read_again(graph)
            compiled = compile_model(again, threads=self.asked.threads, cache=False)
            self.step("comparing", 0, 1)
            verdict = judge.judge(as_function(compiled))
            is_within = verdict.within(self.asked.max_drop)
            if is_within:
                comparison = compare(self.float32, compiled, self._timed_feeds())
                if comparison.is_faster:
                    saved = 1 - comparison.after / comparison.before
                    outcome = (
                        f"{len(chosen)} of {len(self.network.units)} groups of layers are smaller, "
                        f"{saved:.0%} less time"
                    )
                    return self._certified(graph, again, verdict, comparison, chosen, outcome)
                is_slower = True
            smaller: Choice
            if is_slower:
                kept = sorted(chosen.values(), key=lambda c: -c.gain)[: len(chosen) // 2]
                smaller = {c.unit: c for c in kept}
            else:
                back *= 2
                smaller = passed[-back] if back <= len(passed) else {}
            self.given_up |= {name: _SLOWER if is_slower else _NOT_WITHIN for name in {*chosen} - {*smaller}}
            chosen = dict(smaller)
        return None

    def _kept(self, judge: Judge, outcome: str) -> Quantized:
        """The float32 model as it is, and why."""
        verdict = judge.judge(as_function(self.float32))
        items, needed = verdict.finding.items, items_needed(self.asked.max_drop, self.asked.confidence)
        if self.excessive and items < needed:
            self.remarks.append(
                f"{len(self.excessive)} forms that would be faster may cost more than the budget, as far as "
                f"{items} held-back items tell: of {needed} (three fifths of all), changes are counted"
            )
        seconds = self._float32_seconds()
        comparison = Comparison(seconds, seconds, 0.0)
        return self._certified(self.original, as_read_again(self.original), verdict, comparison, {}, outcome)

    def _certified(
        self, graph: Module, again: Module, verdict: Verdict, comparison: Comparison, chosen: Choice, outcome: str
    ) -> Quantized:
        """The result, and what it is when it is read again."""
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
            bytes_before=bytes_of(self.original), bytes_after=bytes_of(again), calibration=self.calibration,
            model=self.name, model_digest=self.digest, weights_digest=digest_of(again), data=self.data.about,
            data_digest=self.data.digest, remarks=tuple(self.remarks),
            options={"kinds": list(self.asked.kinds), "metric": _worded(self.asked.metric), "threads":
                     self.float32.threads},
        )  # fmt: skip
        return Quantized(graph, certificate)

    def _records(self, chosen: Choice) -> Iterable[LayerRecord]:
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
            reasons = {why_not(unit, kind) for kind in self.kinds} - {""}
            more = f" ({'; '.join(sorted(reasons))})" if reasons else ""
            return f"no smaller type is faster on this machine{more}"
        if drops and all((unit.name, kind) in self.excessive for kind in drops):
            return f"alone it may cost {_percent(min(drops.values()))}, more than the budget"
        return self.given_up.get(unit.name, _NOT_WITHIN)


_NOT_WITHIN = "with it, the bound of the drop would be above the budget"
_SLOWER = "with it, the model as a whole was not faster"
_NOT_EQUALISED = "not equalised: the noise would not be smaller"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if np.isfinite(share) else "more than can be told"


def _worded(metric: Metric) -> str | None:
    return metric if metric is None or isinstance(metric, str) else getattr(metric, "__name__", "a function")


def _key_of(metric: Metric) -> list[str | None]:
    """What tells a metric from others, also in another process."""
    path = Path(metric.rpartition(":")[0]) if isinstance(metric, str) else None
    text = path.read_text(errors="replace") if path is not None and path.is_file() else ""
    return [_worded(metric), text]


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
