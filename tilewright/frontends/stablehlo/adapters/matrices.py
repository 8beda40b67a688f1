"""Decompositions of matrices: ops, and calls of LAPACK, which JAX writes for a CPU."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir

from tilewright.frontends.stablehlo.node import ProgramOp, adapter, custom_call
from tilewright.frontends.stablehlo.types import tensor_type
from tilewright.frontends.stablehlo.values import Held
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops import linalg as la
from tilewright.ops.composites.matrices import eigen, singular, singular_values, solved_triangle, turned
from tilewright.ops.source import full
from tilewright.ops.view import shape_of

_REAL = "sd"
_COMPLEX = "cz"


def _lapack(routine: str, letters: str = _REAL) -> tuple[str, ...]:
    """The names of a routine's calls, for float32 and float64."""
    return tuple(f"lapack_{letter}{routine}_ffi" for letter in letters)


def _letter(node: ProgramOp, name: str) -> str:
    """An option of LAPACK's, a letter."""
    for place in ("mhlo.backend_config", "backend_config"):
        if node.has(place) and isinstance(node.attribute(place), ir.DictAttr):
            told = ir.DictAttr(node.attribute(place))
            if name in told:
                return chr(int(told[name].value) % 128)  # ASCII, also in a damaged program
    raise ModelError(f"the call has no option '{name}'", hint="export the model again")


def _info(x: Value) -> Value:
    """0 for each matrix: that it has a factor is not checked."""
    return full(value=0, dtype=dt.i32, shape=shape_of(x)[:-2])


# Factors


@custom_call(*_lapack("potrf"))
def _potrf(node: ProgramOp) -> Sequence[Held]:
    return _cholesky(node.x(0), _letter(node, "uplo") == "L")


@adapter("cholesky")
def _cholesky_op(node: ProgramOp) -> Held:
    return _cholesky(node.x(0), node.flag("lower"))[0]


def _cholesky(x: Value, lower: bool) -> tuple[Value, Value]:
    factor, info = la.cholesky(x if lower else turned(x))
    return factor if lower else turned(factor), info


@custom_call(*_lapack("getrf"))
def _getrf(node: ProgramOp) -> Sequence[Held]:
    return [*la.lu_factor(node.x(0)), _info(node.x(0))]


@custom_call(*_lapack("geqrf"))
def _geqrf(node: ProgramOp) -> Sequence[Held]:
    return list(la.householder_factor(node.x(0)))


@custom_call(*_lapack("orgqr"))
def _orgqr(node: ProgramOp) -> Held:
    x = node.x(0)
    return la.householder_product(x, node.x(1), columns=shape_of(x)[-1])


# Triangles


@custom_call(*_lapack("trsm"))
def _trsm(node: ProgramOp) -> Held:
    side, half, transposed, diagonal = (_letter(node, name) for name in ("side", "uplo", "trans_x", "diag"))
    return _solved(node, side == "L", half == "L", diagonal == "U", transposed != "N")


@adapter("triangular_solve")
def _triangular_solve(node: ProgramOp) -> Held:
    is_turned = "NO_TRANSPOSE" not in str(node.attribute("transpose_a"))
    return _solved(node, node.flag("left_side"), node.flag("lower"), node.flag("unit_diagonal"), is_turned)


def _solved(node: ProgramOp, left: bool, lower: bool, unit: bool, is_turned: bool) -> Value:
    a = turned(node.x(0)) if is_turned else node.x(0)
    return solved_triangle(a, node.x(1), lower is is_turned, left, unit)


# Eigenvalues and singular values


@custom_call(*_lapack("syevd"))
def _syevd(node: ProgramOp) -> Sequence[Held]:
    """Vectors, values from the least on; the signs of vectors are arbitrary."""
    x = node.x(0)
    values, vectors = eigen(x, _letter(node, "uplo") == "L")
    return vectors, values, _info(x)


@custom_call(*_lapack("gesdd"))
def _gesdd(node: ProgramOp) -> Sequence[Held]:
    """What is left of x, values from the greatest on, u, v^T; the signs of vectors are arbitrary."""
    x, mode = node.x(0), _letter(node, "mode")
    if mode == "N":
        return x, singular_values(x), _unread(node, 2), _unread(node, 3), _info(x)
    if mode not in "AS":
        raise UnsupportedError(f"singular values with the option '{mode}' are not supported")
    u, values, v = singular(x, full_matrices=mode == "A")
    return x, values, u, v, _info(x)


def _unread(node: ProgramOp, k: int) -> Value:
    """A result that nobody asks for."""
    told = tensor_type(node.operation.results[k].type)
    if any(d is None for d in told.shape):
        raise UnsupportedError("singular values without vectors need matrices of known sizes")
    return full(value=0, dtype=type_of(node.x(0)).dtype, shape=tuple(d or 0 for d in told.shape))


# Not supported


@custom_call(
    *_lapack("geev", _REAL + _COMPLEX), *_lapack("gees", _REAL + _COMPLEX), *_lapack("gehrd", _REAL + _COMPLEX),
    *_lapack("sytrd"), *_lapack("hetrd", _COMPLEX), *_lapack("gtsv", _REAL + _COMPLEX), *_lapack("geqp3"),
    *(name for routine in ("potrf", "getrf", "geqrf", "ungqr", "trsm", "heevd", "gesdd")
      for name in _lapack(routine, _COMPLEX)),
)  # fmt: skip
def _missing(node: ProgramOp) -> Held:
    raise UnsupportedError(
        f"LAPACK's routine behind '{node.text('call_target_name')}' is not supported",
        hint="cholesky, lu, qr, solve, inv, det, eigh and svd of real matrices are",
    )
