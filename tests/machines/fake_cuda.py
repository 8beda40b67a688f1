"""A GPU of NVIDIA that is not there: its driver in C, and kernels as native code of the LLVM IR that PTX is made of."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tilewright.codegen.cpu.assemble import compile_ir
from tilewright.target.host import host_target

COMPILER = shutil.which("cc")
_SOURCE = Path(__file__).with_suffix(".c")
_ENTRY = re.compile(
    r'define ptx_kernel void @([\w.$]+)\((.*?)\) nounwind "nvvm.reqntid"="(\d+),(\d+),1"(?: "nvvm.minctasm"="\d+")? \{'
)
_SHARED = re.compile(r"^(@shared\d+) = internal addrspace\(3\) global (\[\d+ x \w+\])", re.MULTILINE)
_SREG = re.compile(r"@llvm\.nvvm\.read\.ptx\.sreg\.(\w+)\.(\w)\(\)")

_WARP = {
    "bar.warp.sync": ("0", "void", ["i32"]),
    "ldmatrix.sync.aligned.m8n8.x4.b16.p3": ("1", "i32", ["ptr"]),
    "ldmatrix.sync.aligned.m8n8.x4.trans.b16.p3": ("2", "i32", ["ptr"]),
    "mma.m16n8k16.row.col.f32.f32": ("3", "float", ["<2 x half>"] * 6 + ["float"] * 4),
    "mma.m16n8k16.row.col.bf16": ("4", "float", ["i32"] * 6 + ["float"] * 4),
    "mma.m16n8k32.row.col.s8": ("5", "i32", ["i32"] * 10),
    "mma.m16n8k8.row.col.tf32": ("6", "float", ["i32"] * 6 + ["float"] * 4),
}
"""Instructions of warps, by their names after "llvm.nvvm.": the driver's numbers, and types of results and operands."""
_COPIES = {
    "cp.async.cg.shared.global.16": "(ptr %a, ptr %b) { call void @fake_copy(ptr %a, ptr %b, i32 16) ret void }",
    "cp.async.cg.shared.global.16.s": "(ptr %a, ptr %b, i32 %c) { call void @fake_copy(ptr %a, ptr %b, i32 %c) "
    "ret void }",
    "cp.async.wait.all": "() { call void @fake_copies() ret void }",
}
_ROUNDED = """define internal i32 @fake.f2tf32.rna(float %x) {
  %b = bitcast float %x to i32
  %m = and i32 %b, 2147483647
  %n = icmp uge i32 %m, 2139095040
  %s = add i32 %b, 4096
  %r = select i1 %n, i32 %b, i32 %s
  %t = and i32 %r, -8192
  ret i32 %t
}"""
"""To the nearest with 10 bits behind the point, and of two away from 0."""


def _warp_functions() -> list[str]:
    """Functions that hand the operands of an instruction to the driver, and give its results."""
    declared = ("fake_meet(i32, ptr, ptr)", "fake_copy(ptr, ptr, i32)", "fake_copies()")
    made = [f"declare void @{each}" for each in declared]
    for name, (number, result, operands) in _WARP.items():
        results = "void" if result == "void" else f"{{{', '.join([result] * 4)}}}"
        arguments = ", ".join(f"{type} %a{k}" for k, type in enumerate(operands))
        made += [f"define internal {results} @fake.{name}({arguments}) noinline {{"]
        made += ["  %in = alloca [10 x i32]", "  %out = alloca [4 x i32]"]
        for k, type in enumerate(operands):
            made += [f"  %p{k} = getelementptr i32, ptr %in, i64 {k}", f"  store {type} %a{k}, ptr %p{k}"]
        made += [f"  call void @fake_meet(i32 {number}, ptr %in, ptr %out)"]
        has_none = result == "void"
        made += ["  ret void", "}"] if has_none else [f"  %r = load {results}, ptr %out", f"  ret {results} %r", "}"]
    return made + [f"define internal void @fake.{name}{text}" for name, text in _COPIES.items()]


