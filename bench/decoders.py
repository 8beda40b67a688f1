"""Language models beside llama.cpp: milliseconds of a prompt, and of a token behind a past.

    python -m bench.decoders MODEL.gguf [...] [--threads 1,2] [--prompts 128,512] [--pasts 16,128,512,1024] [--peer]
        [--weights int4]

Beside our times of tokens stand GB/s of all constants and of what caches hold, and these in percent of what as many
threads read from memory of the process meanwhile: all of the model is read for a token where embedding and head are
tied, as in most small ones. Weights are stored as in the file (or folder) unless `--weights` says otherwise.

`--peer` needs the package llama_cpp (its libraries may be elsewhere: LLAMA_CPP_LIB_PATH). The engines take turns in one
process; a prompt is the shortest of its rounds, a token the median of those behind one past. Tokens are random, as
times do not depend on them, and answers are not compared here (`tests/frontends/decoders` does).
"""

from __future__ import annotations

import argparse
import ctypes
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import tilewright
from tilewright.llm.decoder import CompiledDecoder
from tilewright.profiling.meters import Meter, read_meter
from tilewright.runtime.values.dtypes import numpy_dtype
from tilewright.target.host import host_target

CONTEXT = 2048
ROUNDS = 3
TOKENS = 24
"""Of a round, behind each past."""
LARGER_THAN_CACHES = 256 << 20


class Engine(Protocol):
    """A model of one engine, with what it has been fed."""

    def reset(self) -> None: ...

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        """The logits behind the tokens i32[n]."""


class Tilewright:
    """The file compiled for so many threads."""

    def __init__(self, path: Path, threads: int, weights: str | None = None) -> None:
        source = tilewright.DecoderSource(path, capacity=CONTEXT, weights=weights)
        self._decoder = CompiledDecoder(tilewright.compile(source, threads=threads))
        self.vocabulary = self._decoder.vocabulary

    def reset(self) -> None:
        self._decoder.rewind(0)

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        return self._decoder.feed(tokens)

    def bytes_of_token(self, past: int) -> int:
        """What a token behind so many others reads."""
        model = self._decoder.model
        grown = [state.info for state in model.states if state.counter]
        caches = sum(math.prod(map(int, info.shape)) * numpy_dtype(info.dtype).itemsize for info in grown)
        return memoryview(model.artifact.constants).nbytes + caches * past // CONTEXT


class Readers:
    """As many threads as a model has, which read memory."""

    def __init__(self, threads: int) -> None:
        self._meters: list[Meter] = [read_meter(host_target(), LARGER_THAN_CACHES) for _ in range(threads)]

    def rate(self) -> float:
        """GB/s of all."""
        with ThreadPoolExecutor(len(self._meters)) as pool:
            return sum(pool.map(lambda meter: meter.read(), self._meters))


class LlamaCpp:
    """libllama through the ctypes of its Python package; keys and values are float16, as by default."""

    def __init__(self, path: Path, threads: int) -> None:
        import llama_cpp.llama_cpp as library

        self._library: Any = library
        self._log = library.llama_log_callback(lambda level, text, user: None)
        library.llama_log_set(self._log, ctypes.c_void_p(0))
        library.llama_backend_init()
        self._model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
        wanted = library.llama_context_default_params()
        wanted.n_ctx = wanted.n_batch = CONTEXT
        wanted.n_threads = wanted.n_threads_batch = threads
        self._context = library.llama_init_from_model(self._model, wanted)
        self.vocabulary = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))

    def reset(self) -> None:
        self._library.llama_memory_clear(self._library.llama_get_memory(self._context), True)

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        given = (ctypes.c_int32 * len(tokens))(*tokens.tolist())
        failed = self._library.llama_decode(self._context, self._library.llama_batch_get_one(given, len(tokens)))
        if failed:
            raise RuntimeError(f"llama_decode gives {failed}")
        logits = self._library.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(ctypes.cast(logits, ctypes.POINTER(ctypes.c_float)), (self.vocabulary,))


def seconds_of_prompt(engine: Engine, tokens: np.ndarray) -> float:
    engine.reset()
    begin = time.perf_counter()
    engine.feed(tokens)
    return time.perf_counter() - begin


def seconds_of_tokens(engine: Engine, past: np.ndarray) -> list[float]:
    """Of tokens that follow one another behind a past, each the most likely one."""
    engine.reset()
    logits, found = engine.feed(past), []
    for _ in range(TOKENS):
        begin = time.perf_counter()
        logits = engine.feed(np.array([logits.argmax()], np.int32))
        found.append(time.perf_counter() - begin)
    return found


def measured(
    engines: dict[str, Engine], vocabulary: int, prompts: Sequence[int], pasts: Sequence[int], readers: Readers
) -> tuple[dict[tuple[str, str], float], float]:
    """Milliseconds by row ("prompt 512", "token at 128") and engine, and GB/s that are read, in turns."""
    rng = np.random.default_rng()
    rates: list[float] = []
    found: dict[tuple[str, str], float] = {}
    for n in prompts:
        tokens = rng.integers(0, vocabulary, n).astype(np.int32)
        rounds = [{name: seconds_of_prompt(e, tokens) for name, e in engines.items()} for _ in range(ROUNDS)]
        found |= {(f"prompt {n}", name): 1e3 * min(r[name] for r in rounds) for name in engines}
    for n in pasts:
        past = rng.integers(0, vocabulary, n).astype(np.int32)
        turns = []
        for _ in range(ROUNDS):
            turns.append({name: seconds_of_tokens(e, past) for name, e in engines.items()})
            rates.append(readers.rate())
        found |= {
            (f"token at {n}", name): 1e3 * float(np.median([s for t in turns for s in t[name]])) for name in engines
        }
    return found, float(np.median(rates)) if rates else 0.0


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="python -m bench.decoders", description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--threads", type=_numbers, default=[1])
    parser.add_argument("--prompts", type=_numbers, default=[128, 512])
    parser.add_argument("--pasts", type=_numbers, default=[16, 128, 512, 1024])
    parser.add_argument("--peer", action="store_true", help="beside llama.cpp")
    parser.add_argument("--weights", help="float32, bfloat16, int8 or int4")
    wanted = parser.parse_args()
    for path in wanted.models:
        for threads in wanted.threads:
            ours = Tilewright(path, threads, wanted.weights)
            engines: dict[str, Engine] = {"tilewright": ours}
            if wanted.peer:
                engines["llama.cpp"] = LlamaCpp(path, threads)
            found, read = measured(engines, ours.vocabulary, wanted.prompts, wanted.pasts, Readers(threads))
            print(f"{path.name}, {threads} threads, {read:.1f} GB/s read")
            for row in dict.fromkeys(row for row, _ in found):
                times = [found[row, name] for name in engines]
                ratio = f"  {times[0] / times[1]:.2f}" if len(times) > 1 else ""
                if row.startswith("token"):
                    rate = ours.bytes_of_token(int(row.split()[-1])) / times[0] / 1e6
                    ratio = f"  {rate:.1f} GB/s, {100 * rate / read:.0f} %{ratio}"
                print(f"  {row:>16}", *(f"{ms:9.2f} ms {name}" for ms, name in zip(times, engines, strict=True)), ratio)


if __name__ == "__main__":
    main()
