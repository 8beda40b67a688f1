"""Machine code is read back: blocks, loops, and what instructions do, from texts written by hand."""

from __future__ import annotations

import pytest

from tilewright.asm.arm import describer as describer_of_arm
from tilewright.asm.effects import Describe, Described, Effects
from tilewright.asm.ibm_z import describe as ibm_z
from tilewright.asm.listing import annotated
from tilewright.asm.loops import find_loops
from tilewright.asm.parse import Instruction, parse_assembly
from tilewright.asm.report import report_assembly
from tilewright.asm.riscv import describer as describer_of_riscv
from tilewright.asm.x86 import describe as x86
from tilewright.codegen.cpu.assemble import assembly
from tilewright.ir.diag import UnsupportedError
from tilewright.target.named import parse_target
from tilewright.target.target import Target

arm = describer_of_arm(parse_target("neoverse-n1"))
sve = describer_of_arm(parse_target("neoverse-v1-sve"))


def riscv(instruction: Instruction) -> Described:
    """After an instruction that makes groups of four registers."""
    describe = describer_of_riscv(parse_target("riscv64-v"))
    describe(Instruction("vsetivli", ("zero", "16", "e32", "m4", "ta", "ma")))
    return describe(instruction)


X86 = """
\t.text
\t.type\tdot,@function
dot:                                    # @dot
# %bb.0:                                # %entry
\txorl\t%eax, %eax
\ttestq\t%rdx, %rdx
\tjle\t.LBB0_5
.LBB0_1:                                # %loop.i.2
                                        # =>This Loop Header: Depth=1
\tvxorps\t%xmm0, %xmm0, %xmm0
\txorl\t%ecx, %ecx
\t.p2align\t4
.LBB0_2:                                # %loop.k.7
\tvmovups\t(%rdi,%rcx,4), %ymm1
\tvfmadd231ps\t(%rsi,%rcx,4), %ymm1, %ymm0 # ymm0 = (ymm1 * mem) + ymm0
\tvbroadcastss\t16(%rsi), %ymm2
\tvfmadd231ps\t%ymm2, %ymm1, %ymm3
\tvmovups\t%ymm3, 32(%rsp)                # 32-byte Spill
\taddq\t$8, %rcx
\tcmpq\t$1024, %rcx
\tjne\t.LBB0_2
# %bb.3:                                # %done.8
\tincq\t%rax
\tcmpq\t%rdx, %rax
\tjb\t.LBB0_1
.LBB0_5:
\tretq
.Lfunc_end0:
\t.size\tdot, .Lfunc_end0-dot
"""

ARM = """
\t.type\tdot,@function
dot:                                    // @dot
// %bb.0:                               // %entry
\tmov\tx8, xzr
.LBB0_1:                                // %loop.k.7
\tldp\tq1, q2, [x0], #32
\tldr\ts3, [x1, x8]
\tld1r\t{ v5.4s }, [x2]
\tadd\tx8, x8, #4
\tfmla\tv0.4s, v1.4s, v3.s[0]
\tfmla\tv4.4s, v2.4s, v5.4s
\tcmp\tx8, #64
\tb.ne\t.LBB0_1
// %bb.2:
\tstr\tq0, [x3]
\tret
.Lfunc_end0:
"""


def test_the_text_is_cut_into_blocks_and_instructions() -> None:
    (function,) = parse_assembly(X86)
    assert [(b.label, b.origin, len(b.instructions)) for b in function.blocks] == [
        ("%bb.0", "entry", 3),
        (".LBB0_1", "loop.i.2", 2),
        (".LBB0_2", "loop.k.7", 8),
        ("%bb.3", "done.8", 3),
        (".LBB0_5", "", 1),
    ]
    product = function.blocks[2].instructions[1]
    assert product == Instruction("vfmadd231ps", ("(%rsi,%rcx,4)", "%ymm1", "%ymm0"))
    assert [function.successors(k) for k in range(5)] == [(4, 1), (2,), (2, 3), (1, 4), ()]


