"""Several token sequences in one model, which are fed together."""

from tilewright.llm.sequences.compiled import CompiledSequences as CompiledSequences
from tilewright.llm.sequences.compiled import is_for_several as is_for_several
from tilewright.llm.sequences.decoder import SequenceDecoder as SequenceDecoder
from tilewright.llm.sequences.forked import ForkedSequences as ForkedSequences
from tilewright.llm.sequences.open import Handle as Handle
from tilewright.llm.sequences.open import Part as Part
from tilewright.llm.sequences.open import SequenceError as SequenceError
from tilewright.llm.sequences.open import Sequences as Sequences
