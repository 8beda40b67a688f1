"""The operators: what is computed, never how fast. Importing this package fills `define.OPERATORS`."""

from tilewright.ops import contract as contract
from tilewright.ops import elementwise as elementwise
from tilewright.ops import reduce as reduce
from tilewright.ops import source as source
from tilewright.ops import view as view
from tilewright.ops.define import OPERATORS as OPERATORS
