#!/usr/bin/env python3
"""How large files, functions and lines are that somebody has to read.

    scripts/checks/sizes.py [ROOT]
        prints file:line: what is too large; exit code 1 when there is anything
    scripts/checks/sizes.py --self-test

Functions of lib and apps have at most six parameters and 60 lines, from brace to brace. Files of
lib, apps and tests have at most 400 lines, 600 where most of them are one class. Lines of code,
scripts, YAML and pages have at most 100 columns; raw strings, and tables, links and printed text in
pages, may have more. Lambdas count for the function around them, and of #if and #else the first
branch is read.

budget.txt has the lines that apps and each module of lib may have. A change that needs more raises
them in the same commit and says what they buy; one that leaves more than 100 unused lowers them.
"""

import collections
import re
import sys

import checking

MOST_PARAMETERS = 6
MOST_LINES = 60
MOST_FILE_LINES = 400
MOST_CLASS_LINES = 600
MOST_COLUMNS = 100
BUDGET = "scripts/checks/budget.txt"
UNUSED_LINES = 100

CODE = {".h", ".cpp", ".cu", ".cuh", ".in"}
SCRIPTS = {".py", ".sh", ".sbatch", ".cmake", ".yaml", ".yml", ".def"}
SCRIPT_NAMES = {"CMakeLists.txt", "Dockerfile", "run", ".clang-tidy", ".clang-format"}
FOLDERS = [
    "lib", "apps", "tests", "scripts", "cmake", "configs", "docs", "slurm", "packaging", ".ci",
]
# Data as programs made it.
FIXTURES = re.compile(r"tests/golden/.*(?<!\.py)(?<!\.sh)|tests/fuzz/corpus/.*")

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/"""  # comments
    r"""|(?P<raw>R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)")"""
    r"""|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'""",
    re.S,
)
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b")
# What a { opens where no function does.
SCOPE = re.compile(r"(?:^|\s)(namespace|class|struct|union|enum|extern)\b")
CLASS = re.compile(r"\b(?:class|struct|union)\s+(\w+)")
TYPE_AND_NAME = re.compile(r"[\w>&*\]]\s+[&*]*[\w:~]+\s*\(")  # not the use of a macro
NO_FUNCTION = {"if", "for", "while", "switch", "catch", "return", "else", "do", "using", "typedef"}
# The end of a signature: what may be between its parameters and its body.
AFTER_PARAMETERS = re.compile(
    r"\s*(?:const\b|noexcept\b|override\b|final\b|try\b|&&?|->\s*[\w:<>,\s*&]+)*\s*"
)
ATTRIBUTES = re.compile(
    r"\[\[.*?\]\]"
    r"|\b(?:alignas|__launch_bounds__|__attribute__|requires)\s*\((?:[^()]|\([^()]*\))*\)"
)
NAME = re.compile(r"(~?[A-Za-z_]\w*|operator\s*(?:\(\)|\[\]|[^\s\w(]{1,3}|[\w:]+))\s*$")


def blank(text):
    """Code with comments, the content of strings, preprocessor lines and the branches after the
    first one of an #if as spaces; lines stay where they are. Also the lines of raw strings."""
    raw_lines = set()

    def replace(match):
        found = match.group(0)
        if match.group("raw"):
            first = text.count("\n", 0, match.start()) + 1
            raw_lines.update(range(first, first + found.count("\n") + 1))
        return re.sub(r"[^\n]", " ", found)

    lines, branches, continued = TOKEN.sub(replace, text).split("\n"), [], False
    for number, line in enumerate(lines):
        condition = CONDITION.match(line)
        if condition:
            kind = condition.group(1)
            if kind.startswith("if"):
                branches.append(True)
            elif kind == "endif":
                branches = branches[:-1]
            elif branches:
                branches[-1] = False
        directive = continued or line.lstrip().startswith("#")
        continued = directive and line.rstrip().endswith("\\")
        if directive or not all(branches):
            lines[number] = ""
    return "\n".join(lines), raw_lines


def parameters_of(head):
    """The name and the number of parameters where `head` ends with a signature, else None."""
    head = ATTRIBUTES.sub(" ", head)
    head = re.sub(r"^\s*(?:(?:public|private|protected)\s*:)*", "", head)
    depth = angles = 0
    groups = []  # (first character, last, commas) of parentheses outside of others
    for at, letter in enumerate(head):
        if letter == "(":
            if depth == 0:
                groups.append([at, at, 0])
                angles = 0
            depth += 1
        elif letter == ")":
            depth -= 1
            groups[-1][1] = at
        elif depth == 0 and letter == "=" and groups and "operator" not in head[:at]:
            break
        elif depth == 0 and letter == "=" and not re.search(r"\boperator\s*[^\s\w]*$", head[:at]):
            return None  # a variable
        elif depth == 1:
            angles += (letter == "<") - (letter == ">" and head[at - 1] != "-")
            groups[-1][2] += letter == "," and angles <= 0
    for first, last, commas in groups:
        name = NAME.search(head[:first])
        if not name or head[first + 1 : last].strip() == "" and "operator" == name.group(1):
            continue
        if name.group(1) in NO_FUNCTION or name.group(1).isupper() or name.group(1) == "decltype":
            return None
        rest = head[last + 1 :]
        end = AFTER_PARAMETERS.match(rest).end()
        if rest[end : end + 1] in ("", ":", "="):
            empty = head[first + 1 : last].strip() in ("", "void")
            return name.group(1), 0 if empty else commas + 1
        return None
    return None


