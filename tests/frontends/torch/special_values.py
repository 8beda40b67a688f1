"""Functions of PyTorch's, to be given NaN, infinities, signed zeros and the ends of ranges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Table = dict[str, Callable[..., Any]]


def words(text: str) -> list[str]:
    return text.split()


_NAMES = words(
    "abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 "
    "floor frac isfinite isinf isnan isneginf isposinf lgamma log log10 log1p log2 logical_not logit "
    "nan_to_num neg rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc sinh sqrt "
    "square tan tanh trunc"
)

UNARY: Table = {name: getattr(torch, name) for name in _NAMES} | {
    name: getattr(F, name)
    for name in words(
        "celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu "
        "softplus softshrink softsign tanhshrink"
    )
}
UNARY |= {
    name: getattr(torch.special, name)
    for name in words("entr erfcx expit i0e i1e log_ndtr ndtri ndtr bessel_j0 bessel_y0 modified_bessel_k0")
}
UNARY |= {
    "nan_to_num with numbers": lambda x: torch.nan_to_num(x, 1.0, 2.0, -3.0),
    "round to 1 decimal": lambda x: torch.round(x, decimals=1),
    "clamp": lambda x: torch.clamp(x, -1, 2),
    "clamp, nan": lambda x: torch.clamp(x, float("nan"), 2),
    "clamp, crossed": lambda x: torch.clamp(x, 2, -1),
    "threshold": lambda x: F.threshold(x, 0.5, 7),
    "where": lambda x: torch.where(x > 0, x, -x),
    "frexp": lambda x: torch.frexp(x.float()),
    "heaviside of itself": lambda x: torch.heaviside(x, x),
}
UNARY |= {
    f"{name} {number}": lambda x, op=op, number=number: op(x, number)
    for name, op in {
        "floor_divide": torch.floor_divide,
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "pow": torch.pow,
        "true_divide": torch.true_divide,
        "rfloor_divide": lambda x, n: n // x,
        "rremainder": lambda x, n: n % x,
        "rpow": lambda x, n: n**x,
    }.items()
    for number in (2.0, 0.5, -1.5, 0.0, float("inf"), -float("inf"), float("nan"), 3)
}

BINARY: Table = {
    name: getattr(torch, name)
    for name in words(
        "add sub mul true_divide floor_divide remainder fmod pow atan2 copysign hypot logaddexp logaddexp2 "
        "fmin fmax minimum maximum nextafter xlogy heaviside eq ne lt le gt ge logical_and logical_or "
        "logical_xor ldexp"
    )
}
BINARY |= {
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "xlog1py": torch.special.xlog1py,
    "isclose": lambda a, b: torch.isclose(a, b, equal_nan=True),
    "lerp": lambda a, b: torch.lerp(a, b, 0.25),
    "clamp by tensors": lambda a, b: torch.clamp(a, b, b + 1),
    "igamma": lambda a, b: torch.special.gammainc(a, b),
    "igammac": lambda a, b: torch.special.gammaincc(a, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, float("-inf")),
}

ROWS: Table = {
    "max": lambda x: torch.max(x, 1),
    "min": lambda x: torch.min(x, 1),
    "amax": lambda x: torch.amax(x, 1),
    "amin": lambda x: torch.amin(x, 1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "argmax": lambda x: torch.argmax(x, 1),
    "argmin": lambda x: torch.argmin(x, 1),
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "prod": lambda x: x.prod(1),
    "nansum": lambda x: torch.nansum(x, 1),
    "nanmean": lambda x: torch.nanmean(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "softmax": lambda x: torch.softmax(x, 1),
    "log_softmax": lambda x: torch.log_softmax(x, 1),
    "cumsum": lambda x: x.cumsum(1),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, 1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x, 1),
    "sort": lambda x: torch.sort(x, 1, stable=True),
    "sort down": lambda x: torch.sort(x, 1, descending=True, stable=True),
    "topk": lambda x: torch.topk(x, 2, 1)[0],
    "topk smallest": lambda x: torch.topk(x, 2, 1, largest=False)[0],
    "kthvalue": lambda x: torch.kthvalue(x, 2, 1)[0],
    "median": lambda x: torch.median(x, 1)[0],
    "nanmedian": lambda x: torch.nanmedian(x, 1)[0],
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), 1),
    "norm -inf": lambda x: torch.linalg.vector_norm(x, -float("inf"), 1),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0, 1),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "any": lambda x: torch.any(x, 1),
    "all": lambda x: torch.all(x, 1),
    "count_nonzero": lambda x: torch.count_nonzero(x, 1),
    "nonzero": lambda x: (x != 0).sum(),
    "max_pool": lambda x: F.max_pool1d(x[None], 2, 1),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool1d(x[None], 2),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 2, 1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "quantile": lambda x: torch.quantile(x.float(), 0.5, 1),
    "diff": lambda x: torch.diff(x, dim=1),
    "searchsorted": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]).to(x.dtype)),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(1), 1),
    "scatter amax": lambda x: x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.long), x, "amax"),
    "cross": lambda x: torch.linalg.cross(x, x.flip(1)),
}

INTEGERS: Table = {
    name: getattr(torch, name)
    for name in words(
        "add sub mul remainder fmod floor_divide bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
        "bitwise_right_shift minimum maximum eq lt gcd true_divide copysign"
    )
}
INTEGERS |= {
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
}
WHOLE: Table = {
    name: getattr(torch, name) for name in words("abs neg sign sgn square bitwise_not signbit sqrt")
} | {
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow 0": lambda x: x**0,
    "rpow": lambda x: torch.pow(-3, x % 5),
    "shift by 3": lambda x: x << 3,
    "shift back": lambda x: x >> 3,
    "remainder 3": lambda x: x % 3,
    "remainder -3": lambda x: x % -3,
    "floor_divide -3": lambda x: x // -3,
    "clamp": lambda x: x.clamp(1, 5),
    "to float": lambda x: x.float(),
    "to double": lambda x: x.double(),
    "to bool": lambda x: x.bool(),
    "to byte": lambda x: x.byte(),
    "to short": lambda x: x.short(),
    "sum": lambda x: x.sum(),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(0),
    "max": lambda x: x.max(),
    "sort": lambda x: torch.sort(x, stable=True)[0],
}
