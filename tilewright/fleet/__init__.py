"""Several models compiled into one folder: which, how, by what processes, and what of it need not be done again."""
