"""What translates which op, by family; importing them registers them."""

from tilewright.frontends.stablehlo.adapters import calls as calls
from tilewright.frontends.stablehlo.adapters import complexes as complexes
from tilewright.frontends.stablehlo.adapters import contract as contract
from tilewright.frontends.stablehlo.adapters import control as control
from tilewright.frontends.stablehlo.adapters import elementwise as elementwise
from tilewright.frontends.stablehlo.adapters import gather as gather
from tilewright.frontends.stablehlo.adapters import matrices as matrices
from tilewright.frontends.stablehlo.adapters import reduce as reduce
from tilewright.frontends.stablehlo.adapters import scatter as scatter
from tilewright.frontends.stablehlo.adapters import slices as slices
from tilewright.frontends.stablehlo.adapters import sort as sort
from tilewright.frontends.stablehlo.adapters import view as view
from tilewright.frontends.stablehlo.adapters import window as window
from tilewright.frontends.stablehlo.node import STABLEHLO_DEFINITIONS

STABLEHLO_DEFINITIONS.seal()
