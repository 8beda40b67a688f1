"""All samples of operators."""

from tests.ops import samples_basic as basic
from tests.ops import samples_external as external
from tests.ops import samples_fixed as fixed
from tests.ops import samples_image as image
from tests.ops import samples_matrices as matrices
from tests.ops import samples_models as models
from tests.ops import samples_nn as nn
from tests.ops import samples_random as random
from tests.ops import samples_series as series

FAMILIES = (
    basic.elementwise, basic.views, basic.reductions, nn.contractions, nn.grouped, nn.blocked, nn.pools,
    nn.indexing, nn.activations, nn.norms, matrices.matrices, nn.attentions, image.images, image.winograd,
    image.overlaps, series.copies, series.totals, series.running_extrema, series.state_spaces,
    series.places_among_bounds,
    series.polynomials, series.iterated, matrices.factors, matrices.eigen, series.orders, series.chosen,
    series.quantised, series.recurrent, random.randoms, models.models, fixed.fixed,
    external.external,
)  # fmt: skip
"""Each gives the samples of one family."""
