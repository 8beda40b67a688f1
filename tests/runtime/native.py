"""Small artefacts written by hand in LLVM IR, for the tests of the runtime."""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np

from tilewright.codegen.cpu.linking.link import link
from tilewright.codegen.cpu.program.pool import pool_ir
from tilewright.runtime.artifact import (
    Artifact,
    ConstantInfo,
    Failure,
    StaticPlan,
    TargetInfo,
    TensorInfo,
)
from tilewright.runtime.report.kept import KeptReport
from tilewright.runtime.report.records import CallRecord, ProgramReport

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
TRIPLE = llvm.get_process_triple()


def compile_ir(text: str) -> bytes:
    """Object code of LLVM IR text for this machine."""
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(reloc="pic", codemodel="small", opt=1)
    module = llvm.parse_assembly(text)
    module.verify()
    return machine.emit_object(module)


def pool_object() -> bytes:
    return compile_ir(pool_ir(TRIPLE))


_WORDS = ("pool", "in", "out", "constants", "arena", "scratch", "dims")
_LOADS = (f"%{w} = load ptr, ptr %{w}.at" for w in _WORDS)
_PLACES = (f"%{w}.at = getelementptr ptr, ptr %call, i64 {k}" for k, w in enumerate(_WORDS))
RUN = "\n  ".join(["define i32 @tw_run(ptr %call) {\nentry:", *_PLACES, *_LOADS]) + "\n"
"""The head of a model's function, with names for what it is given."""

HOST = TargetInfo(triple=TRIPLE, cpu="generic")

# y[2, 3] = 2 * x + c, c[2, 3] from the constants; fails with code 1 where x[0, 0] is -1.
STATIC_IR = (
    RUN
    + """  %x = load ptr, ptr %in
  %y = load ptr, ptr %out
  %first = load float, ptr %x
  %bad = fcmp oeq float %first, -1.0
  br i1 %bad, label %fail, label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x.at = getelementptr float, ptr %x, i64 %i
  %c.at = getelementptr float, ptr %constants, i64 %i
  %y.at = getelementptr float, ptr %y, i64 %i
  %x.i = load float, ptr %x.at
  %c.i = load float, ptr %c.at
  %double = fmul float %x.i, 2.0
  %sum = fadd float %double, %c.i
  store float %sum, ptr %y.at
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 6
  br i1 %more, label %loop, label %done
done:
  ret i32 0
fail:
  ret i32 1
}
"""
)

STATIC_CONSTANTS = np.arange(6, dtype=np.float32).reshape(2, 3)


def static_artifact() -> Artifact:
    return Artifact(
        target=HOST,
        inputs=(TensorInfo("x", "float32", (2, 3)),),
        outputs=(TensorInfo("y", "float32", (2, 3)),),
        image=link([compile_ir(STATIC_IR)]),
        constants=STATIC_CONSTANTS.tobytes(),
        constant_table=(ConstantInfo("c", "float32", (2, 3), 0),),
        static_plan=StaticPlan(arena=0, scratch=0),
        errors=(Failure("execution", "node 'guard' (Check): x[0, 0] is -1"),),
        kept_report=KeptReport(ProgramReport(calls=(CallRecord("k0", "guard", ("f32[2, 3]",), "72"),))),
    )


