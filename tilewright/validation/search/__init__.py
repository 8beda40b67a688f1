"""The step of a compilation that changes what a model means, and the smallest program that shows it."""
