"""What programs for accelerators cost, from the facts of a machine."""
