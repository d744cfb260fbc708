#!/usr/bin/env python3
"""Registers, shared memory, stack, code size and instructions per element of CUDA kernels, from the
objects of a build.

    scripts/kernel_resources.py [--build build] [--arch 90] [--all] [FILE.cu ...]
        a table of all kernels
    scripts/kernel_resources.py --check lib/ops/support/kernel_table.json
        fails where a kernel has grown
    scripts/kernel_resources.py --write lib/ops/support/kernel_table.json
        takes the figures of this build over

Nothing is compiled: the machine code is read from the .cu.o files of the build, in seconds. The
table has a line for each kernel, its instances together (the most of any); with --all a line for
each instance.

The JSON file names the kernels that a step's time depends on, by a regular expression for the start
of the demangled name, and how their loops are to be read. Instructions per element are those of the
loop that a thread runs over its elements, divided by the elements of a pass: the bytes that the
loop loads 16 at a time, divided by `reads`, what an element takes of them.
    passes    so many loops, the largest, are added; 1
    tile      the elements of a pass of the loops around them, whose instructions are added too;
              without it they are not
    repeats   how often all of that is done for an element; 1
Of a loop, what lies between a branch backwards and its target, those instructions count that a pass
takes which moves as much as it can in wide accesses, on the shortest way: no slow paths, no
remainders.

--check fails where code size, registers or instructions per element of such a kernel, or the code
of a whole file, exceed the table by more than `margin`; where a named kernel is gone; where kernels
of a file use more of the stack, for spilled registers, than the table says. Less than the table is
fine: --write then takes it over. It keeps the declarations. `fp8train bench step --device
meta:h200` reads instructions per element from the table.
"""

import argparse
import ctypes
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FATBIN_MAGIC = 0xBA55ED50
FATBIN_ELF = 2  # kinds of entries: PTX, machine code
FATBIN_ZSTD = 0x8000  # nvcc packs machine code of more than some megabytes
INSTRUCTION = 16  # bytes, since sm_70
# The low twelve bits of an instruction.
BRANCH, EXIT, NOP = 0x947, 0x94D, 0x918
LOAD_GLOBAL, STORE_GLOBAL = 0x981, 0x986
SHARED = {0x984, 0x988, 0x388}  # loads, and stores from either register file
SPLIT, JOIN = 0x945, 0x941  # BSSY says where lanes that part meet again, BSYNC goes there
ALWAYS = 7  # as a predicate
ACCESS_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 8, 6: 16}
REGISTER_COUNT, FRAME_SIZE = 0x2F, 0x11  # attributes of .nv.info
SMALL_CODE = 512  # bytes that code may grow by in any case


def elf_sections(data):
    """[(name, kind, bytes, info)] of a 64-bit ELF file; no bytes where it holds none."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, length, _, info, _, _ in headers:
        end = data.index(b"\0", strings + name)
        nobits = kind == 8
        yield (
            data[strings + name : end].decode(), length,
            b"" if nobits else data[offset : offset + length], info,
        )


def unpacked(packed, size):
    """A zstd frame; Python has no decoder, but Debian's own tools need the library."""
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError:
        sys.exit("libzstd.so.1 is needed to read the packed machine code of a large file")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    out = ctypes.create_string_buffer(size)
    written = library.ZSTD_decompress(
        out, ctypes.c_size_t(size), packed, ctypes.c_size_t(len(packed))
    )
    if written != size:
        sys.exit("machine code is packed in a way that this script does not know")
    return out.raw


def machine_code(object_file, arch):
    """The ELF files for sm_`arch` in an object of nvcc."""
    for name, _, fatbin, _ in elf_sections(object_file.read_bytes()):
        if name != ".nv_fatbin":
            continue
        start = 0
        while start + 16 <= len(fatbin):
            magic, _, header, size = struct.unpack_from("<IHHQ", fatbin, start)
            if magic != FATBIN_MAGIC:
                break
            at, start = start + header, start + header + size
            while at < start:
                kind, _, header, size = struct.unpack_from("<HHIQ", fatbin, at)
                words = struct.unpack_from("<16I", fatbin, at)
                body = fatbin[at + header:at + header + size]
                at += header + size
                if kind == FATBIN_ELF and words[7] == arch:
                    yield unpacked(body[:words[4]], words[14]) if words[10] & FATBIN_ZSTD else body


