"""Models whose work depends on data or on sizes of the call: loops, branches, positions, trees, decoding."""
