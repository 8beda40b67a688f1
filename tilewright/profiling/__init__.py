"""How fast a compiled model is on this machine, kernel by kernel and layer by layer, and how fast it could be."""
