"""Guard zones: native code of tests gets memory between pages that nobody may touch, and says so when it does.

`tilewright/runtime/guarded` has the memory and gives it to the calls of models. `turned_on` switches it on for all
models, as the tests' `conftest.py` and the workers of the fuzzers do, `plans` and `blocks` have what only tests need.
"""