def attributes(info):
    """{(attribute, symbol): value} of a .nv.info section."""
    found, at = {}, 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if attribute in (REGISTER_COUNT, FRAME_SIZE):
                symbol, value = struct.unpack_from("<II", info, at)
                found[attribute, symbol] = value
            at += size
    return found


class Kernel:
    def __init__(self, name, code, registers, stack, shared):
        self.name, self.code = name, code
        self.registers, self.stack, self.shared = registers, stack, shared


def kernels_of(object_file, arch):
    kernels = []
    for cubin in machine_code(object_file, arch):
        sections = list(elf_sections(cubin))
        info = next((attributes(data) for name, _, data, _ in sections if name == ".nv.info"), {})
        shared = {
            name[len(".nv.shared.") :]: length
            for name, length, _, _ in sections
            if name.startswith(".nv.shared.")
        }
        for name, _, data, symbol in sections:
            if name.startswith(".text."):
                kernel = name[len(".text."):]
                symbol &= 0xFFFFFF  # the registers are above
                kernels.append(
                    Kernel(
                        kernel, data, info.get((REGISTER_COUNT, symbol), 0),
                        info.get((FRAME_SIZE, symbol), 0), shared.get(kernel, 0),
                    )
                )
    return kernels


class Instruction:
    def __init__(self, index, low, high):
        self.operation = low & 0xFFF
        self.always = low >> 12 & 0xF == ALWAYS and (
            self.operation != BRANCH or high >> 23 & 0xF == ALWAYS
        )
        self.barrier = low >> 16 & 0xF
        self.target = None
        if self.operation == BRANCH:
            # in units of 1 KiB; bits 16 to 23: of 4 bytes
            far = (low >> 34) - (1 << 30 if low >> 63 else 0)
            self.target = index + 1 + ((far << 8) + (low >> 16 & 0xFF)) * 4 // INSTRUCTION
        elif self.operation == SPLIT:
            self.target = index + 1 + (low >> 32) // INSTRUCTION
        width = ACCESS_BYTES.get(high >> 9 & 7, 0)
        self.loaded = 16 if self.operation == LOAD_GLOBAL and width == 16 else 0
        wide_global = self.operation in (LOAD_GLOBAL, STORE_GLOBAL) and width >= 8
        self.moved = width if wide_global or self.operation in SHARED else 0
        self.stored = width if wide_global and self.operation == STORE_GLOBAL else 0


class Loop:
    """Instructions first .. last. Of them: how many a pass takes, outside of loops inside it, on
    the way that moves the most bytes in wide accesses and is the shortest of such ways; the bytes
    that it loads 16 at a time, and those that it stores."""

    def __init__(self, first, last):
        self.first, self.last = first, last
        self.instructions = self.loaded = self.stored = 0

    def holds(self, other):
        return other is not self and self.first <= other.first and other.last <= self.last

    def measure(self, code, inside):
        """`inside`: the loops in it, each of which is passed through once without being counted."""
        # bytes moved, minus the instructions, bytes loaded, bytes stored
        best = {self.first: (0, 0, 0, 0)}
        meeting = {}  # where lanes of a barrier meet
        ends = []
        for at in range(self.first, self.last + 1):
            if at not in best:
                continue
            step = code[at]
            counted = step.operation != NOP and not any(
                loop.first <= at <= loop.last for loop in inside
            )
            moved, spared, loaded, stored = best[at]
            here = (
                moved + step.moved * counted, spared - counted, loaded + step.loaded * counted,
                stored + step.stored * counted,
            )
            targets = [] if step.always and step.operation in (BRANCH, EXIT, JOIN) else [at + 1]
            if step.operation == SPLIT:
                meeting[step.barrier] = step.target
            elif step.operation == JOIN:
                targets.append(max(meeting.get(step.barrier, at + 1), at + 1))
            elif step.operation == BRANCH:
                targets.append(step.target)
            for target in targets:
                if target == self.first:
                    ends.append(here)
                elif at < target <= self.last:
                    best[target] = max(best.get(target, here), here)
        if ends:
            _, spared, self.loaded, self.stored = max(ends)
            self.instructions = -spared


