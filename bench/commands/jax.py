"""Programs of JAX beside XLA; runs in an environment with jax and tilewright."""

from __future__ import annotations

import argparse
import os

from bench import jax_programs


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="names [all]")
    parser.add_argument("--threads", default=1, type=int, choices=(1, 2), help="[1]")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each [5]")


def run(options: argparse.Namespace) -> int:
    if options.threads == 1:  # before JAX is imported, which reads it and starts its threads
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    from bench.zoo.programs import PROGRAMS

    pairs = [jax_programs.measure(name, options.threads, options.rounds) for name in options.programs or PROGRAMS]
    print(jax_programs.table(pairs), flush=True)
    return 0
