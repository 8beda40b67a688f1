"""Architectures of timm and transformers with random weights, as PyTorch exports them: listed ones, and drawn ones.

Where these packages (the extras of nobody: install them beside) are missing, networks are drawn in their place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import random
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.cliffs.sizes import between

MOST_PARAMETERS = 40e6
OPSET = 17
TEXTS = (
    "albert", "bert", "bloom", "camembert", "codegen", "deberta-v2", "distilbert", "electra", "ernie", "falcon",
    "gemma", "gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "megatron-bert", "mistral", "modernbert", "mpnet",
    "mpt", "nezha", "olmo", "opt", "phi", "qwen2", "rembert", "roberta", "roformer", "squeezebert", "stablelm",
    "xlm-roberta",
)  # fmt: skip
"""Types of configurations of which `AutoModel` makes a model that takes token ids."""

USUAL = {
    "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "num_hidden_layers": 3,
    "encoder_layers": 2, "decoder_layers": 2, "intermediate_size": 3072, "vocab_size": 4000, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False,
    "use_pretrained_backbone": False,
}  # fmt: skip
"""Fields of configurations of listed models: the usual width, and few layers, which are all alike."""
TOKENS, SAMPLES, EDGE = 128, 16000, 224
LEAST_ID, MOST_ID = 3, 999
SETTLING_BATCH = 8
"""Images, among them those of the case, of which batch normalisations get their statistics: of two, a norm behind a
pool divides by the difference of two values, and rounding errors become as large as the result."""

NEAR_ZERO, AWAKE = 1e-3, 0.1
"""Parameters that training begins near zero (scales of layers, classifiers, biases of attention) hide what stands
before them from every comparison; they get the second deviation."""


@dataclass(frozen=True)
class Architecture:
    """A model of timm or a type of configurations of transformers, with arguments or fields that are not the
    defaults, and a batch."""

    package: str
    name: str
    batch: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = "".join(f"_{key}{value}" for key, value in self.options.items())
        suffix = f"_{zlib.crc32(given.encode()):08x}" if given else ""
        return f"{self.package}_{self.name}{suffix}_b{self.batch}"


def installed() -> tuple[str, ...]:
    """Those of the two packages that can be exported here."""
    if not all(map(importlib.util.find_spec, ("torch", "onnxscript"))):
        return ()
    return tuple(name for name in ("timm", "transformers") if importlib.util.find_spec(name))


def export(package: str, rng: random.Random, path: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Write an architecture that is drawn to a file: its name, and inputs. ValueError says why one cannot be made or
    exported."""
    with _as_value_errors(package):
        torch = importlib.import_module("torch")
        torch.manual_seed(rng.getrandbits(32))
        make = _drawn_of_timm if package == "timm" else _drawn_of_transformers
        name, model, inputs = make(rng, torch)
        if sum(p.numel() for p in model.parameters()) > MOST_PARAMETERS:
            raise ValueError(f"{name} is too large")
        _by_export(torch, model, inputs, path)
    return name, _arrays(inputs)


def export_listed(architecture: Architecture, path: Path) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """Write an architecture to a file: its inputs, of the sizes that it was made for, and what PyTorch computes of
    them in float64. Weights and inputs are those of its name. ValueError says why it cannot be made or exported."""
    with _as_value_errors(architecture.name):
        torch = importlib.import_module("torch")
        torch.manual_seed(zlib.crc32(architecture.name.encode()))
        make = _listed_of_timm if architecture.package == "timm" else _listed_of_transformers
        model, inputs = make(architecture, torch)
        try:  # takes a quarter of the time
            _by_trace(torch, model, inputs, path)
        except Exception:  # whatever it raises
            _by_export(torch, model, inputs, path)
        return _arrays(inputs), [_exact(torch, model, inputs)]


