"""Functions that the host calls between parts of native code, by family; importing this package registers them."""

from tilewright.runtime.staged.functions import arithmetic as arithmetic
from tilewright.runtime.staged.functions import images as images
from tilewright.runtime.staged.functions import labels as labels
from tilewright.runtime.staged.functions import positions as positions
from tilewright.runtime.staged.functions import sequences as sequences
from tilewright.runtime.staged.functions import text as text
from tilewright.runtime.staged.functions.registry import FUNCTIONS as FUNCTIONS
from tilewright.runtime.staged.functions.registry import HANDS_ON as HANDS_ON
from tilewright.runtime.staged.functions.registry import bound as bound
