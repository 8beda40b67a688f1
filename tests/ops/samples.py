"""All samples of operators."""

from tests.ops import samples_basic as basic
from tests.ops import samples_nn as nn

FAMILIES = (
    basic.elementwise, basic.views, basic.reductions, nn.contractions, nn.grouped, nn.blocked, nn.pools, nn.indexing,
    nn.activations, nn.norms, nn.attentions,
)  # fmt: skip
"""Each gives the samples of one family."""
