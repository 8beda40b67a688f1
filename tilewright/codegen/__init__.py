"""Spelling of loop programs as LLVM IR text."""
