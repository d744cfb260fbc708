#!/usr/bin/env python3
"""Walks the includes of lib/ and apps/ and holds them against the layering rules
(docs/develop/architecture.md).

    scripts/checks/layers.py [ROOT]
        prints file:line: what is wrong; exit code 1 when there is anything
    scripts/checks/layers.py --self-test

CMake already makes undeclared includes fail to compile as far as include directories go; this
check also catches what include directories cannot: use of a module that is reached only through
another one, vendor headers outside their files, printing and exiting in libraries, a method's name
outside the table of plans.
"""

import re
import sys
from pathlib import Path

import checking

SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

# What may include which vendor header: (pattern over the header, predicate over the
# path, words for the message).
VENDORS = [
    (
        re.compile(r"yaml-cpp/"),
        lambda p: p.startswith(("lib/config/", "apps/")),
        "yaml-cpp belongs to lib/config and apps",
    ),
    (
        re.compile(r"CLI/"),
        lambda p: p.startswith(("lib/config/", "apps/")),
        "CLI11 belongs to lib/config and apps",
    ),
    (re.compile(r"spdlog/"), lambda p: p.startswith("lib/base/"), "spdlog belongs to lib/base"),
    (
        re.compile(r"(oneapi/)?dnnl"),
        lambda p: p == "lib/ops/gemm/onednn.h",
        "oneDNN belongs to lib/ops/gemm/onednn.h",
    ),
    (
        re.compile(r"(cuda|cublas|cudnn|curand|cub/|cooperative_groups|nvtx|mma\.h)"),
        lambda p: is_cuda(p),
        "CUDA headers belong under a cuda/ folder, or to .cu, .cuh, *_cuda.*, cublaslt* and cudnn* "
        "files",
    ),
    (
        re.compile(r"nlohmann/"),
        lambda p: p.startswith(
            (
                "lib/base/json_",
                "lib/model/families/",
                "lib/io/",
                "lib/config/",
                "lib/data/",
                "lib/train/",
                "apps/",
            )
        ),
        "nlohmann json belongs to base/json_*, model/families, io, data, config, train and apps",
    ),
    (
        re.compile(r"pcre2\.h"),
        lambda p: p == "lib/data/tokenizers/regex.cpp",
        "PCRE2 belongs to lib/data/tokenizers/regex.cpp",
    ),
    (
        re.compile(r"utf8proc\.h"),
        lambda p: p == "lib/data/tokenizers/unicode.cpp",
        "utf8proc belongs to lib/data/tokenizers/unicode.cpp",
    ),
    (
        re.compile(r"sentencepiece"),
        lambda p: p == "lib/data/tokenizers/sentencepiece.cpp",
        "sentencepiece belongs to lib/data/tokenizers/sentencepiece.cpp",
    ),
    (
        re.compile(r"(zlib|zstd)\.h"),
        lambda p: p == "lib/data/byte_stream.cpp",
        "zlib and zstd belong to lib/data/byte_stream.cpp",
    ),
    (
        re.compile(r"xxhash\.h"),
        lambda p: p == "lib/base/content_hash.cpp",
        "xxHash belongs to lib/base/content_hash.cpp",
    ),
]
ONE_FILE_VENDORS = {"mpi.h": "lib/comm/", "nccl.h": "lib/comm/"}  # in one .cpp each

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PRINTS_OR_EXITS = re.compile(
    r"std::(cout|cerr|clog)\b"
    r"|(?<![\w.:>])(?:std::)?(?:printf|puts|abort|exit|_exit|quick_exit)\s*\("
)
DEVICE_IFDEF = re.compile(
    r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\b(FP8TRAIN_(CUDA|NCCL|MPI)\w*|__CUDACC__|__CUDA_ARCH__)"
)
# Modules that know devices by their traits and device/device_questions.h.
NEUTRAL = {"tensor", "precision", "nn", "model", "optim", "parallel", "engine"}
ASKS_DEVICE = re.compile(r"\bkind\(\)\s*[=!]=\s*DeviceKind::")
STRING = re.compile(r'"([^"\\]*)"')
# The one header that hides the difference between host and device compilers, and the handler
# of the second stop signal.
IFDEF_ALLOWED = {"lib/base/host_device.h"}
EXIT_ALLOWED = {"lib/base/signals.cpp"}


