"""The program level: what a model does from call to call, made of calls of functions, branches, loops, functions of the
host, and states."""
