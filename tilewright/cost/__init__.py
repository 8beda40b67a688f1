"""What a decision costs: facts of the target in, cycles and the reason out."""
