"""Models with an encoder: what they read."""
