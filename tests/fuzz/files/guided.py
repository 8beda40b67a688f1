"""Coverage-guided runs of the fuzzers of files, by atheris: `python -m tests.fuzz.files.guided loader --minutes 60`.

What is found lies in a folder afterwards, each finding once with its traceback, and so does the corpus, with which the
next run begins.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import click

SLICE = 600  # seconds until a process is replaced, which reads the corpus anew: memory that leaks would be a finding
FUZZERS = {"loader": "tests.fuzz.files.loader", "reader": "tests.fuzz.files.reader"}


@click.command()
@click.argument("name", type=click.Choice(sorted(FUZZERS)))
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Of corpus and findings [default: /tmp/fuzz-NAME].")
@click.option("--seed", type=click.IntRange(0), help="Random if left out.")
@click.option("--seconds", type=float, hidden=True, help="A slice in this process.")
def main(name: str, minutes: float, folder: Path | None, seed: int | None, seconds: float | None) -> None:
    """Fuzz the LOADER of models or the READER of artefacts, guided by coverage; exits with 1 if there is a finding."""
    folder = folder or Path("/tmp", f"fuzz-{name}")
    for part in ("corpus", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    first = Random().randrange(1, 2**31) if seed is None else seed
    if seconds is not None:
        run_slice(name, folder, first, seconds)
    end, runs = time.monotonic() + 60 * minutes, 0
    print(f"{name}: {minutes:g} minutes with --seed {first}, in {folder}", flush=True)
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, "-m", "tests.fuzz.files.guided", name, "--folder", str(folder)]
        command += ["--seed", str(first + runs), "--seconds", str(int(min(left, SLICE)) + 1)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        runs += 1
        tail = done.stderr.splitlines()[-30:]
        if runs == 1 and done.returncode and "Done" not in done.stderr:
            sys.exit("\n".join(tail))
        if done.returncode:
            (folder / "findings" / f"process-{first + runs}.txt").write_text("\n".join(tail))
        print("\n".join(line for line in [*done.stdout.splitlines(), *tail] if is_told(line)), flush=True)
    found = sorted(p.name for p in (folder / "findings").iterdir() if p.suffix == ".txt")
    print(f"{name}: {runs} processes, {len(found)} findings{': ' if found else ''}{', '.join(found)}")
    sys.exit(1 if found else 0)


def is_told(line: str) -> bool:
    return line.startswith(("tried", "found", "Done", "==", "SUMMARY", "atheris")) or "DONE" in line


def run_slice(name: str, folder: Path, seed: int, seconds: float) -> None:
    """Fuzz in this process, which libFuzzer ends."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    with atheris.instrument_imports(include=["tilewright"]):
        fuzzer = importlib.import_module(FUZZERS[name])
    corpus = folder / "corpus"
    if not any(corpus.iterdir()):
        for data in fuzzer.corpus():
            (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    fuzzer.target(b"")  # compiles what the others need, which may take longer than one of them is allowed to
    tried: Counter[Any] = Counter()
    started = time.monotonic()

    def one(data: bytes) -> None:
        try:
            tried.update(fuzzer.target(data))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            tried["findings", "all"] += 1
            keep(folder / "findings", data, error)
        if time.monotonic() - started > seconds - 1:
            started_again = {f"{kind} {outcome}": n for (kind, outcome), n in tried.items()}
            print("tried", json.dumps(started_again), flush=True)
            tried.clear()

    def change(data: bytes, largest: int, seed: int) -> bytes:
        try:
            changed: bytes = fuzzer.mutated(data, Random(seed))
        except RecursionError:  # it was nested deeper and deeper
            return data[:largest]
        return changed if len(changed) <= largest else data[:largest]

    options = [f"-max_total_time={seconds:g}", f"-seed={seed}", "-timeout=120", "-rss_limit_mb=3000", "-max_len=100000",
               "-len_control=0", f"-artifact_prefix={folder}/findings/"]  # fmt: skip
    atheris.Setup(["fuzz", str(corpus), *options], one, custom_mutator=change)
    atheris.Fuzz()


def keep(folder: Path, data: bytes, error: BaseException) -> None:
    """Write what was found, unless the same was before: an error of its class that began at the same place."""
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    frames = [f for f in traceback.extract_tb(first.__traceback__) if "/tilewright/" in f.filename]
    place = f"{Path(frames[-1].filename).stem}-{frames[-1].name}-{frames[-1].lineno}" if frames else "outside"
    path = folder / f"{type(first).__name__}-{place}"
    if not path.exists():
        path.write_bytes(data)
        path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)))
        print(f"found {path.name}", flush=True)


if __name__ == "__main__":
    main()
