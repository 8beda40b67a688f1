"""Small encoder-decoders with a vocabulary, as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from tests.frontends.decoders.checkpoints import write_folder
from tests.frontends.decoders.encoded import cases
from tests.llm.vocabularies import byte_level

ROWS = 704
START, BEGIN, END = 0, 1, 2


def reading_folder(folder: Path, name: str = "t5", **fields: Any) -> Path:
    """The recorded case of that name, with more rows of a vocabulary that puts its control tokens around what is
    read."""
    case = cases()[name]
    shapes = {
        tensor: [ROWS if d == case["config"]["vocab_size"] else d for d in shape]
        for tensor, shape in case["tensors"].items()
    }
    told = {"vocab_size": ROWS, "decoder_start_token_id": START, "eos_token_id": END, "is_encoder_decoder": True}
    write_folder(folder, case["config"] | told | fields, shapes)
    found = Tokenizer.from_str(byte_level(digits=True).to_str())
    found.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>", special_tokens=[("<|im_start|>", BEGIN), ("<|im_end|>", END)]
    )
    found.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    return folder
