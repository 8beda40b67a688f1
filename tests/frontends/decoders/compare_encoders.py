"""Compares random encoder-decoders with transformers in float64, where it is installed:

python -m tests.frontends.decoders.compare_encoders --count 50 [--seed N]

Configs are drawn at random, weights follow from names; what is read and written has random lengths, in random pieces.
"""

from __future__ import annotations

import argparse
import json
import secrets
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.frontends.decoders.checkpoints import write_folder
from tilewright.frontends.decoders.load import load_decoder
from tilewright.frontends.decoders.source import DecoderSource
from tilewright.ops.define.interp import evaluate_func

KINDS = ("T5", "MT5", "UMT5", "Bart", "MBart", "Marian", "Pegasus", "M2M100", "Whisper")
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish")


def drawn(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    """The fields of a random config."""

    def count(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    vocabulary, heads, size = count(8, 70), count(1, 4), count(1, 9)
    if kind.endswith("T5"):
        forms = ("relu", "gelu", "gated-gelu", "gated-silu", "gated-relu")
        buckets = count(4, 40)
        return {
            "vocab_size": vocabulary, "d_model": count(2, 40), "d_kv": size, "d_ff": count(1, 50), "num_heads": heads,
            "num_layers": count(1, 3), "num_decoder_layers": count(1, 3), "feed_forward_proj": str(rng.choice(forms)),
            "relative_attention_num_buckets": buckets, "relative_attention_max_distance": buckets // 2 + count(1, 130),
            "tie_word_embeddings": bool(rng.integers(2)), "decoder_start_token_id": 0,
        }  # fmt: skip
    other = int(rng.choice([h for h in range(1, heads * 2 * size + 1) if (heads * 2 * size) % h == 0]))
    return {
        "vocab_size": vocabulary, "d_model": heads * 2 * size, "encoder_attention_heads": heads,
        "decoder_attention_heads": other, "encoder_layers": count(1, 3), "decoder_layers": count(1, 3),
        "encoder_ffn_dim": count(1, 50), "decoder_ffn_dim": count(1, 50), "max_position_embeddings": count(24, 40),
        "max_target_positions": count(24, 40), "max_source_positions": count(1, 30), "num_mel_bins": count(1, 20),
        "scale_embedding": bool(rng.integers(2)), "activation_function": str(rng.choice(ACTIVATIONS)),
        "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }  # fmt: skip


def difference(kind: str, fields: dict[str, Any], rng: np.random.Generator) -> float:
    """The greatest one of the logits, over the greatest logit."""
    import torch
    import transformers
    from safetensors import safe_open

    made = getattr(transformers, f"{kind}MTModel", None) or getattr(transformers, f"{kind}ForConditionalGeneration")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        made(getattr(transformers, f"{kind}Config")(**fields)).save_pretrained(path)
        said = json.loads((path / "config.json").read_text())
        with safe_open(path / "model.safetensors", "pt") as file:
            shapes = {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
        write_folder(path, said, shapes)
        model = made.from_pretrained(path, attn_implementation="eager").double().eval()
        written = rng.integers(3, fields["vocab_size"], rng.integers(1, 20))
        is_speech = kind == "Whisper"
        if is_speech:
            shape = (1, said["num_mel_bins"], 2 * said["max_source_positions"])
            given = rng.standard_normal(shape).astype(np.float32)
        else:
            given = rng.integers(3, fields["vocab_size"], (1, rng.integers(1, 24)))
        with torch.no_grad():
            read = torch.tensor(given).double() if is_speech else torch.tensor(given)
            name = "input_features" if is_speech else "input_ids"
            ids = torch.tensor(written[None])
            wanted = model(**{name: read}, decoder_input_ids=ids, use_cache=False).logits[0].numpy()
        module = load_decoder(DecoderSource(path, logits="all", capacity=20))
    kept = [np.zeros([d.value for d in arg.tensor.shape], arg.tensor.dtype.storage) for arg in module.main.args[2:]]
    found = []
    cuts = sorted(rng.integers(1, len(written), rng.integers(0, 4))) if len(written) > 1 else []
    for part in np.split(written, sorted(set(cuts))):
        logits, *kept = evaluate_func(module.main, module, [part[None], given, *kept])
        given = given[..., :0]
        found.append(logits[0])
    return float(np.abs(np.concatenate(found) - wanted).max() / max(np.abs(wanted).max(), 1e-9))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbits(30))
    given = parser.parse_args()
    print(f"seeds {given.seed} to {given.seed + given.count - 1}")
    worst = 0.0
    for seed in range(given.seed, given.seed + given.count):
        rng = np.random.default_rng(seed)
        kind = str(rng.choice(KINDS))
        fields = drawn(rng, kind)
        try:
            found = difference(kind, fields, rng)
        except Exception as error:
            print(f"seed {seed}: {kind} {fields}: {type(error).__name__}: {error}")
            continue
        worst = max(worst, found)
        if not found < 2e-5:
            print(f"seed {seed}: {kind} {fields}: off by {found:g}")
    print(f"the greatest difference: {worst:g}")


if __name__ == "__main__":
    main()