# x[n, m], y[n, m] -> z[n, m] = x + y, t = x + x through the arena, and rows through scratch memory.
# Errors: 1 when m is odd (plan), 2 when x[0, 0] is -1 (run). Special m: 1000 asks for 2^61 bytes of arena,
# 1002 for -8, 1004 for -1 as the output's first dim.
DYNAMIC_IR = (
    """
declare void @tw_parallel(ptr, ptr, ptr, i64)

define i32 @tw_plan(ptr %shapes, ptr %data, ptr %dims, ptr %out, ptr %sizes) {
  %m.at = getelementptr i64, ptr %shapes, i64 1
  %n = load i64, ptr %shapes
  %m = load i64, ptr %m.at
  %d1 = getelementptr i64, ptr %dims, i64 1
  %o1 = getelementptr i64, ptr %out, i64 1
  %s1 = getelementptr i64, ptr %sizes, i64 1
  store i64 %n, ptr %dims
  store i64 %m, ptr %d1
  %shrink = icmp eq i64 %m, 1004
  %rows = select i1 %shrink, i64 -1, i64 %n
  store i64 %rows, ptr %out
  store i64 %m, ptr %o1
  %elements = mul i64 %n, %m
  %bytes = mul i64 %elements, 4
  %big = icmp eq i64 %m, 1000
  %bytes1 = select i1 %big, i64 2305843009213693952, i64 %bytes
  %neg = icmp eq i64 %m, 1002
  %bytes2 = select i1 %neg, i64 -8, i64 %bytes1
  store i64 %bytes2, ptr %sizes
  %row = mul i64 %m, 4
  %padded = add i64 %row, 63
  %aligned = and i64 %padded, -64
  store i64 %aligned, ptr %s1
  %odd = and i64 %m, 1
  %code = trunc i64 %odd to i32
  ret i32 %code
}

; args: x, y, z, arena, scratch, m
define internal void @rows(ptr %args, i64 %begin, i64 %end, i64 %worker) {
entry:
  %a1 = getelementptr ptr, ptr %args, i64 1
  %a2 = getelementptr ptr, ptr %args, i64 2
  %a3 = getelementptr ptr, ptr %args, i64 3
  %a4 = getelementptr ptr, ptr %args, i64 4
  %a5 = getelementptr ptr, ptr %args, i64 5
  %x = load ptr, ptr %args
  %y = load ptr, ptr %a1
  %z = load ptr, ptr %a2
  %t = load ptr, ptr %a3
  %scratch = load ptr, ptr %a4
  %m = load i64, ptr %a5
  %bytes = mul i64 %m, 4
  %padded = add i64 %bytes, 63
  %stride = and i64 %padded, -64
  %offset = mul i64 %stride, %worker
  %mine = getelementptr i8, ptr %scratch, i64 %offset
  br label %row
row:
  %i = phi i64 [ %begin, %entry ], [ %i.next, %row.end ]
  %i.more = icmp ult i64 %i, %end
  br i1 %i.more, label %first, label %done
first:
  %j = phi i64 [ 0, %row ], [ %j.next, %first ]
  %base = mul i64 %i, %m
  %at = add i64 %base, %j
  %x.at = getelementptr float, ptr %x, i64 %at
  %t.at = getelementptr float, ptr %t, i64 %at
  %s.at = getelementptr float, ptr %mine, i64 %j
  %x.v = load float, ptr %x.at
  %double = fadd float %x.v, %x.v
  store volatile float %double, ptr %t.at
  store volatile float %x.v, ptr %s.at
  %j.next = add i64 %j, 1
  %j.more = icmp ult i64 %j.next, %m
  br i1 %j.more, label %first, label %second
second:
  %k = phi i64 [ 0, %first ], [ %k.next, %second ]
  %kt = add i64 %base, %k
  %y.at = getelementptr float, ptr %y, i64 %kt
  %z.at = getelementptr float, ptr %z, i64 %kt
  %u.at = getelementptr float, ptr %t, i64 %kt
  %r.at = getelementptr float, ptr %mine, i64 %k
  %y.v = load float, ptr %y.at
  %u.v = load volatile float, ptr %u.at
  %r.v = load volatile float, ptr %r.at
  %once = fsub float %u.v, %r.v
  %sum = fadd float %once, %y.v
  store float %sum, ptr %z.at
  %k.next = add i64 %k, 1
  %k.more = icmp ult i64 %k.next, %m
  br i1 %k.more, label %second, label %row.end
row.end:
  %i.next = add i64 %i, 1
  br label %row
done:
  ret void
}

"""
    + RUN
    + """  %args = alloca [6 x ptr]
  %a1 = getelementptr ptr, ptr %args, i64 1
  %a2 = getelementptr ptr, ptr %args, i64 2
  %a3 = getelementptr ptr, ptr %args, i64 3
  %a4 = getelementptr ptr, ptr %args, i64 4
  %a5 = getelementptr ptr, ptr %args, i64 5
  %y.at = getelementptr ptr, ptr %in, i64 1
  %m.at = getelementptr i64, ptr %dims, i64 1
  %x = load ptr, ptr %in
  %y = load ptr, ptr %y.at
  %z = load ptr, ptr %out
  %n = load i64, ptr %dims
  %m = load i64, ptr %m.at
  store ptr %x, ptr %args
  store ptr %y, ptr %a1
  store ptr %z, ptr %a2
  store ptr %arena, ptr %a3
  store ptr %scratch, ptr %a4
  store i64 %m, ptr %a5
  %elements = mul i64 %n, %m
  %empty = icmp eq i64 %elements, 0
  br i1 %empty, label %done, label %check
check:
  %first = load float, ptr %x
  %bad = fcmp oeq float %first, -1.0
  br i1 %bad, label %fail, label %go
go:
  call void @tw_parallel(ptr %pool, ptr @rows, ptr %args, i64 %n)
  br label %done
done:
  ret i32 0
fail:
  ret i32 2
}
"""
)


