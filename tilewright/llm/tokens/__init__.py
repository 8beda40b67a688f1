"""Text to tokens and back: vocabularies of checkpoints, and of GGUF files."""
