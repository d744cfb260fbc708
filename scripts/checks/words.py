#!/usr/bin/env python3
"""One idea has one word, the field's, in code, messages, keys and pages (CONTRIBUTING.md, "Style").

    scripts/checks/words.py [ROOT]
        prints file:line: the word and the one to use; exit code 1 when there is anything
    scripts/checks/words.py --self-test

What is searched: lib, apps, docs, scripts, configs, slurm, cmake and the pages in the root. Names
are taken apart at underscores and capitals, so that GranuleView and granule_view are both found.
ALLOWED lists the uses that are another idea, by file and line.
"""

import re
import sys

import checking

FOLDERS = ["lib", "apps", "docs", "scripts", "configs", "slurm", "cmake"]
PAGES = [
    "CMakeLists.txt", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "ROADMAP.md",
    "KNOWN_ISSUES.md",
]
SUFFIXES = {
    ".h", ".cpp", ".cu", ".cuh", ".def", ".in", ".md", ".py", ".sh", ".sbatch", ".yaml", ".txt",
    ".cmake", ".json",
}

# A pattern over the words of a line (in small letters, separated by spaces),
# and what to write instead.
WORDS = [
    (r"charts?", "table of plans"),
    (r"granules?|granular", "block, blockwise"),
    (r"cells?", "role, or the role's format"),
    (r"images?", "packet"),
    (r"kept", "stored"),
    (r"coded", "encoded"),
    (r"told", "noted, reported"),
    (r"besides?", "next to, in addition to"),
    (r"meetings?", "rendezvous"),
    (r"shared notes?", "file store"),
    (r"rehears\w*", "dry run"),
    (r"journeys?", "pending request"),
    (r"lone", "self, single"),
    (r"turn memory", "shared slots"),
    (r"verbs?", "command"),
    (r"octets?", "Vec8"),
    (r"tally", "CastCounts"),
    (r"peaks", "AmaxBits"),
    (r"rooms?|walls?|houses?", "module, layering rule, architecture; space, memory"),
    (r"mend(s|ed|ing)?", "fix"),
    (r"in turns", "alternately"),
    (r"at home", "in its module"),
    (r"as (many|much) as one likes|as one likes", "any number of"),
    (r"turned(?! (out|off|on|into|to))|k turn", "columnwise, transposed"),
    (
        r"(take|takes|taking|took) turns|(in|same) turn|turns? of (unit|segment)",
        "slot, shared slots; alternate",
    ),
    (
        r"(?<!in )(?<!last )(?<!out of )(?<!to )(?<!take )(?<!takes )(?<!(?:in|of) the )(?<!takes "
        r"the )(?<!in its )(?<!in their )places?",
        "location, slot, mark, position, or what it is",
    ),
    (r"stands?(?! (for|in|still)\b)", "is"),
    (r"(go|goes|going|gone|went) on", "continue, resume; progress"),
    (r"rows? of (a|the) (plan|method|table of plan)s?", "plan"),
]
NAMES = [
    (re.compile(r"\bcodes_transposed\b"), "columnwise"),
    (re.compile(r"^\s*//+<? What "), "a comment with a subject and a verb, not What"),
    (
        re.compile(r"(?i)operands(?:\.|->|::)(?:make|fill|complete|read|place|sample)\("),
        "a verb with its object",
    ),
    (
        re.compile(r"\b(?:x|w|dy|smoothed_w)_(?:\.|->)(?:make|fill|complete|read|place|sample)\("),
        "a verb with its object",
    ),
    (re.compile(r"Plan[&*]* row\b|\brow = (?:plan_named|resolve_plan)\b|\brow\(\""), "plan"),
]
PATTERNS = [(re.compile(rf"(?<![a-z])(?:{pattern})(?![a-z])"), word) for pattern, word in WORDS]

