"""Measures tilewright beside other engines: `python -m bench --help`, from the root of a checkout."""