def functions_of(code):
    """(line of the opening brace, name, number of parameters, lines) of each function; lines is 0
    for a declaration."""
    # Of each open brace: scope, body or list; the name of its class, or its function; the depth of
    # parentheses around it.
    scopes = []
    begin, parentheses = 0, 0
    for match in re.finditer(r"[{}();]", code):
        letter, at = match.group(0), match.start()
        if letter in "()":
            parentheses += 1 if letter == "(" else -1
            continue
        inside = scopes and scopes[-1][0] != "scope"
        if letter == "{":
            head = code[begin:at]
            if inside or parentheses > 0:
                scopes.append(("list", None, parentheses))
                parentheses = 0
                continue
            last_word = re.search(r"[\w>]\s*$", head)
            signature = parameters_of(head)
            initializers = re.search(r"\)[^()]*(?<!:):(?!:)[^()]*", head)
            qualified = re.search(r"\b(const|noexcept|override|final|try)\s*$", head)
            if signature and not (initializers and last_word and not qualified):
                scopes.append(("body", (at, *signature), 0))
            elif signature or not (SCOPE.search(head) or not head.strip()):
                scopes.append(("list", None, 0))  # a member's initial value, a table
            else:
                scopes.append(("scope", CLASS.findall(head)[-1:], 0))
                begin = match.end()
        elif letter == "}":
            if not scopes:
                continue
            kind, function, parentheses = scopes.pop()
            if kind == "body":
                start, name, count = function
                line = code.count("\n", 0, start) + 1
                yield line, name, count, code.count("\n", 0, at) + 2 - line
            if kind != "list":
                begin = match.end()
        elif not inside and parentheses == 0:
            signature = parameters_of(code[begin:at])
            is_constructor = scopes and signature and [signature[0]] == scopes[-1][1]
            if is_constructor or signature and TYPE_AND_NAME.search(code[begin:at]):
                start = begin + len(code[begin:at]) - len(code[begin:at].lstrip())
                yield code.count("\n", 0, start) + 1, *signature, 0
            begin = match.end()


def check_functions(path, code):
    for line, name, parameters, lines in functions_of(code):
        if parameters > MOST_PARAMETERS:
            yield (
                f"{path}:{line}: {name} has {parameters} parameters (at most {MOST_PARAMETERS}): "
                "pass a struct"
            )
        if lines > MOST_LINES:
            yield f"{path}:{line}: {name} has {lines} lines (at most {MOST_LINES}): divide it"


def long_lines(path, lines, exempt):
    """Lines with more columns than MOST_COLUMNS, of a page only those that can be broken."""
    is_page, fenced = path.endswith(".md"), False
    for number, line in enumerate(lines, 1):
        if is_page and line.lstrip().startswith("```"):
            fenced = not fenced
        if len(line) <= MOST_COLUMNS or number in exempt:
            continue
        if is_page and (fenced or line.lstrip().startswith("|") or re.search(r"\]\(|://", line)):
            continue
        yield f"{path}:{number}: {len(line)} columns (at most {MOST_COLUMNS})"


def is_one_class(text):
    """Whether three quarters of a file are the body of one class, or functions of it."""
    lines = collections.Counter()
    for body, name in re.findall(r"(^class (\w+)[^;]*?\{$.*?^\};$)", text, re.M | re.S):
        lines[name] = max(lines[name], body.count("\n"))
    functions = r"(^(?:\w[^;{}()]*?\W)?(\w+)::~?\w+\(.*?^\}$)"
    for body, name in re.findall(functions, text, re.M | re.S):
        lines[name] += body.count("\n") + 2
    return max(lines.values(), default=0) > 0.75 * text.count("\n")


def files_of(root):
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*"))
    yield from sorted(root.glob("*"))