# (file, part of the line)
ALLOWED = [
    (r"lib/data/chat/dialogue\.cpp", r"\"images?\""),  # keys of records
    # of a Markdown table
    (r"lib/config/docs_page\.cpp|apps/fp8train/.*bench.*|scripts/(bench|gpu_check)/.*", r"cell"),
    # of a container
    (r"slurm/container\.sbatch|docs/use/slurm\.md|docs/develop/architecture\.md", r"(?i)image"),
    (r".*", r"wall-clock|wall clock|wall_clock_breakdown|[Ww]all time|-Wall"),
    # where the lanes of a barrier meet
    (r"scripts/kernel_resources\.py", r"meeting"),
    (r"scripts/soak/.*|scripts/.*story.*", r"split\("),                # a text to train on
    (r"lib/train/checkpoint/state_formats\.cpp", r"kept"),  # of earlier versions
    (r"scripts/checks/words\.py", r""),
]
ALLOWED = [(re.compile(file), re.compile(part)) for file, part in ALLOWED]


def words_of(line):
    """The words of a line: identifiers taken apart, in small letters, separated by one space."""
    line = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", line)
    return " ".join(re.findall(r"[a-z0-9]+", line.lower()))


def files_of(root):
    for folder in FOLDERS:
        yield from sorted((root / folder).rglob("*"))
    for page in PAGES:
        yield root / page


def check(root):
    problems = []
    for file in files_of(root):
        if not file.is_file() or (file.suffix not in SUFFIXES and file.name != "CMakeLists.txt"):
            continue
        path = file.relative_to(root).as_posix()
        for number, line in enumerate(file.read_text(errors="replace").split("\n"), 1):
            words = words_of(line)
            for pattern, word, text in [(*entry, words) for entry in PATTERNS] + [
                (*entry, line) for entry in NAMES
            ]:
                found = pattern.search(text)
                if found and not any(
                    allowed.fullmatch(path) and part.search(line) for allowed, part in ALLOWED
                ):
                    problems.append(f'{path}:{number}: "{found.group(0).strip()}": write {word}')
    return problems


# A small tree with what is to be found, and where.
PLANTED = {
    "lib/ops/bad.h": (
        "struct GranuleView;\nint granule_of();\n// The value is kept.\nvoid go_on();\n"
        "// in turns, as one likes\n"
    ),
    "lib/ops/good.h": (
        "// granularity, keep, wall-clock time, a file that turned out to differ\n"
        "int decoded, encoded, cellar;\n"
    ),
    "docs/page.md": "A row of the chart\n",
    "README.md": "Every verb is a command.\n",
    "lib/nn/bad.cpp": (
        "const bool turned = true;\nint kTurn, turn_of_unit;\n// Buffers take turns.\n"
        "SourceMark place_of(int place);\noperands.make(context);\nLinearOperands::fill(x);\n"
        "smoothed_w_->make(x);\n// A name stands before the value.\n"
        "// Runs that went on, while others go on.\nbool go_one, online;\n"
    ),
    "lib/nn/good.cpp": (
        "// A file turned out to differ; 0 turns it off; what codes stand for; a stand-in; it "
        "takes place in its place.\n"
        "bool in_place, standing; operands.make_operands(x); replaced(placement, placed);\n"
    ),
    "lib/precision/bad.cpp": (
        'PrecisionPlan row = resolve_plan(request);\nauto request = row("bf16");\n'
        '// a row of the table of plans\n/// What a plan has.\n'
    ),
    "lib/precision/good.cpp": "TensorFormat row = blockwise(per::row);  // a row of x\n",
}
EXPECTED = [
    "README.md:1",
    "docs/page.md:1",
    "lib/ops/bad.h:1",
    "lib/ops/bad.h:2",
    "lib/ops/bad.h:3",
    "lib/ops/bad.h:4",
    "lib/ops/bad.h:5",
    "lib/ops/bad.h:5",
    *(f"lib/nn/bad.cpp:{line}" for line in (1, 2, 2, 3, 4, 5, 6, 7, 8, 9)),
    *(f"lib/precision/bad.cpp:{line}" for line in (1, 2, 3, 4)),
]

if __name__ == "__main__":
    sys.exit(checking.main("words", PLANTED, EXPECTED, check))
