"""Long runs of the fuzzers: `python -m tests.fuzz loops --count 20000`."""