def over_budget(root, used):
    """`used`: lines of each module."""
    granted = {}
    for number, line in enumerate((root / BUDGET).read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            module, lines = line.split()
            granted[module] = number, int(lines)
    for module in sorted(used.keys() | granted.keys()):
        number, most = granted.get(module, (1, 0))
        have = used.get(module, 0)
        if have > most:
            yield f"{BUDGET}:{number}: {module} has {have} lines (at most {most})"
        elif have < most - UNUSED_LINES or have == 0:
            yield f"{BUDGET}:{number}: {module} has {have} lines; lower its {most}"


def check(root):
    problems, used = [], {}
    for file in files_of(root):
        path = file.relative_to(root).as_posix()
        is_code = file.suffix in CODE
        if not (is_code or file.suffix in {*SCRIPTS, ".md"} or file.name in SCRIPT_NAMES):
            continue
        if not file.is_file() or FIXTURES.fullmatch(path):
            continue
        text = file.read_text(errors="replace")
        lines, raw_lines = text.split("\n"), set()
        top = path.split("/")[0]
        most = MOST_CLASS_LINES if is_code and is_one_class(text) else MOST_FILE_LINES
        if top in ("lib", "apps", "tests") and len(lines) - 1 > most:
            problems.append(f"{path}:1: {len(lines) - 1} lines (at most {most})")
        if is_code and top in ("lib", "apps"):
            module = "apps" if top == "apps" else "/".join(path.split("/")[:2])
            used[module] = used.get(module, 0) + len(lines) - 1
        if is_code:
            code, raw_lines = blank(text)
            if top in ("lib", "apps"):
                problems += check_functions(path, code)
        problems += long_lines(path, lines, raw_lines)
    return problems + list(over_budget(root, used))


def body(lines):
    return "".join(f"  use({line});\n" for line in range(lines - 2))


LONG = "x" * (MOST_COLUMNS + 1)
SEVEN = "int a, int b, int c, int d, int e, int f, int g"
# A small tree with what is to be found, and where.
PLANTED = {
    "lib/nn/bad.h": (
        f"struct Layer {{\n  Layer({SEVEN});\n  int x{{1}};\n"
        f"  virtual void run(\n      {SEVEN}) = 0;\n"
        f"  template <class T> static std::map<int, T> of({SEVEN}) const noexcept;\n}};\n"
        f"Layer::Layer({SEVEN}) : x{{a}}, base(b) {{\n{body(MOST_LINES + 1)}}}\n"
        f"#if X\nvoid twice(int a) {{\n#else\nvoid twice({SEVEN}) {{\n#endif\n}}\n"
        f"namespace fp8train {{ namespace {{\nbool operator()({SEVEN}) const {{ return a; }}\n"
        f"auto after() -> std::vector<int> {{\n{body(MOST_LINES + 1)}}}\n}}}}\n"
    ),
    "lib/nn/good.cpp": (
        "// void f(int a, int b, int c, int d, int e, int f, int g);\n"
        'const char* kText = "void f(int a, int b, int c, int d, int e, int f, int g) {";\n'
        "const std::array<int, 7> kTable = make(1, 2, 3, 4, 5, 6, 7);\n"
        "constexpr int kRows[] = {{1, 2, 3, 4, 5, 6, 7}, of(1, 2, 3, 4, 5, 6, 7)};\n"
        "FP8TRAIN_TABLE(int a, int b, int c, int d, int e, int f, int g);\n"
        "void six(std::map<int, int> a, std::function<void(int, int)> b, int c, int d, int e,\n"
        "         int f = 3) {\n  call(1, 2, 3, 4, 5, 6, 7);\n"
        "  const auto inner = [](int a, int b, int c, int d, int e, int f) {};\n}\n"
        f"int most() {{\n{body(MOST_LINES)}}}\n"
        f'const char* kRaw = R"({LONG}\n)";\n'
    ),
    "apps/long.cpp": "int x;\n" * (MOST_FILE_LINES + 1),
    "apps/class.cpp": "class A {\n" + "  int x;\n" * (MOST_CLASS_LINES - 2) + "};\n",
    "apps/larger.cpp": "class A {\n" + "  int x;\n" * (MOST_CLASS_LINES - 1) + "};\n",
    "apps/methods.cpp": "void A::f() {\n  g();\n}\n\n" * (MOST_CLASS_LINES // 4),
    "apps/functions.cpp": "void f() {\n  g();\n}\n\n" * (MOST_FILE_LINES // 4 + 1),
    "apps/two.cpp": ("class A {\n" + "  int x;\n" * (MOST_FILE_LINES // 2) + "};\n") * 2,
    "apps/columns.cpp": f"// {LONG}\n",
    "tests/long.py": "x = 1\n" * (MOST_FILE_LINES + 1),
    "tests/golden/data.yaml": f"{LONG}\n",
    "scripts/columns.sh": f"echo ok\necho {LONG}\n",
    "docs/page.md": f"| {LONG} |\n[{LONG}](page.md)\n```\n{LONG}\n```\n{LONG}\n",
    "CMakeLists.txt": f"# {LONG}\n",
    "configs/a.yaml": f"{LONG}: 1\n",
    "lib/os/a.h": "int x;\n" * 50,
    "lib/io/a.h": "int x;\n" * 50,
    BUDGET: "# lines\nlib/os 49\nlib/io 150\nlib/nn 999\napps 3013\nlib/gone 0\n",
}
EXPECTED = [
    *(f"lib/nn/bad.h:{line}" for line in (2, 4, 6, 8, 8, MOST_LINES + 16, MOST_LINES + 17)),
    "apps/larger.cpp:1", "apps/functions.cpp:1", "apps/two.cpp:1",
    "apps/long.cpp:1", "apps/columns.cpp:1", "tests/long.py:1", "scripts/columns.sh:2",
    "docs/page.md:6", "CMakeLists.txt:1", "configs/a.yaml:1",
    *(f"{BUDGET}:{line}" for line in (6, 4, 2)),
]

if __name__ == "__main__":
    sys.exit(checking.main("sizes", PLANTED, EXPECTED, check))
