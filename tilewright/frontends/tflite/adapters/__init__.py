"""Adapters by family; importing this package fills the registry."""

from tilewright.frontends.tflite.adapters import contract as contract
from tilewright.frontends.tflite.adapters import control as control
from tilewright.frontends.tflite.adapters import elementwise as elementwise
from tilewright.frontends.tflite.adapters import index as index
from tilewright.frontends.tflite.adapters import norm as norm
from tilewright.frontends.tflite.adapters import pool as pool
from tilewright.frontends.tflite.adapters import recurrent as recurrent
from tilewright.frontends.tflite.adapters import resize as resize
from tilewright.frontends.tflite.adapters import shape as shape
from tilewright.frontends.tflite.adapters import view as view
from tilewright.frontends.tflite.registry import TFLITE_DEFINITIONS

TFLITE_DEFINITIONS.seal()
