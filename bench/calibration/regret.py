"""What the model's decisions lose on this machine: for each kind, networks that are drawn by chance are compiled with
each answer that the model could have given, their programs are timed in turns, and the time of the model's answer is
compared with the least."""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from bench.calibration.kind import Kind, Sample, compiled
from bench.calibration.kinds import KINDS
from tilewright.runtime.module import Model
from tilewright.runtime.threads import SPIN_NS
from tilewright.target.named import parse_target
from tilewright.target.target import Target

MOST_DRAWS = 12
"""Networks that are drawn until one asks the question with different answers."""

SECONDS, LOADS = 0.6, 3
"""Of measuring one network, and how often its programs are loaded; each is called three times or more."""

CALLS = 4
"""Calls in a turn of a program of several threads; the first wakes its workers and is not timed."""


def prepare(kind: Kind, number: int, seed: int, folder: Path, target: Target) -> dict[str, Any] | None:
    """Programs of the network `number` of a kind, from `folder` or made and put there; None where no network asked."""
    home = folder / f"{kind.name} {seed}-{number}".replace(" ", "_")
    about = home / "about.json"
    if about.exists():
        found: dict[str, Any] | None = json.loads(about.read_text())
        return found
    home.mkdir(parents=True, exist_ok=True)
    made = _drawn(kind, number, seed, target)
    if made is None:
        about.write_text("null")
        return None
    sample, told, programs = made
    for k, program in enumerate(programs.values()):
        program.save(home / f"{k}.tw")
    entry = {"kind": kind.name, "number": number, "seed": seed, "network": sample.text, "told": told}
    entry["answers"] = list(programs)
    entry["inputs"] = [[str(d) for d in type.shape] for type in sample.inputs]
    about.write_text(json.dumps(entry))
    return entry


def _drawn(kind: Kind, number: int, seed: int, target: Target) -> tuple[Sample, str, dict[str, Any]] | None:
    for attempt in range(MOST_DRAWS):
        rng = np.random.default_rng([seed, zlib.crc32(kind.name.encode()), number, attempt])
        sample = kind.draw(rng)
        found = compiled(kind, sample, target)
        if found is not None:
            return sample, *found
    return None


def measure(entry: dict[str, Any], kind: Kind, folder: Path) -> dict[str, float]:
    """The least time of each program in microseconds, called in turns of any order. Programs are loaded several times:
    which pages their memory gets makes a difference of its own."""
    home = folder / f"{entry['kind']} {entry['seed']}-{entry['number']}".replace(" ", "_")
    rng = np.random.default_rng(entry["number"])
    files = {answer: home / f"{k}.tw" for k, answer in enumerate(entry["answers"])}
    least = dict.fromkeys(files, float("inf"))
    arrays = [rng.standard_normal([int(d) for d in shape], np.float32) for shape in entry["inputs"]]
    for _ in range(LOADS):
        models = {answer: tilewright.load(file, threads=kind.threads) for answer, file in files.items()}
        for answer, seconds in _least(models, arrays, rng, kind.threads).items():
            least[answer] = min(least[answer], seconds)
        for model in models.values():
            model.close()
    return {answer: round(1e6 * seconds, 2) for answer, seconds in least.items()}


def _least(
    models: dict[str, Model], arrays: Sequence[np.ndarray], rng: np.random.Generator, threads: int
) -> dict[str, float]:
    """The least time of a call of each, in seconds. Workers of the program before would take the cores of those of this
    one while they wait for more work: a turn begins when they sleep."""
    any_model = next(iter(models.values()))
    feed = {i.name: array for i, array in zip(any_model.get_inputs(), arrays, strict=True)}
    outputs = [np.zeros_like(a) for a in any_model.run(feed)]
    least = dict.fromkeys(models, float("inf"))
    turn, calls, start = list(models), 0, time.monotonic()
    while calls < 3 or (calls < 100 and time.monotonic() - start < SECONDS / LOADS):
        rng.shuffle(turn)
        for answer in turn:
            if threads > 1:
                time.sleep(2e-9 * SPIN_NS)
                models[answer].run(feed, out=outputs)
            for _ in range(CALLS - 1 if threads > 1 else 1):
                begin = time.perf_counter()
                models[answer].run(feed, out=outputs)
                least[answer] = min(least[answer], time.perf_counter() - begin)
        calls += 1
    return least


def collect(
    kinds: Sequence[Kind],
    networks: int,
    seed: int,
    folder: Path,
    results: Path,
    minutes: float,
    target: Target,
) -> None:
    """Measure what is not measured yet, for so many minutes, one network of each kind after the other."""
    end = time.monotonic() + 60 * minutes
    done = {(e["kind"], e["number"], e["seed"]) for e in read(results)}
    for number in range(networks):
        for kind in kinds:
            if (kind.name, number, seed) in done:
                continue
            if time.monotonic() > end:
                print("there is more to measure: run it again")
                return
            entry = prepare(kind, number, seed, folder, target)
            if entry is not None:
                entry["microseconds"] = measure(entry, kind, folder)
                with results.open("a") as file:
                    file.write(json.dumps(entry) + "\n")


def read(results: Path) -> list[dict[str, Any]]:
    """What was measured."""
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def regret_of(entry: dict[str, Any]) -> float:
    """Time of the model's answer beyond the least of all answers, relative to it."""
    times = entry["microseconds"]
    return float(times[entry["told"]] / min(times.values()) - 1)


def print_report(entries: Iterable[dict[str, Any]], *, verbose: bool = False) -> None:
    """Median and worst regret of each kind."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        by_kind.setdefault(entry["kind"], []).append(entry)
    print(f"{'kind of decision':32s} networks  median   worst  of the worst network")
    for name, found in by_kind.items():
        found.sort(key=regret_of)
        worst = found[-1]
        median = np.median([regret_of(e) for e in found])
        times = worst["microseconds"]
        best = min(times, key=times.__getitem__)
        said = f"{worst['network']}: {worst['told']}, best {best}"
        print(f"{name:32s} {len(found):8d} {median:7.1%} {regret_of(worst):7.1%}  {said}")
        for entry in found if verbose else ():
            print(f"    {regret_of(entry):6.1%} {entry['network']}: {entry['told']}; {entry['microseconds']}")


def report(options: argparse.Namespace) -> None:
    """Measure what is not measured yet, and print the regret of each kind."""
    names = tuple(options.kinds or ("",))
    kinds = [kind for kind in KINDS if kind.name.startswith(names)]
    target = parse_target(options.target)
    results = options.folder / "results.jsonl"
    options.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{target.name}: networks {options.networks} of each kind, seed {options.seed}, in {options.folder}"
    )
    if options.prepare:
        for number in range(options.networks):
            for kind in kinds:
                prepare(kind, number, options.seed, options.folder, target)
        return
    collect(kinds, options.networks, options.seed, options.folder, results, options.minutes, target)
    taken = {kind.name for kind in kinds}
    found = (e for e in read(results) if e["kind"] in taken and e["seed"] == options.seed)
    print_report(found, verbose=options.verbose)
