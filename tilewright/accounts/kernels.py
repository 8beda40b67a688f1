"""What each kernel of a program reads, multiplies, computes and stores, by types: counted from its loops, and by the
instructions that its code has for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tilewright.codegen.program import KernelText
from tilewright.ir.core import Func, Module, substitute
from tilewright.ir.sym import Sym, sym
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lanes.vectorizable import segments
from tilewright.loops.products import AddedProduct, added_products, types_of
from tilewright.runtime.report.records import ProductCount, ProductForm, TypesOfKernel
from tilewright.target.machine import Machine
from tilewright.target.target import Target

FMA_DTYPES = frozenset({"f32", "f64"})
"""Of which machines have fused multiply-adds."""


Products = dict[ProductForm, Sym]
"""How many products a call computes in each form."""


def products_of_kernels(
    module: Module, texts: Mapping[str, KernelText], machine: Machine
) -> dict[str, Products]:
    """The products of each kernel of a program, by its name."""
    return {
        func.name: _products(func, texts[func.name], machine)
        for func in module.funcs.values()
        if func.level == "loops"
    }


def _products(func: Func, text: KernelText, machine: Machine) -> Products:
    found: Products = {}
    is_external = bool(kernel_info(func).external)
    for product in added_products(func):
        for instruction, share, of in _instructions(product, text, machine, is_external):
            form = ProductForm(str(product.left), str(product.right), str(product.dtype), instruction)
            found[form] = found.get(form, sym(0)) + product.count * share // of
    return found


def _instructions(
    product: AddedProduct, text: KernelText, machine: Machine, is_external: bool
) -> Iterator[tuple[str, int, int]]:
    """What multiplies, "" where nothing is known of it, for how many of how many lanes."""
    if is_external:
        yield "", 1, 1
    elif product.intrinsic:
        yield product.intrinsic, 1, 1
    elif product.dot is not None:
        by_name: Counter[str] = Counter()
        for _, lanes in segments(product.lanes):
            by_name[text.dots.get((product.dot, lanes), "")] += lanes
        yield from ((name, lanes, product.lanes) for name, lanes in by_name.items())
    else:
        fuses = isinstance(machine, Target) and machine.has_fma and product.dtype.name in FMA_DTYPES
        yield ("fused multiply-adds" if fuses else ""), 1, 1


def kernel_records(module: Module, products: Mapping[str, Products]) -> tuple[TypesOfKernel, ...]:
    """What the report says of each kernel, those that calls need first; products are those of all of its calls."""
    calls = [op for op in module.main.body.ops if op.name == "call"]
    often = Counter(op.attrs["kernel"] for op in calls)
    totals = _totals(module, products)
    return tuple(_record(module.funcs[name], count, totals[name]) for name, count in often.items())


def _record(func: Func, calls: int, products: Products) -> TypesOfKernel:
    types = types_of(func)
    computes = (*map(str, types.computes), *(["lookups"] if types.looks_up else []))
    reads, stores = (tuple(map(str, found)) for found in (types.reads, types.stores))
    return TypesOfKernel(func.name, calls, reads, _counts(products), computes, stores)


def products_of_program(module: Module, products: Mapping[str, Products]) -> tuple[ProductCount, ...]:
    """How many products a call of the program computes in each form, the most first where that is known."""
    found: Products = {}
    for of_kernel in _totals(module, products).values():
        for form, count in of_kernel.items():
            found[form] = found.get(form, sym(0)) + count
    ordered = sorted(found.items(), key=lambda item: -item[1].value if item[1].is_const else 0)
    return _counts(dict(ordered))


def _totals(module: Module, products: Mapping[str, Products]) -> dict[str, Products]:
    """The products of all calls of each kernel, over the dims of the program."""
    found: dict[str, Products] = {}
    for call in (op for op in module.main.body.ops if op.name == "call"):
        kernel = module.funcs[call.attrs["kernel"]]
        dims = dict(zip(kernel.dims, call.attrs["dims"], strict=True))
        total = found.setdefault(kernel.name, {})
        for form, count in products[kernel.name].items():
            total[form] = total.get(form, sym(0)) + substitute(count, dims)
    return found


def _counts(products: Products) -> tuple[ProductCount, ...]:
    return tuple(ProductCount(form, str(count)) for form, count in products.items())