def loops_of(text):
    code = [
        Instruction(at // INSTRUCTION, *struct.unpack_from("<QQ", text, at))
        for at in range(0, len(text), INSTRUCTION)
    ]
    ends = {}
    for index, step in enumerate(code):
        if step.operation == BRANCH and step.target < index:
            ends[step.target] = max(ends.get(step.target, 0), index)
    loops = [Loop(first, last) for first, last in sorted(ends.items())]
    for loop in loops:
        loop.measure(code, [other for other in loops if loop.holds(other)])
    return loops


def instructions_per_element(text, declared):
    """None where no loop loads 16 bytes at a time."""
    loops = loops_of(text)
    loading = [loop for loop in loops if loop.loaded]
    # What an unrolled loop leaves over is done by one that follows, of the same kind.
    remainders = {
        loop
        for before, loop in zip(loading, loading[1:])
        if loop.loaded < before.loaded and bool(loop.stored) == bool(before.stored)
    }
    chosen = sorted(
        (loop for loop in loading if loop not in remainders), key=lambda loop: -loop.instructions
    )[: declared.get("passes", 1)]
    if not chosen:
        return None
    result = sum(loop.instructions * declared["reads"] / loop.loaded for loop in chosen)
    if "tile" in declared:
        around = [
            loop
            for loop in loops
            if loop not in chosen and any(loop.holds(other) for other in chosen)
        ]
        result += sum(loop.instructions / declared["tile"] for loop in around)
    return round(result * declared.get("repeats", 1), 1)


def demangle(names):
    text = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout
    return [
        re.sub(r"fp8train::(ops::cuda::)?|\(anonymous namespace\)::", "", line)
        for line in text.splitlines()
    ]


def short_name(signature):
    """`void norm_kernel<4, float>(...)` -> norm_kernel"""
    return re.match(r"(?:void )?([\w:~]+)", signature)[1]


def read_build(build, arch, wanted=()):
    """{file: [Kernel]} with demangled names."""
    commands = build / "compile_commands.json"
    if not commands.exists():
        sys.exit(f"{commands} is missing: build first (scripts/build.sh)")
    outputs = re.findall(r" -o (\S+\.cu\.o)", commands.read_text())
    objects = [build / output for output in outputs]
    files = {
        path.name[:-2]: kernels_of(path, arch)
        for path in objects
        if path.exists() and (not wanted or path.name[:-2] in wanted)
    }
    if not any(files.values()):
        sys.exit(
            f"no machine code for sm_{arch} in the objects of {commands}: build with nvcc "
            "(scripts/build.sh)"
        )
    everything = [kernel for kernels in files.values() for kernel in kernels]
    for kernel, name in zip(everything, demangle([kernel.name for kernel in everything])):
        kernel.name = name
    return files


def print_table(files, arch, every_instance):
    print(
        f"| file (sm_{arch}) | kernel | instances | registers | shared bytes | stack bytes | code "
        "bytes |\n|---|---|---|---|---|---|---|"
    )
    for file, kernels in sorted(files.items()):
        lines = {}
        for kernel in kernels:
            lines.setdefault(
                kernel.name if every_instance else short_name(kernel.name), []
            ).append((kernel.registers, kernel.shared, kernel.stack, len(kernel.code)))
        for name, instances in sorted(lines.items()):
            print(
                f"| {file} | {name} | {len(instances)} | "
                f"{' | '.join(str(max(column)) for column in zip(*instances))} |"
            )
    for file, kernels in sorted(files.items()):
        print(
            f"{file}: {len(kernels)} kernels, {sum(len(kernel.code) for kernel in kernels)} bytes "
            "of code"
        )


def measured(files, table):
    """(figures of the table's kernels, figures of the files); a kernel that is gone has None."""
    kernels = {}
    for name, declared in table["kernels"].items():
        found = [
            kernel
            for kernels_of_file in files.values()
            for kernel in kernels_of_file
            if re.match(f"(?:void )?{declared['match']}", kernel.name)
        ]
        kernels[name] = None if len(found) != 1 else {
            "instructions_per_element": instructions_per_element(found[0].code, declared),
            "code_bytes": len(found[0].code),
            "registers": found[0].registers,
            "stack_bytes": found[0].stack}
        if len(found) > 1:
            sys.exit(
                f"{name}: `{declared['match']}` means {len(found)} kernels: "
                f"{', '.join(kernel.name for kernel in found[:3])}"
            )
    of_files = {
        file: {
            "code_bytes": sum(len(kernel.code) for kernel in of_file),
            "stack_bytes": sum(kernel.stack for kernel in of_file),
        }
        for file, of_file in sorted(files.items())
    }
    return kernels, of_files


def grown(figures, then, margin):
    """Figures that exceed those of the table."""
    for figure, now in figures.items():
        before = then.get(figure)
        slack = SMALL_CODE if figure == "code_bytes" else 0
        factor = 1 if figure == "stack_bytes" else 1 + margin
        if now is None:
            yield "no loop loads 16 bytes at a time"
        elif before is None or now > before * factor + slack:
            yield f"{figure.replace('_', ' ')} {now}, {before} in the table"


def check(files, table):
    kernels, of_files = measured(files, table)
    problems = []
    for name, figures in kernels.items():
        then = table["kernels"][name]
        found = (
            [f"no kernel is named `{then['match']}` any more"]
            if figures is None
            else grown(figures, then, table["margin"])
        )
        problems += [f"{name}: {problem}" for problem in found]
    for file, figures in of_files.items():
        problems += [
            f"{file}: {problem}"
            for problem in grown(figures, table["files"].get(file, {}), table["margin"])
        ]
    return problems


def text_of(table):
    """A line for each kernel and each file."""
    def lines(entries):
        return ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items()
        )

    return (
        f'{{\n "margin": {table["margin"]},\n "kernels": {{\n{lines(table["kernels"])}\n }},\n'
        f' "files": {{\n{lines(table["files"])}\n }}\n}}\n'
    )


