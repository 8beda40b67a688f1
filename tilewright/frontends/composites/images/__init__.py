"""Images resized."""
