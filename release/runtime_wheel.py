"""Builds the wheel of `tilewright-runtime`: what loads and runs compiled models, and nothing of the compiler.

    python release/runtime_wheel.py dist

It has the folder `tilewright/runtime` under the name `tilewright_runtime`, so that both distributions can be installed
in one environment and neither writes over files of the other.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tilewright" / "runtime"
NAME, PACKAGE = "tilewright-runtime", "tilewright_runtime"
_OLD = re.compile(r"\btilewright\.runtime\b")
_TIME = (1980, 1, 1, 0, 0, 0)

ABOUT = """Loads and runs models that tilewright has compiled. It needs NumPy.

    import tilewright_runtime

    model = tilewright_runtime.load("model.tw", threads=2)
    (y,) = model(x)

`load`, `Model` and the errors are those of `tilewright`, of the same version. A compiled model is code: load only what
you trust, or what is signed with a key of yours (`load(..., trust="public.pem")`, with the extra `sign`). Models with
elements that NumPy does not have (bfloat16) need the extra `dtypes`, those that decode images the extra `images`.
"""


def files() -> dict[str, bytes]:
    """The files of the package, by their paths in the wheel."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = _OLD.sub(PACKAGE, path.read_text(encoding="utf-8"))
        if path == SOURCE / "__init__.py":
            text += f'\n__version__ = "{version()}"\n'
        found[f"{PACKAGE}/{path.relative_to(SOURCE).as_posix()}"] = text.encode()
    found[f"{PACKAGE}/py.typed"] = b""
    return found


def version() -> str:
    """That of the compiler."""
    text = (ROOT / "tilewright" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def metadata() -> str:
    """What pip knows of it."""
    fields = [
        "Metadata-Version: 2.3",
        f"Name: {NAME}",
        f"Version: {version()}",
        "Summary: Loads and runs models that tilewright has compiled",
        "License-Expression: Apache-2.0",
        "Requires-Python: >=3.11",
        "Requires-Dist: numpy>=1.26",
    ]
    for extra, package in (("sign", "cryptography>=42"), ("dtypes", "ml_dtypes>=0.5"), ("images", "pillow>=10")):
        fields += [f"Provides-Extra: {extra}", f"Requires-Dist: {package}; extra == '{extra}'"]
    return "\n".join([*fields, "Description-Content-Type: text/markdown", "", ABOUT])


def build(folder: Path) -> Path:
    """Write the wheel into a folder; the same tree gives the same bytes."""
    about = f"{PACKAGE}-{version()}.dist-info"
    content = {
        **files(),
        f"{about}/licenses/LICENSE": (ROOT / "LICENSE").read_bytes(),
        f"{about}/METADATA": metadata().encode(),
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tilewright\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in content.items()]
    content[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,", ""]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{PACKAGE}-{version()}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr = 0o644 << 16
            archive.writestr(info, data, zipfile.ZIP_DEFLATED)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the wheel of tilewright-runtime.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("dist"))
    print(build(parser.parse_args().folder))


if __name__ == "__main__":
    main()
