"""How byte-level vocabularies cut a text into words before they look for pairs, by the names that GGUF files have for
it (`tokenizer.ggml.pre`). The expressions are those with which the vocabularies were trained, as their `tokenizer.json`
files have them; merges reach over no cut, so that a wrong one gives other tokens than the model has learned.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.errors import short_name

_SHORT_FORMS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"


def _tiktoken(digits: str) -> str:
    """Words with one sign before them, numbers of so many digits, signs with the ends of lines behind them."""
    return rf"{_SHORT_FORMS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _by_case(digits: str, short_forms: str = "") -> str:
    """As `_tiktoken`, but a word ends where capital letters follow small ones."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{short_forms}|{before}{_UPPER}+{_LOWER}*{short_forms}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


_SIGNS_AND_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _SPACES
)
_IDEOGRAMS = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"


@dataclass(frozen=True)
class Splits:
    """Expressions, each of which cuts out its matches from what the ones before left. `ignore_merges`: a word that is a
    token itself is taken as it is. `begins`: a text begins with the begin token unless the file says otherwise."""

    expressions: tuple[str, ...]
    ignore_merges: bool = False
    begins: bool = False


_LLAMA3 = Splits((_tiktoken(r"\p{N}{1,3}"),), ignore_merges=True, begins=True)
_QWEN2 = Splits((_tiktoken(_DIGIT),))
_DIGITS = Splits((_DIGIT, _GPT2))
_PLAIN = Splits((_GPT2,))
_DEEPSEEK3 = Splits((r"\p{N}{1,3}", _IDEOGRAMS, _SIGNS_AND_WORDS))
_GPT4O = Splits((_by_case(r"\p{N}{1,3}", f"{_SHORT_FORMS}?"),))
_LISTED: tuple[tuple[str, Splits], ...] = (
    (
        "gpt-2 phi-2 mpt olmo jais jina-es jina-de gigachat exaone4 a.x-4.0 mellum trillion granite-docling",
        _PLAIN,
    ),
    ("modern-bert jina-v1-en jina-v2-code jina-v2-es jina-v2-de roberta-bpe", _PLAIN),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b", _DIGITS),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", _LLAMA3),
    ("dbrx smaug-bpe glm4 chatglm-bpe", Splits(_LLAMA3.expressions)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan grok-2", _QWEN2),
    ("tekken", Splits((_by_case(_DIGIT),), ignore_merges=True, begins=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", _GPT4O),
    ("deepseek-v3 hunyuan-dense", _DEEPSEEK3),
    (
        "falcon",
        Splits((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")),
    ),
    (
        "default",
        Splits((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
)
KNOWN = {name: splits for names, splits in _LISTED for name in names.split()}


def splits_named(name: str) -> Splits:
    """UnsupportedError for a name that is not known, with the nearest one that is."""
    found = KNOWN.get(name)
    if found is None:
        close = difflib.get_close_matches(name, KNOWN, 1)
        raise UnsupportedError(
            f"the vocabulary cuts text into words in a way that is not known: tokenizer.ggml.pre is "
            f"'{short_name(name, 80)}'",
            hint=(f"the nearest that is known is '{close[0]}'; " if close else "")
            + "a folder of the same model with its tokenizer.json needs no such name",
        )
    return found
