"""Adapters by family; importing this package fills the registry, but for the packages that load when they are used."""

from tilewright.frontends.onnx.adapters import attention as attention
from tilewright.frontends.onnx.adapters import contract as contract
from tilewright.frontends.onnx.adapters import control as control
from tilewright.frontends.onnx.adapters import elementwise as elementwise
from tilewright.frontends.onnx.adapters import index as index
from tilewright.frontends.onnx.adapters import norm as norm
from tilewright.frontends.onnx.adapters import pool as pool
from tilewright.frontends.onnx.adapters import quant as quant
from tilewright.frontends.onnx.adapters import random as random
from tilewright.frontends.onnx.adapters import recurrent as recurrent
from tilewright.frontends.onnx.adapters import reduce as reduce
from tilewright.frontends.onnx.adapters import resize as resize
from tilewright.frontends.onnx.adapters import shape as shape
from tilewright.frontends.onnx.adapters import source as source
from tilewright.frontends.onnx.adapters import view as view
from tilewright.frontends.onnx.registry import DEFINITIONS, bind_operators

DEFINITIONS.seal()
bind_operators()
