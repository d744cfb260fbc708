#!/usr/bin/env python3
"""Every relative link of a page leads to a file, and every #anchor to a heading of it.

    scripts/checks/links.py [ROOT]      prints page:line: the link; exit code 1 when one is broken
    scripts/checks/links.py --self-test
"""

import re
import sys
import tempfile
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SKIPPED = {"build", ".git"}


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", page.read_text(), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


def check(root):
    problems = []
    for page in sorted(root.rglob("*.md")):
        name = page.relative_to(root)
        if name.parts[0] in SKIPPED:
            continue
        for number, line in enumerate(page.read_text().split("\n"), 1):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                linked = (page.parent / file) if file else page
                if not linked.exists():
                    problems.append(f"{name.as_posix()}:{number}: {target}: no such file")
                elif anchor and linked.suffix == ".md" and anchor not in anchors(linked):
                    problems.append(f"{name.as_posix()}:{number}: {target}: no such heading")
    return problems


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "a.md").write_text("[b](docs/b.md#two-words) [x](docs/c.md)\n[y](docs/b.md#three) [z](https://example.org) `[k](nowhere.md)`\n")
        (root / "docs/b.md").write_text("## Two words\n[up](../a.md) [self](#two-words)\n")
        found = [problem.rsplit(": ", 1)[0] for problem in check(root)]
    expected = ["a.md:1: docs/c.md", "a.md:2: docs/b.md#three"]
    if found != expected:
        print("links.py --self-test: expected", expected, "found", found)
        return 1
    print(f"links.py --self-test: {len(expected)} broken links found")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    problems = check(root)
    print("\n".join(problems + [f"links: {len(problems)} broken"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