def test_loops_are_branches_back() -> None:
    (function,) = parse_assembly(X86)
    outer, inner = find_loops(function)
    assert (outer.header, outer.blocks, outer.depth, outer.innermost) == (1, {1, 2, 3}, 1, False)
    assert (inner.header, inner.blocks, inner.depth, inner.innermost) == (2, {2}, 2, True)


def test_a_loop_that_is_entered_in_the_middle_of_its_text_is_found() -> None:
    text = """
\t.type\tf,@function
f:
\tjmp\t.LBB0_2
.LBB0_1:
\tincq\t%rax
.LBB0_2:
\tcmpq\t$9, %rax
\tje\t.LBB0_3
\ttestq\t%rbx, %rbx
\tjne\t.LBB0_1
\tjmp\t.LBB0_2
.LBB0_3:
\tretq
.Lfunc_end0:
"""
    (function,) = parse_assembly(text)
    (loop,) = find_loops(function)
    assert function.blocks[loop.header].label == ".LBB0_2"
    assert sum(len(function.blocks[k].instructions) for k in loop.blocks) == 6


def test_what_an_iteration_does_on_x86() -> None:
    (kernel,) = report_assembly(X86, parse_target("zen3"))
    outer, inner = kernel.loops
    assert (outer.name, inner.name, inner.label) == ("i", "k", ".LBB0_2")
    assert kernel.innermost == (inner,)
    assert inner.effects == Effects(
        instructions=8,
        multiply_adds=2,
        arithmetic=2,
        loads=2,
        broadcasts=1,
        stores=1,
        spills=1,
        branches=1,
    )
    assert inner.multiply_add_widths == inner.widths == (256,)
    # each of the two sums is added to once in an iteration, which takes the four cycles of a multiply-add
    assert (inner.cycles, inner.bound, inner.peak) == (4.0, "latency", 0.25)
    assert outer.effects == Effects(instructions=5, arithmetic=1, branches=1), "without the loop inside"
    assert kernel.outside.instructions == 4


def test_what_an_iteration_does_on_arm() -> None:
    (kernel,) = report_assembly(ARM, parse_target("neoverse-n1"))
    (loop,) = kernel.loops
    assert loop.name == "k"
    assert loop.effects == Effects(
        instructions=8, multiply_adds=2, arithmetic=2, loads=2, broadcasts=2, branches=1
    )
    assert loop.multiply_add_widths == (128,)
    assert kernel.outside == Effects(instructions=3, stores=1)


