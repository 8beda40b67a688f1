"""Commands for language models, and what they share."""
