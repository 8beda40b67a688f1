"""Speech: log-mel features by hand-made sums, WAVE files, and the tokens that transcriptions begin with."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer

from tests.llm.encoder_checkpoints import END, START, reading_folder
from tilewright import llm
from tilewright.cli.app import commands
from tilewright.llm.reading.speech import RATE, log_mel, wave_samples
from tilewright.runtime.errors import InputError, OptionError

LANGUAGES = ["<|de|>", "<|en|>", "<|transcribe|>", "<|translate|>"]


def tone(hertz: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)


def written(path: Path, samples: np.ndarray, *, rate: int = RATE, width: int = 2, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        numbers = np.round(samples * (2 ** (8 * width - 1) - 1)).astype(np.int64) + (128 if width == 1 else 0)
        file.writeframes(np.repeat(numbers, channels).astype({1: "u1", 2: "<i2", 4: "<i4"}[width]).tobytes())
    return path


def test_a_tone_is_in_its_band_and_silence_is_even() -> None:
    found = log_mel(tone(1000, 1.0), 80, 300)
    assert found.shape == (80, 300) and found.dtype == np.float32
    # corners are 200 / 3 Hz * 45.25 / 81 apart below 1,000 Hz
    assert abs(int(found[:, 50].argmax()) - (1000 / (200 / 3 * 45.2456 / 81) - 1)) < 1.5
    assert found.max() - found.min() == pytest.approx(2.0)
    assert (found[:, 150:] == found.min()).all()
    np.testing.assert_allclose(log_mel(np.zeros(0), 40, 10), (-10 + 4) / 4)


def test_features_are_those_of_transformers() -> None:
    """Recorded from WhisperFeatureExtractor 5.24, of this sum of tones."""
    found = log_mel(tone(440, 0.5) + tone(3000, 0.5) / 4, 80, 3000)
    for (band, frame), wanted in RECORDED.items():
        assert found[band, frame] == pytest.approx(wanted, abs=1e-4)


RECORDED = {
    (10, 20): 1.34874, (11, 0): 1.11075, (12, 30): 1.29352, (40, 10): -0.5618, (55, 25): 0.98943, (79, 5): -0.5618,
    (3, 51): 0.34431,
}  # fmt: skip


@pytest.mark.parametrize(("rate", "width", "channels"), [(16000, 2, 1), (16000, 1, 2), (48000, 4, 1), (8000, 2, 2)])
def test_wave_files_become_samples(tmp_path: Path, rate: int, width: int, channels: int) -> None:
    path = written(tmp_path / "t.wav", tone(500, 0.25, rate), rate=rate, width=width, channels=channels)
    found, wanted = wave_samples(path, RATE), tone(500, 0.25)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() < (0.02 if width == 1 else 1e-3)


def test_what_is_no_speech_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.wav").write_bytes(b"RIFF....")
    (tmp_path / "short.wav").write_bytes(b"")
    for path in (tmp_path / "t.wav", tmp_path / "none.wav", tmp_path / "short.wav"):
        with pytest.raises(InputError, match=r"the speech cannot be read: [a-z[]"):
            wave_samples(path, RATE)
    with pytest.raises(InputError, match=r"0\.1 s of speech are more than the 0\.05 s"):
        log_mel(np.zeros(1600), 80, 5)
    for wrong in (np.zeros((2, 3)), np.zeros(3, np.int16), np.array([np.nan]), np.array([1e200]), np.array([-32768.0])):
        with pytest.raises(InputError, match="speech is a list of finite samples"):
            log_mel(wrong, 80, 5)
    assert not wave_samples(written(tmp_path / "empty.wav", np.zeros(0), rate=8000), RATE).size


def test_headers_of_files_do_not_decide_how_much_memory_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "t.wav"
    for rate in (1, 8000, 16000, 44100):
        most = max(2 * rate, 1)
        assert wave_samples(written(path, np.zeros(most), rate=rate), 2 * RATE).size == 2 * RATE
        with pytest.raises(InputError, match="the speech is longer than the 2 s that are read at once"):
            wave_samples(written(path, np.zeros(most + 1), rate=rate), 2 * RATE)
    for told, said in (({"rate": 2**30}, "1073741824 Hz"), ({"channels": 1000}, "in 1000 channels")):
        with pytest.raises(InputError, match=f"samples of 16 bits .*{said}"):
            wave_samples(written(path, np.zeros(4), **told), RATE)
    whole = bytearray(written(path, tone(500, 0.1)).read_bytes())
    whole[4:8] = whole[40:44] = b"\xff" * 4  # as programs write it that do not know the end
    path.write_bytes(whole)
    assert wave_samples(path, RATE).size == RATE // 10
    whole[20:22] = b"\3\0"  # floats
    path.write_bytes(whole)
    with pytest.raises(InputError, match=r"unknown format: 3(.*\n)+.*of integers of 16 bits"):
        wave_samples(path, RATE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = reading_folder(tmp_path_factory.mktemp("models") / "whisper", "whisper")
    tokenizer = Tokenizer.from_file(str(found / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in LANGUAGES])
    tokenizer.save(str(found / "tokenizer.json"))
    return found


@pytest.fixture(scope="module")
def model(folder: Path) -> llm.LanguageModel:
    return llm.load(folder, threads=1, cache=False)


def test_transcriptions_begin_with_language_and_task(model: llm.LanguageModel) -> None:
    speech = tone(700, 0.3)
    read = log_mel(speech, 12, 40)
    how: dict[str, Any] = {"max_tokens": 8, "ends": False}
    wanted = model.answer(read, begins="<|en|><|translate|>", **how)  # type: ignore[arg-type]
    assert model.transcribe(speech, language="en", task="translate", **how) == wanted.text
    names = {name: model.tokenizer.segmenter.encode(name, control=True, first=True)[0] for name in LANGUAGES}
    decoder = model._borrowed(read)
    first = decoder.feed([START])
    heard = max(("<|de|>", "<|en|>"), key=lambda name: float(first[names[name]]))
    wanted = model.answer(read, begins=f"{heard}<|transcribe|>", **how)  # type: ignore[arg-type]
    assert model.transcribe(speech, **how) == wanted.text
    with pytest.raises(InputError, match="the model does not know the language 'fr'"):
        model.transcribe(speech, language="fr")
    with pytest.raises(InputError, match="task='sing' is not allowed"):
        model.transcribe(speech, task="sing")


def test_a_model_of_one_language_takes_none(tmp_path: Path) -> None:
    model = llm.load(reading_folder(tmp_path / "m", "whisper"), threads=1, cache=False)
    read = log_mel(tone(700, 0.2), 12, 40)
    wanted = model.answer(read, max_tokens=5, ends=False).text  # type: ignore[arg-type]
    assert model.transcribe(tone(700, 0.2), max_tokens=5, ends=False) == wanted
    with pytest.raises(InputError, match="the model knows one language"):
        model.transcribe(tone(700, 0.2), language="en")


def test_the_command_and_models_that_read_no_speech(folder: Path, model: llm.LanguageModel, tmp_path: Path) -> None:
    path = written(tmp_path / "t.wav", tone(700, 0.3))
    arguments = ["generate", str(folder), "--audio", str(path), "--max-tokens", "5", "--threads", "1", "--no-cache"]
    result = CliRunner().invoke(commands, [*arguments, "--language", "en"])
    assert result.exit_code == 0, result.output
    assert result.stdout.rstrip("\n") == model.transcribe(path, language="en", max_tokens=5).rstrip("\n")
    assert CliRunner().invoke(commands, [*arguments, "--prompt", "x"]).exit_code == 2
    assert CliRunner().invoke(commands, ["generate", str(folder), "--language", "en"]).exit_code == 2
    reader = llm.load(reading_folder(tmp_path / "m"), threads=1, cache=False)
    with pytest.raises(OptionError, match="the model reads no speech"):
        reader.transcribe(path)
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == END