def write(files, table, path):
    kernels, table["files"] = measured(files, table)
    for name, figures in kernels.items():
        if figures is None:
            sys.exit(
                f"{name}: no kernel is named `{table['kernels'][name]['match']}`; correct it in "
                f"{path}"
            )
        if figures["instructions_per_element"] is None:
            sys.exit(
                f"{name}: no loop of `{table['kernels'][name]['match']}` loads 16 bytes at a time; "
                f"name another kernel in {path}"
            )
        table["kernels"][name].update(figures)
    path.write_text(text_of(table))


def self_test():
    """A loop with a load of 16 bytes, a branch around three instructions, another around a
    remainder that loads less, and a loop inside it."""
    def branch(at, target, predicate=ALWAYS):
        far = (target - at - 1) * INSTRUCTION // 4
        return ((far >> 8) & (1 << 30) - 1) << 34 | (
            far & 0xFF
        ) << 16 | predicate << 12 | BRANCH, ALWAYS << 23

    add, load, narrow = (
        (ALWAYS << 12 | 0x221, 0), (ALWAYS << 12 | LOAD_GLOBAL, 6 << 9),
        (ALWAYS << 12 | LOAD_GLOBAL, 4 << 9),
    )
    steps = [
        add, load, branch(2, 6, 0), add, add, add, branch(6, 9, 1), narrow, add, add,
        branch(10, 9, 0), branch(11, 1, 0), (EXIT | ALWAYS << 12, 0),
    ]
    code = b"".join(struct.pack("<QQ", *step) for step in steps)
    loops = {(loop.first, loop.last): (loop.instructions, loop.loaded) for loop in loops_of(code)}
    assert loops == {(1, 11): (4, 16), (9, 10): (2, 0)}, loops
    assert instructions_per_element(code, {"reads": 4}) == 1.0
    assert instructions_per_element(code, {"reads": 4, "repeats": 2}) == 2.0
    figures = {
        "code_bytes": 4096, "registers": 40, "stack_bytes": 0, "instructions_per_element": 9.0,
    }
    assert not list(grown(figures, figures, 0.1))
    assert (
        len(
            list(
                grown(
                    {
                        "code_bytes": 6000, "registers": 50, "stack_bytes": 8,
                        "instructions_per_element": 10.0,
                    },
                    figures,
                    0.1,
                )
            )
        )
        == 4
    )
    assert not list(
        grown(
            {
                "code_bytes": 4400, "registers": 44, "stack_bytes": 0,
                "instructions_per_element": 9.8,
            },
            figures,
            0.1,
        )
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="only these .cu files")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--arch", default="90")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--check", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--self-test", action="store_true", help="checks the script itself")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
        return 0
    arch = int(re.match(r"\d+", arguments.arch)[0])
    files = read_build(arguments.build, arch, {Path(file).name for file in arguments.files})
    if arguments.check:
        table = json.loads(arguments.check.read_text())
        problems = check(files, table)
        print(
            "\n".join(problems)
            or f"{len(table['kernels'])} kernels and {len(files)} files are within "
            f"{table['margin']:.0%} of {arguments.check}"
        )
        return 1 if problems else 0
    if arguments.write:
        write(files, json.loads(arguments.write.read_text()), arguments.write)
        return 0
    print_table(files, arch, arguments.all)
    return 0


if __name__ == "__main__":
    sys.exit(main())
