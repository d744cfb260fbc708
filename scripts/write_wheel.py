#!/usr/bin/env python3
"""Writes a wheel (PEP 427) of a folder that scripts/bundle.sh has packed: for scripts/wheel.sh.

    scripts/write_wheel.py BUNDLE OUT

The program and its libraries are the package `fp8train`; the command is a script that replaces
itself by the program."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

MAIN = '''"""The program of the package fp8train, a native one."""

import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parent / "bin" / "fp8train"


def main():
    os.execv(PROGRAM, [str(PROGRAM), *sys.argv[1:]])


if __name__ == "__main__":
    main()
'''


def glibc_of(folder):
    """The newest version of glibc's symbols that a file asks for: "2_36"."""
    newest = (2, 17)
    for file in [*folder.glob("bin/*"), *folder.glob("lib/*")]:
        symbols = subprocess.run(
            ["objdump", "-T", file], capture_output=True, text=True, check=True
        ).stdout
        newest = max([
            newest,
            *((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)),
        ])
    return f"{newest[0]}_{newest[1]}"


def machine_of(program):
    """The architecture of a program, as wheels name it: the ELF header's e_machine."""
    header = program.read_bytes()[:20]
    return {62: "x86_64", 183: "aarch64"}[int.from_bytes(header[18:20], "little")]


def digest(content):
    return (
        "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    )


class Wheel:
    def __init__(self, path):
        self.file = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, mode=0o644):
        content = content.encode() if isinstance(content, str) else content
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))  # the same content is the same wheel
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.file.writestr(info, content)
        self.record.append(f"{name},{digest(content)},{len(content)}")

    def close(self, folder):
        self.record.append(f"{folder}/RECORD,,")
        self.file.writestr(
            zipfile.ZipInfo(f"{folder}/RECORD", (1980, 1, 1, 0, 0, 0)),
            "\n".join(self.record) + "\n",
        )
        self.file.close()


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bundle, out = Path(sys.argv[1]), Path(sys.argv[2])
    root = Path(__file__).resolve().parents[1]
    version = re.search(
        r"project\(fp8train\s+VERSION\s+([\d.]+)", (root / "CMakeLists.txt").read_text()
    ).group(1)
    machine = machine_of(bundle / "bin" / "fp8train")
    tag = f"py3-none-manylinux_{glibc_of(bundle)}_{machine}"
    path = out / f"fp8train-{version}-{tag}.whl"
    wheel = Wheel(path)
    wheel.add("fp8train/__init__.py", "")
    wheel.add("fp8train/__main__.py", MAIN)
    for file in sorted(bundle.rglob("*")):
        if file.is_file() and file.parts[len(bundle.parts)] in ("bin", "lib"):
            wheel.add(
                f"fp8train/{file.relative_to(bundle)}",
                file.read_bytes(),
                0o755 if os.access(file, os.X_OK) else 0o644,
            )
    folder = f"fp8train-{version}.dist-info"
    wheel.add(
        f"{folder}/METADATA",
        f"Metadata-Version: 2.1\nName: fp8train\nVersion: {version}\n"
        "Summary: Trains transformers in 8-bit floating "
        "point\nLicense: Apache-2.0\nRequires-Python: >=3.8\n"
        f"Description-Content-Type: text/markdown\n\n{(root / 'README.md').read_text()}",
    )
    wheel.add(
        f"{folder}/WHEEL",
        "Wheel-Version: 1.0\nGenerator: scripts/write_wheel.py\nRoot-Is-Purelib: false\n"
        f"Tag: {tag}\n",
    )
    wheel.add(
        f"{folder}/entry_points.txt", "[console_scripts]\nfp8train = fp8train.__main__:main\n"
    )
    wheel.add(f"{folder}/LICENSE", (root / "LICENSE").read_bytes())
    wheel.close(folder)
    print(f"wheel: {path} ({path.stat().st_size >> 20} MiB)")


if __name__ == "__main__":
    main()
