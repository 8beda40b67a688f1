"""How long programs for accelerators take, from the facts of the machine alone. Their values come from native code."""

from tilewright.simulator.clock import Event as Event
from tilewright.simulator.clock import Timed as Timed
from tilewright.simulator.clock import time_kernel as time_kernel
