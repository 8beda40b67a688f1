"""Loops, scans and branches."""

from __future__ import annotations

import numpy as np

from bench.dynamic.model import Dynamic, dynamic, normal

HIDDEN = 128


def _cell(rng: np.random.Generator, gates: int) -> dict[str, np.ndarray]:
    scale = HIDDEN**-0.5
    return {
        "w": normal(rng, HIDDEN, gates * HIDDEN, scale=scale),
        "r": normal(rng, HIDDEN, gates * HIDDEN, scale=scale),
        "b": normal(rng, gates * HIDDEN, scale=0.1),
    }


@dynamic
def loop_lstm(rng: np.random.Generator) -> Dynamic:
    """An LSTM cell that a Loop runs as often as an input says."""
    graph = """lstm (float[t, 128] x, int64 n, float[1, 128] h0, float[1, 128] c0)
        => (float[1, 128] h, float[k, 1, 128] y) {
      h, c, y = Loop (n, , h0, c0) <body = trip (int64 i, bool go, float[1, 128] a, float[1, 128] s)
          => (bool on, float[1, 128] a2, float[1, 128] s2, float[1, 128] row) {
        on = Identity (go)
        axes = Constant <value_ints: ints = [0]> ()
        at = Unsqueeze (i, axes)
        xt = Gather (x, at)
        p = MatMul (xt, w)
        q = MatMul (a, r)
        pq = Add (p, q)
        z = Add (pq, b)
        zi, zf, zg, zo = Split <axis = 1> (z)
        gi = Sigmoid (zi)
        gf = Sigmoid (zf)
        gg = Tanh (zg)
        go_ = Sigmoid (zo)
        kept = Mul (gf, s)
        new = Mul (gi, gg)
        s2 = Add (kept, new)
        ts = Tanh (s2)
        a2 = Mul (go_, ts)
        row = Identity (a2)
      }>
    }"""
    start = np.zeros((1, HIDDEN), np.float32)
    inputs = {"x": normal(rng, 50, HIDDEN), "n": np.array(50), "h0": start, "c0": start}
    return Dynamic(graph, inputs, _cell(rng, 4))


@dynamic
def scan_gru(rng: np.random.Generator) -> Dynamic:
    """A GRU cell that a Scan runs along an axis of unknown length."""
    graph = """gru (float[t, 1, 128] x, float[1, 128] h0) => (float[1, 128] h, float[t, 1, 128] y) {
      h, y = Scan <num_scan_inputs = 1, body = trip (float[1, 128] a, float[1, 128] xt)
          => (float[1, 128] a2, float[1, 128] row) {
        p = MatMul (xt, w)
        q = MatMul (a, r)
        pb = Add (p, b)
        pz, pr, ph = Split <axis = 1> (pb)
        qz, qr, qh = Split <axis = 1> (q)
        sz = Add (pz, qz)
        z = Sigmoid (sz)
        sr = Add (pr, qr)
        rr = Sigmoid (sr)
        reset = Mul (rr, qh)
        sh = Add (ph, reset)
        n = Tanh (sh)
        d = Sub (a, n)
        zd = Mul (z, d)
        a2 = Add (n, zd)
        row = Identity (a2)
      }> (h0, x)
    }"""
    inputs = {"x": normal(rng, 100, 1, HIDDEN), "h0": np.zeros((1, HIDDEN), np.float32)}
    return Dynamic(graph, inputs, _cell(rng, 3))


@dynamic
def while_newton(rng: np.random.Generator) -> Dynamic:
    """Square roots by Newton's method, until no element changes by more than a bound."""
    graph = """newton (float[n] a) => (float[n] x) {
      half = Constant <value_float = 0.5> ()
      bound = Constant <value_float = 0.0001> ()
      yes = Constant <value = bool {1}> ()
      x = Loop (, yes, a) <body = trip (int64 i, bool go, float[n] x0) => (bool on, float[n] x1) {
        q = Div (a, x0)
        s = Add (x0, q)
        x1 = Mul (half, s)
        d = Sub (x1, x0)
        m = Abs (d)
        worst = ReduceMax <keepdims = 0> (m)
        on = Greater (worst, bound)
      }>
    }"""
    return Dynamic(graph, {"a": np.exp(normal(rng, 256, scale=3.0)) + np.float32(1)}, {})


@dynamic
def nested_loops(rng: np.random.Generator) -> Dynamic:
    """A loop in a loop, of 20 trips each, with few operations."""
    graph = """nested (float[64] x, int64 n) => (float[64] y) {
      scale = Constant <value_float = 0.97> ()
      y = Loop (n, , x) <body = outer (int64 i, bool go, float[64] a) => (bool on, float[64] a2) {
        on = Identity (go)
        b = Loop (n, , a) <body = inner (int64 j, bool go_, float[64] c) => (bool on_, float[64] c2) {
          on_ = Identity (go_)
          t = Tanh (c)
          u = Mul (t, scale)
          c2 = Add (u, x)
        }>
        a2 = Mul (b, scale)
      }>
    }"""
    return Dynamic(graph, {"x": normal(rng, 64), "n": np.array(20)}, {})


