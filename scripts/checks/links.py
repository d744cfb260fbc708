#!/usr/bin/env python3
"""Every relative link of a page leads to a file, and every #anchor to a heading of it.

    scripts/checks/links.py [ROOT]      prints page:line: the link; exit code 1 when one is broken
    scripts/checks/links.py --self-test
"""

import re
import sys

import checking

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


# A small tree with broken links, and where they are.
PLANTED = {
    "a.md": (
        "[b](docs/b.md#two-words) [x](docs/c.md)\n[y](docs/b.md#three) [z](https://example.org) "
        "`[k](nowhere.md)`\n"
    ),
    "docs/b.md": "## Two words\n[up](../a.md) [self](#two-words)\n",
}
EXPECTED = ["a.md:1", "a.md:2"]

if __name__ == "__main__":
    sys.exit(checking.main("links", PLANTED, EXPECTED, check))