@pytest.mark.parametrize(
    ("describe", "text", "counts", "bits"),
    [
        (x86, "vgatherqps\t(%rax,%zmm1), %ymm2 {%k1}", {"gathers": 1}, 512),
        (x86, "vscatterqps\t%ymm2, (%rax,%zmm1) {%k1}", {"scatters": 1}, 512),
        (x86, "vinsertps\t$16, (%rax), %xmm1, %xmm1", {"lane_moves": 1}, 128),
        (x86, "vextractps\t$1, %xmm1, 4(%rax)", {"lane_moves": 1}, 128),
        (x86, "vmulps\t.LCPI0_3(%rip){1to16}, %zmm1, %zmm1", {"arithmetic": 1, "broadcasts": 1, "constants": 1}, 512),
        (x86, "vfmadd213ss\t(%rax), %xmm1, %xmm2", {"arithmetic": 1, "multiply_adds": 1, "loads": 1}, 32),
        (x86, "vpermilps\t$27, %ymm1, %ymm2", {"arithmetic": 1}, 256),
        (x86, "vmovaps\t%ymm1, %ymm2", {}, 256),
        (x86, "vmovaps\t(%rsp), %ymm2", {"loads": 1, "spills": 1}, 256),
        (x86, "vmovaps\t(%rbp), %ymm2", {"loads": 1}, 256),
        (x86, "vmovntps\t%ymm1, (%rax)", {"stores": 1}, 256),
        (x86, "vmaskmovps\t(%rax), %ymm1, %ymm2", {"loads": 1}, 256),
        (x86, "vcmpltps\t(%rax), %zmm1, %k1", {"arithmetic": 1, "loads": 1}, 512),
        (x86, "vzeroupper", {}, 0),
        (x86, "callq\texpf@PLT", {"calls": 1}, 0),
        (x86, "movq\t%rax, 8(%rsp)", {}, 0),
        (arm, "stp\tq0, q1, [sp, #32]", {"stores": 2, "spills": 2}, 128),
        (arm, "ldr\tq0, [sp]", {"loads": 1, "spills": 1}, 128),
        (arm, "ldr\tq0, [x8, :lo12:.LCPI0_1]", {"loads": 1, "constants": 1}, 128),
        (arm, "ldr\tq0, [x8, lCPI0_1@PAGEOFF]", {"loads": 1, "constants": 1}, 128),
        (arm, "ld1\t{ v0.s }[1], [x8]", {"lane_moves": 1}, 128),
        (arm, "st1\t{ v0.s }[1], [x8]", {"lane_moves": 1}, 128),
        (arm, "fmul\tv0.4s, v1.4s, v2.4s", {"arithmetic": 1}, 128),
        (arm, "fmadd\ts0, s1, s2, s0", {"arithmetic": 1, "multiply_adds": 1}, 32),
        (arm, "str\tx0, [sp, #8]", {}, 0),
        (arm, "bl\texpf", {"calls": 1}, 0),
        (arm, "cbnz\tx0, .LBB0_1", {"branches": 1}, 0),
        (sve, "fmla\tz31.s, p0/m, z9.s, z8.s", {"arithmetic": 1, "multiply_adds": 1}, 256),
        (sve, "ld1w\t{ z0.s }, p0/z, [x1, x2, lsl #2]", {"loads": 1}, 256),
        (sve, "ld1rw\t{ z0.s }, p0/z, [x1]", {"broadcasts": 1}, 256),
        (sve, "str\tz1, [sp, #21, mul vl]", {"stores": 1, "spills": 1}, 256),
        (sve, "sdot\tz0.s, z1.b, z2.b", {"arithmetic": 1, "multiply_adds": 1}, 256),
        (riscv, "vfmacc.vf\tv28, fa5, v4", {"arithmetic": 4, "multiply_adds": 4}, 128),
        (riscv, "vmacc.vx\tv28, a2, v4", {"arithmetic": 4, "multiply_adds": 4}, 128),
        (riscv, "vle32.v\tv4, (a1)", {"loads": 4}, 128),
        (riscv, "vlse32.v\tv4, (a1), zero", {"broadcasts": 4}, 128),
        (riscv, "vlse32.v\tv4, (a1), a2", {"loads": 4}, 128),
        (riscv, "vluxei64.v\tv4, (a1), v8", {"gathers": 4}, 128),
        (riscv, "vs2r.v\tv4, (a1)", {"stores": 2, "spills": 2}, 128),
        (riscv, "vl1re32.v\tv4, (a1)", {"loads": 1, "spills": 1}, 128),
        (riscv, "flw\tfa5, 0(a0)", {"broadcasts": 1}, 32),
        (riscv, "fmadd.d\tfa0, fa1, fa2, fa3", {"arithmetic": 1, "multiply_adds": 1}, 64),
        (riscv, "bnez\ta1, .LBB0_6", {"branches": 1}, 0),
        (riscv, "call\texpf", {"calls": 1}, 0),
        (ibm_z, "vfmasb\t%v20, %v11, %v12, %v20", {"arithmetic": 1, "multiply_adds": 1}, 128),
        (ibm_z, "vmalf\t%v30, %v12, %v11, %v30", {"arithmetic": 1, "multiply_adds": 1}, 128),
        (ibm_z, "vlrepf\t%v12, 1024(%r3)", {"broadcasts": 1}, 128),
        (ibm_z, "vl\t%v8, 48(%r13,%r9)", {"loads": 1}, 128),
        (ibm_z, "vlm\t%v0, %v3, 160(%r15)", {"loads": 4, "spills": 4}, 128),
        (ibm_z, "vst\t%v8, 176(%r15), 3", {"stores": 1, "spills": 1}, 128),
        (ibm_z, "vlef\t%v8, 0(%r1), 2", {"lane_moves": 1}, 128),
        (ibm_z, "wfmasb\t%f0, %f1, %f2, %f0", {"arithmetic": 1, "multiply_adds": 1}, 32),
        (ibm_z, "ld\t%f0, 0(%r1)", {"loads": 1}, 64),
        (ibm_z, "cgijlh\t%r8, 0, .LBB0_1", {"branches": 1}, 0),
        (ibm_z, "brasl\t%r14, expf@PLT", {"calls": 1}, 0),
    ],
)  # fmt: skip
def test_instructions_are_known(describe: Describe, text: str, counts: dict[str, int], bits: int) -> None:
    (function,) = parse_assembly(f"\t.type\tf,@function\nf:\n\t{text}\n.Lfunc_end0:\n")
    found = describe(function.blocks[0].instructions[0])
    assert found.effects == Effects(instructions=1, **counts)
    assert found.bits == bits


