"""The operators: what is computed, never how fast. Importing this package fills `define.OPERATORS`."""

from tilewright.ops import activation as activation
from tilewright.ops import attention as attention
from tilewright.ops import blocked as blocked
from tilewright.ops import contract as contract
from tilewright.ops import coupling as coupling
from tilewright.ops import eigen as eigen
from tilewright.ops import elementwise as elementwise
from tilewright.ops import external as external
from tilewright.ops import fixed_point as fixed_point
from tilewright.ops import image as image
from tilewright.ops import index as index
from tilewright.ops import iterated as iterated
from tilewright.ops import linalg as linalg
from tilewright.ops import norm as norm
from tilewright.ops import polynomials as polynomials
from tilewright.ops import pool as pool
from tilewright.ops import positions as positions
from tilewright.ops import quant as quant
from tilewright.ops import random as random
from tilewright.ops import recurrent as recurrent
from tilewright.ops import reduce as reduce
from tilewright.ops import regions as regions
from tilewright.ops import scan as scan
from tilewright.ops import sort as sort
from tilewright.ops import source as source
from tilewright.ops import state_space as state_space
from tilewright.ops import trees as trees
from tilewright.ops import view as view
from tilewright.ops import winograd as winograd
from tilewright.ops.define import DEFINITIONS
from tilewright.ops.define import OPERATORS as OPERATORS

DEFINITIONS.seal()
