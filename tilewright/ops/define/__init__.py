"""What defines operators and says what they compute: `op`, `primitive`, `irregular`, their bodies, and evaluation."""

from tilewright.ops.define.operator import DEFINITIONS as DEFINITIONS
from tilewright.ops.define.operator import OPERATORS as OPERATORS
from tilewright.ops.define.operator import Axis as Axis
from tilewright.ops.define.operator import Compute as Compute
from tilewright.ops.define.operator import OnnxBinding as OnnxBinding
from tilewright.ops.define.operator import Operator as Operator
from tilewright.ops.define.operator import Replacement as Replacement
from tilewright.ops.define.operator import TorchBinding as TorchBinding
from tilewright.ops.define.operator import compute as compute
from tilewright.ops.define.operator import compute_tiles as compute_tiles
from tilewright.ops.define.operator import constant as constant
from tilewright.ops.define.operator import irregular as irregular
from tilewright.ops.define.operator import op as op
from tilewright.ops.define.operator import primitive as primitive
from tilewright.ops.define.operator import traced_again as traced_again
