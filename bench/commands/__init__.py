"""What `python -m bench` can do: a file for each command, with `add_options(parser)` and `run(options)`."""