def test_the_listing_says_what_loops_do_where_they_begin() -> None:
    lines = annotated(ARM, parse_target("neoverse-n1")).splitlines()
    said = "loop k at .LBB0_1: 8 instructions, 2 multiply-adds, 2 arithmetic, 2 loads, 2 broadcasts, 1 branches; "
    assert lines[0] == "// dot: 1 loops, 3 instructions outside"
    assert lines[1].startswith(
        f"//   {said}128 bits; 0.5 multiply-adds per load; at least 2.0 cycles (loads)"
    )
    assert lines[lines.index(".LBB0_1:") - 1].startswith(f"// {said}")
    assert "\tfmla\tv0.4s, v1.4s, v3.s[0]" in lines


@pytest.mark.parametrize("triple", ["aarch64-apple-macosx11.0", "x86_64-apple-macosx11.0"])
def test_functions_for_macos_are_found(triple: str) -> None:
    """Its object files are ELF here, as elsewhere, and so are labels and directives."""
    text = """
    define float @total(ptr %x, i64 %n) {
    entry:
      br label %loop.k.7
    loop.k.7:
      %i = phi i64 [ 0, %entry ], [ %next, %loop.k.7 ]
      %t = phi float [ 1.5, %entry ], [ %u, %loop.k.7 ]
      %at = getelementptr float, ptr %x, i64 %i
      %e = load float, ptr %at
      %u = fadd float %t, %e
      %next = add i64 %i, 1
      %more = icmp ult i64 %next, %n
      br i1 %more, label %loop.k.7, label %done
    done:
      ret float %u
    }
    define void @last() {
      ret void
    }
    """
    cpu = "apple-m1" if triple.startswith("aarch64") else "haswell"
    target = Target("mac", triple, cpu, (), 128, 32)
    kernels = report_assembly(assembly(text, target, comments=True), target)
    assert [kernel.name for kernel in kernels] == ["total", "last"]
    (loop,) = kernels[0].loops
    assert (loop.name, loop.effects.arithmetic, loop.effects.branches) == ("k", 1, 1)
    assert kernels[0].outside.instructions >= 2


def test_other_instruction_sets_are_refused() -> None:
    other = Target("board", "wasm32-unknown-unknown", "generic", (), 128, 32)
    with pytest.raises(
        UnsupportedError, match=r"machine code of wasm32 \(target 'board'\) cannot be read"
    ) as error:
        report_assembly("", other)
    assert "x86_64, aarch64, riscv64, s390x" in str(error.value)