@contextlib.contextmanager
def _as_value_errors(name: str) -> Any:
    """Whatever an architecture or the exporter raises, and without what they print."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{name}: {type(error).__name__}: {str(error)[:200]}") from error


def _by_export(torch: Any, model: Any, inputs: Mapping[str, Any], path: Path) -> None:
    with torch.no_grad():
        torch.onnx.export(
            model.eval(), tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=True, verbose=False,
            external_data=False,
        )  # fmt: skip


def _by_trace(torch: Any, model: Any, inputs: Mapping[str, Any], path: Path) -> None:
    with torch.no_grad():
        torch.onnx.export(
            model.eval(), tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=False,
            opset_version=OPSET,
        )  # fmt: skip


def _exact(torch: Any, model: Any, inputs: Mapping[str, Any]) -> np.ndarray:
    """The result in float64. The parameters of the model become so."""
    wide = [value.double() if value.is_floating_point() else value for value in inputs.values()]
    with torch.no_grad():
        result: np.ndarray = model.eval().double()(*wide).numpy()
    return result


def _arrays(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {key: value.numpy() for key, value in inputs.items()}


def _drawn_of_timm(rng: random.Random, torch: Any) -> tuple[str, Any, dict[str, Any]]:
    timm = importlib.import_module("timm")
    name = rng.choice(timm.list_models())
    size = 32 * rng.randint(2, 8)
    try:
        model = timm.create_model(name, img_size=size)
    except TypeError:  # of no fixed size
        model = timm.create_model(name)
    batch = rng.choice((1, 1, 1, 8))
    return name, model, {"x": torch.randn(batch, 3, size, size)}


def _listed_of_timm(architecture: Architecture, torch: Any) -> tuple[Any, dict[str, Any]]:
    timm = importlib.import_module("timm")
    blueprint = importlib.import_module("bench.zoo.blueprint")
    model = timm.create_model(architecture.name, **architecture.options)
    _wake(torch, model)
    images = torch.randn(max(SETTLING_BATCH, architecture.batch), *model.default_cfg["input_size"])
    blueprint.settle_batch_norms(model, images)
    return model, {"x": images[: architecture.batch]}


def _wake(torch: Any, model: Any) -> None:
    """Give parameters that are near zero a deviation, except the biases of layers, which hide nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith("bias") and float(parameter.detach().abs().max()) < NEAR_ZERO:
                parameter.normal_(0.0, AWAKE)


def _drawn_of_transformers(rng: random.Random, torch: Any) -> tuple[str, Any, dict[str, Any]]:
    transformers = importlib.import_module("transformers")
    kind, heads = rng.choice(TEXTS), rng.choice((2, 4, 6, 8))
    features = heads * rng.choice((16, 32, 64))
    config = transformers.AutoConfig.for_model(kind)
    wanted = {
        "hidden_size": features, "num_attention_heads": heads, "num_key_value_heads": heads, "num_hidden_layers": 2,
        "embedding_size": features, "intermediate_size": 4 * features, "vocab_size": 1000, "use_cache": False,
    }  # fmt: skip
    for name, value in wanted.items():
        if hasattr(config, name):
            setattr(config, name, value)
    model = transformers.AutoModel.from_config(config)
    ids = torch.randint(LEAST_ID, MOST_ID, (rng.choice((1, 1, 4)), between(rng, 8, 300)))
    return kind, _first_result(torch, model, ("input_ids",)), {"ids": ids}


def _listed_of_transformers(architecture: Architecture, torch: Any) -> tuple[Any, dict[str, Any]]:
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(architecture.name, **architecture.options)
    for name, value in USUAL.items():
        if hasattr(config, name) and name not in architecture.options:
            setattr(config, name, value)
    model = transformers.AutoModel.from_config(config)
    names = [model.main_input_name]
    if "decoder_input_ids" in inspect.signature(model.forward).parameters:
        names.append("decoder_input_ids")
    inputs = {name: _input(torch, name, config, architecture.batch) for name in names}
    return _first_result(torch, model, names), inputs


def _input(torch: Any, name: str, config: Any, batch: int) -> Any:
    """What a model takes under the names of inputs that transformers has: texts, images, spectra and waves."""
    if name == "pixel_values":
        edges = getattr(config, "image_size", None) or EDGE
        height, width = (edges, edges) if isinstance(edges, int) else edges
        return torch.randn(batch, 3, height, width)
    if name == "input_features":
        return torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)
    if name == "input_values":
        return torch.randn(batch, SAMPLES)
    return torch.randint(LEAST_ID, MOST_ID, (batch, TOKENS))


def _first_result(torch: Any, model: Any, names: Any) -> Any:
    """The model with its first result alone, of arguments by position: exporters do not take the classes of
    results."""

    class First(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            return self.model(**dict(zip(names, values, strict=True)))[0]

    return First()
