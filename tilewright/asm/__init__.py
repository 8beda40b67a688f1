"""Reads machine code, as assembler text, back: its loops, and what is in them."""
