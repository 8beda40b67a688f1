"""The memory with which native code runs steps of a staged program: words of 8 bytes, filled and read by the host.

    | header | shapes of a part's inputs | plan, run and constants of each part | a slot for each value |

A slot holds the address of a tensor, that of its block (0 where the memory is someone else's), the list of blocks that
wait to be used by this value again, and the dims. A block is memory with 64 bytes before it: how many slots refer to
it, its bytes, the list that it returns to, and the block after it there.
"""

from __future__ import annotations

POOL, THREADS, POLL, INTERVAL, NEXT_POLL, LOOP, TRIP = range(7)
ARENA, ARENA_BYTES, PART, CODE, STOPS = range(7, 12)
"""Words of the header: the thread pool and its threads; the function that a loop calls now and then, after how
many nanoseconds, when it will, and the loop and its trip then; memory of the parts; the part that
failed, and how; the address of the word that changes where calls are to end."""

GO_ON = -1
"""What the host writes to LOOP where a loop shall go on; when an exception takes its place, the loop ends."""
SHAPES = 12
DATA, BLOCK, FREE, DIMS = range(4)
"""Words of a slot."""

PART_WORDS = 3
PLAN, RUN, CONSTANTS = range(PART_WORDS)

DONE, PART_FAILED, MISFIT, STOPPED, NO_MEMORY, ROWS_DIFFER, OUT_OF_RANGE = range(7)
"""What native steps return: the code of a part's failure is in the header, as is the part whose inputs do not fit."""

CANCELLED = -1
"""What the code of a program, or of steps, returns where somebody has changed the word at `stops`."""
