"""What whole texts tell of a model: how likely it finds them, and how far it is from a reference."""
