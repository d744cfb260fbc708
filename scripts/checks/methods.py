#!/usr/bin/env python3
"""No file of lib/ and apps/ knows a method or a model family by name: what a plan does is in its
roles, so that plans which nobody ships work too, and what is particular to a family is in its file.

    scripts/checks/methods.py [ROOT]
        prints file:line: what is wrong; exit code 1 when there is anything
    scripts/checks/methods.py --self-test

The rule: the names below, those of the plans, and those of the programs whose keys
lib/config/dialects reads are only in
  - lib/precision/plans.cpp (the plans), lib/config/dialects and lib/config/foreign_names.cpp (other
    programs' keys), anywhere;
  - comments elsewhere, inside parentheses, which cite the source of a formula and may span lines.
A comment cites a paper or a file of the source, never a note that is not in this repository
(research/NAME.md). Code, strings and help texts included, never names one: where a text lists
plans, it asks plans.cpp. Outside of lib/model/families no code compares the name of a family: it
asks a virtual function of ModelFamily.
"""

import re
import sys

import checking

NOTE = re.compile(r"research/[\w-]+\.md")
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
ALLOWED = re.compile(
    r"lib/precision/plans\.cpp|lib/config/dialects/\w+\.(h|cpp)|lib/config/foreign_names\.cpp"
)
METHODS = [
    "TransformerEngine", "Transformer Engine", "MS-AMP", "msamp", "torchao", "DeepSeek", "FP8-LM",
    "torchtitan",
]
WORDS = ["Accelerate", "COAT"]  # in small letters they are words of the language
FAMILY = re.compile(r"\bfamily\w*(?:\(\))?(?:->|\.)name\(\)\s*[=!]=")
TOKEN = re.compile(r'(//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def plan_names(root):
    """Names of the plans that are methods (those with a hyphen), from the table in plans.cpp."""
    plans = root / "lib/precision/plans.cpp"
    return (
        re.findall(r'\{"([a-z0-9]+(?:-[a-z0-9]+)+)",', plans.read_text()) if plans.exists() else []
    )


def program_names(root):
    """Names of the programs whose keys are read, from the table kPrograms."""
    file = root / "lib/config/dialects/pass.cpp"
    text = file.read_text() if file.exists() else ""
    table = re.search(r"kPrograms\[\].*? = \{([\w,\s]+)\}", text)
    if file.exists() and not table:
        sys.exit(
            "methods.py: lib/config/dialects/pass.cpp has no kPrograms[] = {NAME, ...} any more; "
            "program_names() has to follow it"
        )
    names = re.findall(r"\w+", table[1]) if table else []
    words = [word.lower() for word in WORDS]
    return [name for name in names if name not in words]


def pattern_for(root):
    methods = "|".join(re.escape(name) for name in METHODS + program_names(root))
    whole = "|".join(re.escape(name) for name in WORDS + plan_names(root))
    return re.compile(rf"(?i:{methods})|(?<![\w-])(?:{whole})(?![\w-])")


def comment_lines(text):
    """{line number: comment text} and {line number: code with comments as blanks}."""
    comments, code = {}, list(text)
    for match in TOKEN.finditer(text):
        if not match.group(1):
            continue
        first = text.count("\n", 0, match.start()) + 1
        for offset, line in enumerate(match.group(1).split("\n")):
            comments[first + offset] = comments.get(first + offset, "") + line
        for at in range(match.start(), match.end()):
            code[at] = "\n" if code[at] == "\n" else " "
    return comments, dict(enumerate("".join(code).split("\n"), 1))


def bare_names(comments, pattern):
    """(line, name) of names outside of parentheses. Lines that follow one
    another are one comment."""
    found, depth, previous = [], 0, None
    for number in sorted(comments):
        line = comments[number]
        depth = depth if previous == number - 1 else 0
        previous = number
        names = {match.start(): match.group(0) for match in pattern.finditer(line)}
        for at, letter in enumerate(line):
            depth = depth + 1 if letter == "(" else max(0, depth - 1) if letter == ")" else depth
            if at in names and depth == 0:
                found.append((number, names[at]))
    return found


def check(root):
    problems, pattern = [], pattern_for(root)
    for top in ("lib", "apps"):
        for file in sorted((root / top).rglob("*")):
            path = file.relative_to(root).as_posix()
            if file.suffix not in SOURCE_SUFFIXES or not file.is_file() or ALLOWED.fullmatch(path):
                continue
            comments, code = comment_lines(file.read_text(errors="replace"))
            for number, line in code.items():
                if FAMILY.search(line) and not path.startswith("lib/model/families/"):
                    problems.append(
                        f"{path}:{number}: code asks for a family by name; make it a virtual "
                        "function of ModelFamily"
                    )
                for match in pattern.finditer(line):
                    if not line.lstrip().startswith("#include"):
                        problems.append(
                            f'{path}:{number}: code names the method "{match.group(0)}"'
                        )
            for number, line in comments.items():
                if NOTE.search(line):
                    problems.append(
                        f"{path}:{number}: a comment cites a note; cite the paper or the source's "
                        "file"
                    )
            for number, name in bare_names(comments, pattern):
                problems.append(
                    f'{path}:{number}: a comment names the method "{name}"; cite it in parentheses '
                    'or leave it out'
                )
    return problems


# A small tree with what is to be found, and where.
PLANTED = {
    "lib/precision/plans.cpp": '// TransformerEngine\nRow r = {{"te-fast", te}};\n',
    "lib/config/dialects/accelerate.cpp": '// Accelerate\nauto k = "msamp";\n',
    "lib/config/dialects/pass.cpp": "(*kPrograms[])(Pass&) = {accelerate, nanotron, megatron};\n",
    "lib/ops/good.h": (
        "// The scale (TransformerEngine,\n// common/recipe) of\n// accelerates te-fastest\n"
        "int coated;\n"
    ),
    "lib/ops/bad.h": (
        '// As torchao does\nauto a = "msamp-o1";\nint x;  // (a) COAT\n// te-fast\n'
        "int use_Megatron_;\n// research/coat.md\n"
        'auto n = "Nanotron";\nbool b = config.family->name() == "x";\n'
    ),
    "apps/main.cpp": 'print("Whose: TransformerEngine");\nauto url = "https://x";  // DeepSeek\n',
}
EXPECTED = [
    "apps/main.cpp:1", "apps/main.cpp:2", "lib/ops/bad.h:1", "lib/ops/bad.h:2", "lib/ops/bad.h:3",
    "lib/ops/bad.h:4", "lib/ops/bad.h:5", "lib/ops/bad.h:6", "lib/ops/bad.h:7", "lib/ops/bad.h:8",
]

if __name__ == "__main__":
    sys.exit(checking.main("methods", PLANTED, EXPECTED, check))
