"""From one kernel of the loops level to the text of an LLVM function."""
