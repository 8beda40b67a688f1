"""Wrong shapes for every operator: each call is refused, or gives what the reference gives for these shapes."""
