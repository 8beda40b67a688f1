"""Operators of ONNX Runtime (domain com.microsoft), which its tools write into optimised and quantised models.

What they mean is said by ONNX Runtime's ContribOperators.md and, where that is silent, by what its CPU does.
"""

from tilewright.frontends.onnx.adapters.microsoft import activation as activation
from tilewright.frontends.onnx.adapters.microsoft import arrays as arrays
from tilewright.frontends.onnx.adapters.microsoft import attention as attention
from tilewright.frontends.onnx.adapters.microsoft import experts as experts
from tilewright.frontends.onnx.adapters.microsoft import grouped_attention as grouped_attention
from tilewright.frontends.onnx.adapters.microsoft import left_out as left_out
from tilewright.frontends.onnx.adapters.microsoft import norm as norm
from tilewright.frontends.onnx.adapters.microsoft import positions as positions
from tilewright.frontends.onnx.adapters.microsoft import products as products
from tilewright.frontends.onnx.adapters.microsoft import quant as quant
from tilewright.frontends.onnx.adapters.microsoft import recurrent as recurrent
from tilewright.frontends.onnx.adapters.microsoft import signal as signal
from tilewright.frontends.onnx.adapters.microsoft import text as text
from tilewright.frontends.onnx.adapters.microsoft import weights as weights