def host_ir(text: str) -> str:
    """A kernel's LLVM IR for this machine: special registers and barriers are functions of the driver, and for each
    entry point there are one that takes its arguments as an array, one that fills shared memory with NaN, and its shape
    (how many arguments, threads along x and y, bytes of dynamic shared memory)."""
    more = ["declare void @fake_barrier()", *_warp_functions(), _ROUNDED]
    registers = dict.fromkeys(f"fake_{what}_{axis}" for what, axis in _SREG.findall(text))
    more += [f"declare i32 @{name}()" for name in registers]
    fills = []
    for name, type in _SHARED.findall(text):
        size = f"ptrtoint (ptr getelementptr ({type}, ptr null, i32 1) to i64)"
        fills.append(f"  call void @llvm.memset.p0.i64(ptr {name}, i8 -1, i64 {size}, i1 false)")
    for name, parameters, x, y in _ENTRY.findall(text):
        types = [parameter.split()[0] for parameter in parameters.split(", ")]
        body = []
        for k, type in enumerate(types):
            body += [f"  %p{k} = getelementptr i64, ptr %words, i64 {k}", f"  %a{k} = load {type}, ptr %p{k}"]
        arguments = ", ".join(f"{type} %a{k}" for k, type in enumerate(types))
        more += [
            f"define void @{name}_host(ptr %words) {{", *body, f"  call void @{name}({arguments})", "  ret void", "}",
            f"define void @{name}_begin() {{", *fills, "  ret void", "}",
            f"@{name}_shape = constant [4 x i32] [i32 {len(types)}, i32 {x}, i32 {y}, i32 0]",
        ]  # fmt: skip
    text = _SREG.sub(r"@fake_\1_\2()", text)
    text = text.replace("@llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)", "@fake_barrier()")
    text = re.sub(r"addrspacecast ptr (%\w+) to ptr addrspace\(1\)", r"getelementptr i8, ptr \1, i64 0", text)
    text = re.sub(r"@llvm\.nvvm\.((?:bar\.warp|ldmatrix|mma|cp\.async|f2tf32)[\w.]*)\(", r"@fake.\1(", text)
    text = re.sub(r"addrspacecast ptr addrspace\(3\) (%[\w.]+) to ptr", r"getelementptr i8, ptr \1, i64 0", text)
    text = re.sub(r"addrspacecast \(ptr addrspace\(3\) (@\w+) to ptr\)", r"\1", text)
    text = re.sub(r" addrspace\([13]\)", "", text).replace("define ptx_kernel", "define internal")
    text = text.replace('target triple = "nvptx64-nvidia-cuda"', f'target triple = "{host_target().triple}"')
    return "\n".join([text, *more, ""])


class FakeCuda:
    """The driver: what it counted, what it found wrong, and what it is told to fail at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "libcuda.so.1"
        subprocess.run(
            [str(COMPILER), "-O1", "-shared", "-fPIC", "-o", str(self.path), str(_SOURCE), "-ldl"], check=True
        )
        self.library = ctypes.CDLL(str(self.path))
        self.library.fake_fault.restype = ctypes.c_char_p
        self.library.fake_bytes.restype = ctypes.c_size_t

    def kernels(self, texts: Mapping[str, str]) -> None:
        """What kernels of these LLVM IRs do."""
        objects = []
        for name, text in texts.items():
            objects.append(self.folder / f"{name}.o")
            objects[-1].write_bytes(compile_ir(host_ir(text), host_target()))
        made = self.folder / f"kernels{len(list(self.folder.glob('*.so')))}.so"
        command = [str(COMPILER), "-shared", "-o", str(made), *map(str, objects), str(self.path), "-lm"]
        subprocess.run(command, check=True)
        assert self.library.fake_library(str(made).encode()) == 0, self.fault

    @property
    def fault(self) -> str:
        """What it found wrong first."""
        return str(self.library.fake_fault().decode())

    def reset(self) -> None:
        """Forget what was counted and what was wrong; there is one GPU."""
        self.library.fake_reset()

    def fail(self, name: str, code: int) -> None:
        """The next call of a function gives this number."""
        self.library.fake_fail(name.encode(), code)

    def count(self, name: str) -> int:
        """How often a function was called."""
        return int(self.library.fake_count(name.encode()))

    def bytes(self, name: str) -> int:
        """How many bytes a function has copied, also as part of a graph."""
        return int(self.library.fake_bytes(name.encode()))

