"""Adapters by families of operators. Importing this package fills the registry."""

from tilewright.frontends.torch.adapters import bins as bins
from tilewright.frontends.torch.adapters import bits as bits
from tilewright.frontends.torch.adapters import complexes as complexes
from tilewright.frontends.torch.adapters import contract as contract
from tilewright.frontends.torch.adapters import control as control
from tilewright.frontends.torch.adapters import elementwise as elementwise
from tilewright.frontends.torch.adapters import fourier as fourier
from tilewright.frontends.torch.adapters import index as index
from tilewright.frontends.torch.adapters import linalg as linalg
from tilewright.frontends.torch.adapters import order as order
from tilewright.frontends.torch.adapters import reduce as reduce
from tilewright.frontends.torch.adapters import source as source
from tilewright.frontends.torch.adapters import special as special
from tilewright.frontends.torch.adapters import view as view
from tilewright.frontends.torch.adapters.layers import activation as activation
from tilewright.frontends.torch.adapters.layers import attention as attention
from tilewright.frontends.torch.adapters.layers import flex as flex
from tilewright.frontends.torch.adapters.layers import norm as norm
from tilewright.frontends.torch.adapters.layers import pool as pool
from tilewright.frontends.torch.adapters.layers import quant as quant
from tilewright.frontends.torch.adapters.layers import recurrent as recurrent
from tilewright.frontends.torch.adapters.layers import resize as resize
from tilewright.frontends.torch.registry import DEFINITIONS

DEFINITIONS.seal()