@dynamic
def if_heavy(rng: np.random.Generator) -> Dynamic:
    """One of two chains of products, as data say."""
    chain = """
        {0}1 = MatMul (x, w0)
        {0}2 = Relu ({0}1)
        {0}3 = MatMul ({0}2, w1)
        {0}4 = {1} ({0}3)
        {0} = MatMul ({0}4, w2)"""
    graph = f"""heavy (float[n, 256] x) => (float[n, 256] y) {{
      zero = Constant <value_float = 0.0> ()
      mean = ReduceMean <keepdims = 0> (x)
      above = Greater (mean, zero)
      y = If (above) <then_branch = one () => (float[n, 256] p) {{{chain.format("p", "Relu")}
      }}, else_branch = two () => (float[n, 256] q) {{{chain.format("q", "Tanh")}
      }}>
    }}"""
    weights = {f"w{k}": normal(rng, 256, 256, scale=1 / 16) for k in range(3)}
    return Dynamic(graph, {"x": normal(rng, 64, 256)}, weights)


@dynamic
def loop_with_if(rng: np.random.Generator) -> Dynamic:
    """A loop whose trips take one of two branches of different work, as data say."""
    graph = """choices (float[64, 64] x, int64 n) => (float[64, 64] y) {
      zero = Constant <value_float = 0.0> ()
      y = Loop (n, , x) <body = trip (int64 i, bool go, float[64, 64] a) => (bool on, float[64, 64] a2) {
        on = Identity (go)
        sum = ReduceSum <keepdims = 0> (a)
        above = Greater (sum, zero)
        a2 = If (above) <then_branch = one () => (float[64, 64] p) {
          m = MatMul (a, w)
          s = Softmax (m)
          p = Sub (s, a)
        }, else_branch = two () => (float[64, 64] q) {
          q = Neg (a)
        }>
      }>
    }"""
    return Dynamic(
        graph, {"x": normal(rng, 64, 64), "n": np.array(100)}, {"w": normal(rng, 64, 64, scale=0.125)}
    )


@dynamic
def greedy_decode(rng: np.random.Generator) -> Dynamic:
    """Tokens, each computed from all before it, until one ends them: the state grows from trip to trip."""
    graph = """decode (int64[1] first, int64 n) => (int64[k] tokens) {
      yes = Constant <value = bool {1}> ()
      end = Constant <value_int = 0> ()
      axes = Constant <value_ints = [0]> ()
      tokens = Loop (n, yes, first) <body = trip (int64 i, bool go, int64[t] before) => (bool on, int64[t2] after) {
        e = Gather (table, before)
        m = ReduceMean <axes = [0], keepdims = 1> (e)
        h = MatMul (m, w)
        a = Tanh (h)
        logits = MatMul (a, head)
        best = ArgMax <axis = 1, keepdims = 0> (logits)
        after = Concat <axis = 0> (before, best)
        scalar = Squeeze (best, axes)
        ends = Equal (scalar, end)
        on = Not (ends)
      }>
    }"""
    weights = {
        "table": normal(rng, 1000, 128),
        "w": normal(rng, 128, 128, scale=0.2),
        "head": normal(rng, 128, 1000),
    }
    return Dynamic(graph, {"first": np.array([7]), "n": np.array(60)}, weights)


@dynamic
def loop_cache(rng: np.random.Generator) -> Dynamic:
    """A loop that puts one row a trip into a cache."""
    graph = """put (float[m, 256] cache, float[1, 256] x, int64 n) => (float[m, 256] y, float[1, 256] last) {
      one = Constant <value_ints = [1, 1]> ()
      y, last = Loop (n, , cache, x) <body = trip (int64 i, bool go, float[m, 256] c, float[1, 256] a)
          => (bool on, float[m, 256] c2, float[1, 256] row) {
        on = Identity (go)
        row = Tanh (a)
        at = Reshape (i, one)
        c2 = ScatterND (c, at, row)
      }>
    }"""
    inputs = {"cache": normal(rng, 2048, 256), "x": normal(rng, 1, 256), "n": np.array(100)}
    return Dynamic(graph, inputs, {})


@dynamic
def sequence_loop(rng: np.random.Generator) -> Dynamic:
    """A loop that collects tensors of different lengths in a sequence."""
    graph = """collect (float[t, 64] x, int64 n) => (float[k, 64] y) {
      none = SequenceEmpty ()
      axes = Constant <value_ints = [0]> ()
      one = Constant <value_int = 1> ()
      all = Loop (n, , none) <body = trip (int64 i, bool go, seq(float[?, 64]) before)
          => (bool on, seq(float[?, 64]) after) {
        on = Identity (go)
        next = Add (i, one)
        begin = Unsqueeze (i, axes)
        end = Add (begin, begin)
        stop = Add (end, axis1)
        rows = Slice (x, begin, stop, axes)
        t = Tanh (rows)
        after = SequenceInsert (before, t)
      }>
      y = ConcatFromSequence <axis = 0> (all)
    }"""
    return Dynamic(graph, {"x": normal(rng, 100, 64), "n": np.array(40)}, {"axis1": np.array([1])})
