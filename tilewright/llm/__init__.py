"""Language models: text from decoders that the compiler has compiled."""