def dynamic_artifact() -> Artifact:
    return Artifact(
        target=HOST,
        inputs=(TensorInfo("x", "float32", ("n", "m")), TensorInfo("y", "float32", ("n", "m"))),
        outputs=(TensorInfo("z", "float32", ("n", "m")),),
        image=link([compile_ir(DYNAMIC_IR), pool_object()]),
        variables=("n", "m"),
        dims_count=2,
        errors=(Failure("input", "m must be even"), Failure("execution", "x[0, 0] is -1")),
    )


def copy_artifact(dtype: str, size: int) -> Artifact:
    """y = x for `size` bytes-per-tensor of a dtype, shape [4] elements."""
    text = f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
{RUN}  %x = load ptr, ptr %in
  %y = load ptr, ptr %out
  call void @llvm.memcpy.p0.p0.i64(ptr %y, ptr %x, i64 {size}, i1 false)
  ret i32 0
}}
"""
    return Artifact(
        target=HOST,
        inputs=(TensorInfo("x", dtype, (4,)),),
        outputs=(TensorInfo("y", dtype, (4,)),),
        image=link([compile_ir(text)]),
        static_plan=StaticPlan(arena=0, scratch=0),
    )


# count[] (int64), x[k] -> y[count]: the output's size is an input's value; y[i] = i + k.
RANGE_IR = (
    """
define i32 @tw_plan(ptr %shapes, ptr %data, ptr %dims, ptr %out, ptr %sizes) {
  %d1 = getelementptr i64, ptr %dims, i64 1
  %s1 = getelementptr i64, ptr %sizes, i64 1
  %count.at = load ptr, ptr %data
  %count = load i64, ptr %count.at
  %k = load i64, ptr %shapes
  store i64 %k, ptr %dims
  store i64 %count, ptr %d1
  store i64 %count, ptr %out
  store i64 0, ptr %sizes
  store i64 0, ptr %s1
  ret i32 0
}
"""
    + RUN
    + """  %d1 = getelementptr i64, ptr %dims, i64 1
  %k = load i64, ptr %dims
  %count = load i64, ptr %d1
  %y = load ptr, ptr %out
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %body, label %done
body:
  %at = getelementptr i64, ptr %y, i64 %i
  %value = add i64 %i, %k
  store i64 %value, ptr %at
  %next = add i64 %i, 1
  br label %head
done:
  ret i32 0
}
"""
)


def range_artifact() -> Artifact:
    return Artifact(
        target=HOST,
        inputs=(TensorInfo("count", "int64", ()), TensorInfo("x", "float32", ("k",))),
        outputs=(TensorInfo("y", "int64", ("count",)),),
        image=link([compile_ir(RANGE_IR)]),
        variables=("k", "count"),
        dims_count=2,
        plan_reads_data=True,
    )
