"""What the terms of sums are: factors that a group shares, and terms that are rounded."""
