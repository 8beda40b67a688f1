"""The products of the source model, layer by layer: in which types each is computed, and why.

A layer is a node that multiplies and adds up: a product of matrices, a convolution, a recurrent network. Which node an
op came from is its place (`Loc`), which rewrites hand on; what several nodes became together names all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tilewright.accounts.kernels import Products
from tilewright.graph.quantised.integer_products import IntegerProducts
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import Loc
from tilewright.ir.notes import Outcome
from tilewright.ops.define import OPERATORS
from tilewright.ops.external import external_of
from tilewright.ops.quant import OF_NUMBERS, changes_type_alone, is_quantisation
from tilewright.ops.traits.derive import product_of, traits_of
from tilewright.ops.traits.facts import Product
from tilewright.runtime.report.records import ChannelCount, ProductForm, TypesOfLayer


@dataclass(frozen=True)
class SourceLayer:
    """A layer as the model says it: its number of output channels, and why it is one of integers or of floats."""

    loc: Loc
    channels: str
    source: str

    @property
    def name(self) -> str:
        return self.loc.node or self.loc.value or self.loc.op


@dataclass
class _Found:
    """What became of a layer: the products of each kernel that computes some of it."""

    kernels: dict[str, Products] = field(default_factory=dict)

    @property
    def forms(self) -> list[ProductForm]:
        return list(dict.fromkeys(form for products in self.kernels.values() for form in products))


def source_layers(module: Module) -> dict[Loc, SourceLayer]:
    """The layers of a graph as a front end gives it, by their places."""
    found: dict[Loc, SourceLayer] = {}
    for op in module.main.body.ops:
        product = product_of(op)
        if product is not None and op.loc not in found:
            found[op.loc] = SourceLayer(op.loc, _channels(op, product), _source(op, product))
    return found


def _channels(op: Op, product: Product) -> str:
    return str(op.results[0].tensor.shape[product.channel])


def _source(op: Op, product: Product) -> str:
    """What the model itself says of the types of a layer."""
    if OF_NUMBERS.of(op) is not None:
        return "the model multiplies integers"
    data, weights = (_is_quantised(op.operands[k]) for k in (product.data, product.weights))
    if data and weights:
        return ""
    if weights:
        return "the model has floats, and quantises the weights alone"
    return "the model has floats" + (", and weights that are not quantised" if data else "")


def _is_quantised(value: Value) -> bool:
    op = value.op
    while op is not None and not is_quantisation(op) and (traits_of(op).moves or changes_type_alone(op)):
        op = op.operands[0].op
    return op is not None and is_quantisation(op)


def layers_of_compiler(module: Module, compiler: str) -> tuple[TypesOfLayer, ...]:
    """What the report says of the layers of a part that the compiler of a plugin computes."""
    why = f"the compiler {compiler} computes it"
    return tuple(TypesOfLayer(each.name, each.loc.op, (), why, ()) for each in source_layers(module).values())


def layers_of_regions(module: Module, layers: Set[Loc]) -> list[tuple[Loc, ...]]:
    """Of each kernel-to-be of a fused graph, in order, the places of the nodes whose products it computes. A kernel of
    a plugin computes one node, which may be one of the `layers` of the model."""
    regions = [op for op in module.main.body.ops if op.name == "fused"]
    return [tuple(dict.fromkeys(_places(region, layers))) for region in regions]


def _places(region: Op, layers: Set[Loc]) -> Iterator[Loc]:
    for op in region.blocks[0].ops[:-1]:
        if external_of(op) is not None:
            yield from layers & {op.loc}
        elif _adds_products(op):
            yield from op.loc.sources


def _adds_products(op: Op) -> bool:
    operator = OPERATORS[op.name]
    if operator.kind == "irregular":
        return traits_of(op).sums_products
    compute = operator.compute([v.tensor for v in op.operands], op.attrs)
    return compute.combine == "add" and any(o.name == "mul" for o in compute.body.ops)


def layer_records(
    layers: Mapping[Loc, SourceLayer],
    regions: Sequence[tuple[Loc, ...]],
    kernels: Sequence[str],
    products: Mapping[str, Products],
    outcomes: Iterable[Outcome],
    plugins: Mapping[str, str],
) -> tuple[TypesOfLayer, ...]:
    """What the report says of each layer; `kernels` are those of the regions, and `plugins` names those that plugins
    bring. Layers that only rewrites made are left out where they name no node."""
    became: dict[Loc, _Found] = {loc: _Found() for loc in layers}
    for places, kernel in zip(regions, kernels, strict=True):
        for loc in places:
            became.setdefault(loc, _Found()).kernels[kernel] = products[kernel]
    known = [outcome for outcome in outcomes if outcome.stage == IntegerProducts.name]
    return tuple(
        _record(layers.get(loc, SourceLayer(loc, "", "")), found, known, plugins)
        for loc, found in became.items()
        if loc.node or loc.op
    )


def _record(
    layer: SourceLayer, found: _Found, outcomes: Sequence[Outcome], plugins: Mapping[str, str]
) -> TypesOfLayer:
    channels = _channels_by_form(layer.channels, found.kernels.values())
    counts = tuple(ChannelCount(form, count) for form, count in channels.items())
    outside = [plugins[kernel] for kernel in found.kernels if kernel in plugins]
    why = f"the kernel '{outside[0]}' of a plugin computes it" if outside else _why(layer, found, outcomes)
    return TypesOfLayer(layer.name, layer.loc.op, counts, why, tuple(found.kernels))


def _channels_by_form(channels: str, kernels: Iterable[Products]) -> dict[ProductForm, str]:
    """How many output channels have products in each form, in any of the kernels."""
    found: dict[ProductForm, str] = {}
    for products in kernels:
        for form, share in _shares(channels or "all", products).items():
            found[form] = max(found.get(form, share), share, key=lambda s: int(s) if s.isdigit() else -1)
    return found


def _shares(channels: str, products: Products) -> dict[ProductForm, str]:
    """How many channels a kernel computes in each form: where it has several, by their shares of its products."""
    if len(products) == 1:
        return dict.fromkeys(products, channels)
    if not channels.isdigit() or not all(count.is_const for count in products.values()):
        return dict.fromkeys(products, "some")
    total = sum(count.value for count in products.values())
    shares = {form: divmod(int(channels) * count.value, total) for form, count in products.items()}
    return {form: "some" if rest else str(whole) for form, (whole, rest) in shares.items()}


def _why(layer: SourceLayer, found: _Found, outcomes: Sequence[Outcome]) -> str:
    if not found.kernels:
        return "no kernel computes it: it is known when compiling, or became part of another layer"
    own = [o for o in outcomes if layer.loc in o.loc.sources]
    missed = dict.fromkeys(o.reason for o in own if not o.is_applied)
    applied = dict.fromkeys(o.reason for o in own if o.is_applied)
    is_whole = all(form.adds_integers and form.instruction for form in found.forms)
    reasons = [*applied, *([] if is_whole else missed)]
    if not reasons and any(form.adds_integers for form in found.forms):
        reasons = [layer.source or "the sums are of integers"]
    if not reasons:
        reasons = [layer.source or _general(outcomes)]
    return "; ".join(reasons)


def _general(outcomes: Sequence[Outcome]) -> str:
    """Why nothing is computed on integers."""
    of_all = [o.reason for o in outcomes if o.is_general and not o.is_applied]
    return of_all[0] if of_all else "with these options, sums of dequantised values are of floats"
