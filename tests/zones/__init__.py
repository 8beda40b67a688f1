"""Guard zones: native code of tests gets memory between pages that nobody may touch, and says so when it does.

`pages` has the memory, `calls` gives it to the calls of models, `plans` keeps tensors of the arena, constants and the
scratch memory of threads apart, and `turned_on` switches all of it on, as the tests' `conftest.py` and the workers of
the fuzzers do.
"""
