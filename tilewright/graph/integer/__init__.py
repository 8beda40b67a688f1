"""Programs without floats: numbers of a quantised network as integers in fixed point."""
