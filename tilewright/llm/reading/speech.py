"""Speech for an encoder: samples of a WAVE file, and their log-mel features as Whisper has them."""

from __future__ import annotations

import wave
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.errors import InputError

RATE = 16_000
"""Samples of a second."""
WINDOW, STEP = 400, 160
"""Samples that a spectrum is computed of, and from one to the next."""
_LOUDEST = 8.0
"""Another rate may bring samples somewhat beyond 1; integers that were not divided are far beyond."""
_MOST_RATE, _MOST_CHANNELS = 768_000, 64
"""Of a file: of more it is no recording."""
_WIDTHS: dict[int, np.dtype[Any]] = {1: np.dtype(np.uint8), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


def log_mel(samples: np.ndarray, mels: int, frames: int) -> np.ndarray:
    """f32[mels, frames] of samples [n] between -1 and 1 at `RATE`, with silence behind them: for each 10 ms the
    logarithms of the energies of `mels` bands, of which all below a hundred-millionth of the greatest count as that,
    moved to about -1 to 1. InputError for more than there are frames for, and for what are no samples."""
    samples = np.asarray(samples)
    if samples.ndim != 1 or samples.dtype.kind != "f" or not np.abs(samples).max(initial=0) <= _LOUDEST:
        raise InputError(
            f"speech is a list of finite samples between -1 and 1, not {samples.dtype}{list(samples.shape)}",
            hint="mix channels to one, and divide integers by their range",
        )
    if samples.size > frames * STEP:
        seconds, most = samples.size / RATE, frames * STEP / RATE
        raise InputError(f"{seconds:.1f} s of speech are more than the {most:g} s that are read at once",
                         hint="cut it where nobody speaks, and read the parts")  # fmt: skip
    whole = np.zeros(frames * STEP)
    whole[: samples.size] = samples
    padded = np.pad(whole, WINDOW // 2, mode="reflect")
    cut = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::STEP][:frames]
    turning = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(cut * turning, axis=1)) ** 2
    logs = np.log10(np.maximum(power @ _bands(mels), 1e-10))
    found: np.ndarray = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return found.T.astype(np.float32)


@cache
def _bands(mels: int) -> np.ndarray:
    """f64[WINDOW / 2 + 1, mels]: the share of each frequency in triangles whose corners are equally far apart on
    Slaney's mel scale (linear up to 1,000 Hz, logarithmic above), each of the area that its width makes 1."""
    step = np.log(6.4) / 27
    top = 15 + np.log(RATE / 2 / 1000) / step
    places = np.linspace(0, top, mels + 2)
    corners = np.where(places < 15, places * 200 / 3, 1000 * np.exp(step * (places - 15)))
    frequencies = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    found: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return found


def wave_samples(path: Path, most: int) -> np.ndarray:
    """f64[n] of a WAVE file of integers, its channels mixed, at `RATE`. InputError for other files, and for one that
    gives more than `most` samples, of which no more are read."""
    try:
        with wave.open(str(path), "rb") as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            if width not in _WIDTHS or not 1 <= rate <= _MOST_RATE or channels > _MOST_CHANNELS:
                what = f"samples of {8 * width} bits at {rate} Hz in {channels} channels are not read"
                raise InputError(what, where=str(path), hint="write it with 16 bits at 16,000 Hz")
            room = most * rate // RATE
            data = file.readframes(min(file.getnframes(), room + 1))
    except (OSError, EOFError, wave.Error) as error:
        what = f"the speech cannot be read: {str(error) or 'it ends too soon'}"
        raise InputError(what, where=str(path), hint="give a WAVE file (.wav) of integers of 16 bits") from None
    if len(data) > room * width * channels:
        raise InputError(f"the speech is longer than the {most / RATE:g} s that are read at once", where=str(path),
                         hint="cut it where nobody speaks, and read the parts")  # fmt: skip
    numbers = np.frombuffer(data[: len(data) // (width * channels) * (width * channels)], _WIDTHS[width])
    mixed = numbers.reshape(-1, channels).mean(axis=1)
    scaled = (mixed - 128) / 128 if width == 1 else mixed / float(1 << (8 * width - 1))
    return scaled if rate == RATE else _at_rate(scaled, rate)


def _at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    """The same at `RATE`: frequencies that both rates have stay, others are cut off."""
    if not samples.size:
        return samples
    size = max(1, round(samples.size * RATE / rate))
    spectrum = np.fft.rfft(samples)
    found: np.ndarray = np.fft.irfft(spectrum[: size // 2 + 1], size) * (size / samples.size)
    return found
