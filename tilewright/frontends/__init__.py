"""Translation of foreign model formats to the graph level; nothing is optimised here."""
