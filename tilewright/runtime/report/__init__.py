"""What was compiled, as records: of a program, of what is kept in a file, and of a model for its users."""