def is_cuda(path):
    """Whether a file is of the cuda backend alone."""
    file = Path(path)
    return (
        "/cuda/" in path
        or file.suffix in {".cu", ".cuh"}
        or file.stem.endswith("_cuda")
        or file.stem.startswith(("cublaslt", "cudnn"))
    )


def strip_comments(text):
    """Comments become spaces; strings and line numbers stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)

    def replace(match):
        found = match.group(0)
        return found if found[0] in "\"'" else re.sub(r"[^\n]", " ", found)

    return pattern.sub(replace, text)


def read_modules(root):
    """Modules in order, and what each declares: {module: set of modules}."""
    text = (root / "cmake/modules.cmake").read_text()
    match = re.search(r"set\(FP8TRAIN_MODULES ([^)]*)\)", text)
    if not match:
        sys.exit("layers.py: cmake/modules.cmake holds no set(FP8TRAIN_MODULES ...)")
    order = match.group(1).split()
    declared = {}
    for module in order:
        listing = root / "lib" / module / "CMakeLists.txt"
        cmake = re.sub(r"#[^\n]*", "", listing.read_text()) if listing.exists() else ""
        call = re.search(r"fp8train_module\(\s*%s\b([^)]*)" % re.escape(module), cmake)
        depends = (
            re.search(r"\bDEPENDS\s+([a-z0-9_\s]+?)(?=\s*(?:[A-Z_]{2,}\b|$))", call.group(1))
            if call
            else None
        )
        declared[module] = set(depends.group(1).split()) if depends else set()
    return order, declared


def read_topics(root):
    """The folders of lib/ops in order, the last of them the one that dispatches; none where the
    module has no folders."""
    listing = root / "lib/ops/CMakeLists.txt"
    match = (
        re.search(r"set\(FP8TRAIN_OPS_TOPICS ([^)]*)\)", listing.read_text())
        if listing.exists()
        else None
    )
    return match.group(1).split() if match else []


def plan_names(root):
    """Names of the plans that are methods (those with a hyphen), from the table in plans.cpp."""
    plans = root / "lib/precision/plans.cpp"
    return (
        set(re.findall(r'\{"([a-z0-9]+(?:-[a-z0-9]+)+)",', plans.read_text()))
        if plans.exists()
        else set()
    )


class Check:
    def __init__(self, root):
        self.root = root
        self.order, self.declared = read_modules(root)
        self.topics = read_topics(root)
        self.rows = plan_names(root)
        self.includes = {}  # of headers in lib: path -> [(line, path)]
        self.problems = []
        self.one_file_users = {header: [] for header in ONE_FILE_VENDORS}

    def complain(self, path, line, text):
        self.problems.append(f"{path}:{line}: {text}")

    def run(self):
        for module in self.order:
            for dependency in sorted(self.declared[module]):
                if dependency not in self.order or self.order.index(dependency) >= self.order.index(
                    module
                ):
                    self.complain(
                        f"lib/{module}/CMakeLists.txt",
                        1,
                        f"'{dependency}' does not come before '{module}'",
                    )
        for top in ("lib", "apps"):
            for file in sorted((self.root / top).rglob("*")):
                if file.suffix in SOURCE_SUFFIXES and file.is_file():
                    self.check_file(file)
        self.find_cycles()
        for header, users in self.one_file_users.items():
            if len(users) > 1:
                self.complain(
                    users[1][0],
                    users[1][1],
                    f"<{header}> is included by {users[0][0]} already; one .cpp only",
                )
        return self

    def check_file(self, file):
        path = file.relative_to(self.root).as_posix()
        parts = path.split("/")
        module = parts[1] if parts[0] == "lib" else None
        text = file.read_text(errors="replace")
        lines = strip_comments(text).split("\n")
        if module is not None and module not in self.declared:
            self.complain(path, 1, f"lib/{module} is not a module of cmake/modules.cmake")
            return
        if file.suffix in {".h", ".cuh"} and "#pragma once" not in text:
            self.complain(path, 1, "a header needs #pragma once")
        for number, line in enumerate(lines, 1):
            include = INCLUDE.match(line)
            if include:
                self.check_include(file, path, module, number, include.group(1), include.group(2))
                continue
            if (
                file.suffix in {".h", ".cuh"}
                and path not in IFDEF_ALLOWED
                and not is_cuda(path)
                and DEVICE_IFDEF.match(line)
            ):
                self.complain(
                    path,
                    number,
                    "no #if on a device or library in a header; leave files out in CMake",
                )
            if module is None:
                continue
            if path not in EXIT_ALLOWED and PRINTS_OR_EXITS.search(line):
                self.complain(
                    path,
                    number,
                    "a library never prints and never exits: throw an error of base/error.h",
                )
            if module in NEUTRAL and ASKS_DEVICE.search(line):
                self.complain(
                    path,
                    number,
                    "no question for one device: ask DeviceTraits or device/device_questions.h",
                )
            if module != "config" and path != "lib/precision/plans.cpp":
                for literal in STRING.findall(line):
                    if literal in self.rows:
                        self.complain(
                            path, number, f'only lib/precision/plans.cpp knows the plan "{literal}"'
                        )

    def find_cycles(self):
        """Headers that include each other, by way of any others: reported once,
        where the circle closes."""
        done, open_files = set(), []

        def visit(path):
            open_files.append(path)
            for number, target in self.includes.get(path, []):
                if target in open_files:
                    circle = open_files[open_files.index(target):] + [target]
                    self.complain(path, number, "a cycle of includes: " + " -> ".join(circle))
                elif target not in done:
                    visit(target)
            open_files.pop()
            done.add(path)

        for path in sorted(self.includes):
            if path not in done:
                visit(path)

    def check_topics(self, path, number, header):
        """Inside lib/ops: a topic uses those before it. Only .cpp and .cu files use the folder that
        dispatches, which uses all."""
        source, target = path.split("/")[2], header.split("/")[1]
        if not self.topics or source == target or source == self.topics[-1]:
            return
        if source not in self.topics or target not in self.topics:
            self.complain(
                path,
                number,
                f"lib/ops/{source if source not in self.topics else target} is not in "
                "FP8TRAIN_OPS_TOPICS",
            )
        elif target == self.topics[-1]:
            if path.endswith((".h", ".cuh")):
                self.complain(path, number, f"a header of an operation never includes ops/{target}")
        elif self.topics.index(target) > self.topics.index(source):
            self.complain(
                path,
                number,
                f"ops/{source} may not use ops/{target}, which comes after it in "
                "FP8TRAIN_OPS_TOPICS",
            )

    def check_include(self, file, path, module, number, kind, header):
        for pattern, allowed, words in VENDORS:
            if kind == "<" and pattern.match(header) and not allowed(path):
                self.complain(path, number, f"<{header}>: {words}")
        if header in ONE_FILE_VENDORS:
            self.one_file_users[header].append((path, number))
            if file.suffix != ".cpp" or not path.startswith(ONE_FILE_VENDORS[header]):
                self.complain(
                    path, number, f"<{header}> belongs to one .cpp under {ONE_FILE_VENDORS[header]}"
                )
        if kind == "<":
            return
        target = header.split("/")[0]
        if "/" in header and target in self.declared:
            if not (self.root / "lib" / header).is_file():
                self.complain(path, number, f'"{header}" does not exist')
            elif module is not None and target != module:
                self.check_module_use(path, number, module, target)
            elif module == "ops":
                self.check_topics(path, number, header)
            if file.suffix in {".h", ".cuh"} and module is not None:
                self.includes.setdefault(path, []).append((number, "lib/" + header))
        elif module is not None:
            self.complain(
                path, number, f'"{header}": write the path from the module\'s name, "{module}/..."'
            )

    def check_module_use(self, path, number, module, target):
        if self.order.index(target) > self.order.index(module):
            advice = ": take a typed struct" if target == "config" else ""
            self.complain(
                path, number, f"'{module}' may not use '{target}', which comes after it{advice}"
            )
        elif target not in self.declared[module]:
            self.complain(
                path,
                number,
                f"'{module}' uses '{target}' without naming it in DEPENDS of "
                f"lib/{module}/CMakeLists.txt",
            )


# A small tree with what is to be found, and where.
PLANTED = {
    "cmake/modules.cmake": "set(FP8TRAIN_MODULES base device ops precision nn comm config train)\n",
    "lib/base/CMakeLists.txt": "fp8train_module(base SOURCES a.cpp PRIVATE_LIBRARIES fmt::fmt)\n",
    "lib/device/CMakeLists.txt": (
        "fp8train_module(device\n  SOURCES d.cpp\n  DEPENDS base\n  PRIVATE_LIBRARIES fmt::fmt)\n"
    ),
    "lib/ops/CMakeLists.txt": (
        "set(FP8TRAIN_OPS_TOPICS cast gemm dispatch)\nfp8train_module(ops DEPENDS base)\n"
    ),
    "lib/ops/dispatch/table.h": (
        '#pragma once\n#include "ops/cast/cast.h"\n#include "ops/gemm/gemm.h"\n'
    ),
    "lib/ops/cast/cast.h": "#pragma once\n",
    "lib/ops/cast/cast.cpp": (
        '#include "ops/cast/cast.h"\n#include "ops/dispatch/table.h"\n#include "ops/gemm/gemm.h"\n'
    ),
    "lib/ops/cast/tiles.cuh": (
        "#pragma once\n#include <cuda_runtime.h>\n#ifdef FP8TRAIN_CUDA_SHIM\n#endif\n"
    ),
    "lib/ops/gemm/gemm.h": (
        '#pragma once\n#include "ops/cast/cast.h"\n#include "ops/dispatch/table.h"\n'
    ),
    "lib/ops/gemm/gemm_cuda.cpp": "#include <cublasLt.h>\n",
    "lib/ops/loose/loose.h": '#pragma once\n#include "ops/cast/cast.h"\n',
    "lib/precision/CMakeLists.txt": "fp8train_module(precision DEPENDS device)\n",
    "lib/precision/plans.cpp": '#include "base/a.h"\nRow r = {{"te-fast", te}};\n',
    "lib/nn/CMakeLists.txt": "fp8train_module(nn DEPENDS base)\n",
    "lib/comm/CMakeLists.txt": "fp8train_module(comm DEPENDS base)\n",
    "lib/config/CMakeLists.txt": "fp8train_module(config DEPENDS base)\n",
    "lib/train/CMakeLists.txt": "fp8train_module(train DEPENDS base config)\n",
    "lib/base/a.h": '#pragma once\n// printf("in a comment")\nint snprintf_like();\n',
    "lib/base/a.cpp": '#include "base/a.h"\n#include <spdlog/spdlog.h>\n',
    "lib/device/d.h": "int no_pragma();\n",
    "lib/device/d.cpp": (
        '#include "base/a.h"\n#include <spdlog/spdlog.h>\n#include "d.h"\n#include "base/gone.h"\n'
    ),
    "lib/nn/x.h": "#pragma once\n#ifdef FP8TRAIN_CUDA\n#endif\n",
    "lib/nn/x.cpp": (
        '#include "comm/c.h"\n#include <cuda_runtime.h>\nvoid f() { std::exit(1); }\n'
        'auto p = "te-fast";\nbool b = device.kind() == DeviceKind::cuda;\n'
    ),
    "lib/nn/cuda/k.cpp": "#include <cuda_runtime.h>\n",
    "lib/comm/c.h": "#pragma once\n",
    "lib/comm/one.cpp": "#include <mpi.h>\n",
    "lib/comm/two.cpp": "#include <mpi.h>\n",
    "lib/config/s.h": "#pragma once\n",
    "lib/train/t.cpp": '#include "config/s.h"\n#include <yaml-cpp/yaml.h>\n',
    "apps/fp8train/main.cpp": (
        '#include "train/t.h"\n#include <CLI/CLI.hpp>\n#include <oneapi/dnnl/dnnl.hpp>\n'
        'int main() { printf("x"); }\n'
    ),
}
EXPECTED = [
    "apps/fp8train/main.cpp:1", "apps/fp8train/main.cpp:3", "lib/comm/two.cpp:1",
    "lib/device/d.cpp:2", "lib/device/d.cpp:3", "lib/device/d.cpp:4", "lib/device/d.h:1",
    "lib/nn/x.cpp:1", "lib/nn/x.cpp:2", "lib/nn/x.cpp:3", "lib/nn/x.cpp:4", "lib/nn/x.cpp:5",
    "lib/nn/x.h:2", "lib/ops/cast/cast.cpp:3", "lib/ops/gemm/gemm.h:3", "lib/ops/gemm/gemm.h:3",
    "lib/ops/loose/loose.h:2", "lib/precision/plans.cpp:1", "lib/train/t.cpp:2",
]


def check(root):
    return Check(root).run().problems


if __name__ == "__main__":
    sys.exit(checking.main("layers", PLANTED, EXPECTED, check))
