#!/usr/bin/env python3
"""Fills in what Jinja, set up as transformers does for chat templates, makes of small templates.

    tests/golden/make_jinja.py        reads and writes tests/golden/jinja_cases.jsonl

A line there is a case: the rule that it shows, a template, its variables, and "output", or "error":
true where the template is refused. A new case needs no result; one that had another is printed.
Cases of the rule "error" must be refused, others must not. The environment is that of transformers
5.24 and 4.57.1 (utils/chat_template_utils.py), without strftime_now, whose result changes each day.
Needs: pip install jinja2==3.1.6
"""

import json
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

CASES = Path(__file__).parent / "jinja_cases.jsonl"


class Generation(jinja2.ext.Extension):
    """{% generation %}: marks the text of an answer, which is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("text_of")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def text_of(self, caller):
        return caller()


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.TemplateError(message)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


def result_of(case):
    try:
        template = environment().from_string(case["template"])
        return {"output": template.render(case["variables"])}
    except (
        jinja2.TemplateError, ArithmeticError, LookupError, SyntaxError, TypeError, ValueError,
    ):
        return {"error": True}


def main():
    cases = [json.loads(line) for line in open(CASES)]
    rules = [case["rule"] for case in cases]
    assert len(set(rules)) == len(rules), [rule for rule in rules if rules.count(rule) > 1]
    for case in cases:
        before = {key: case.pop(key) for key in ("output", "error") if key in case}
        result = result_of(case)
        refused = "error" in result
        assert refused == case["rule"].startswith("error: "), (case, result)
        assert refused or " at 0x" not in result["output"], (case, result)
        if before and before != result:
            print(case["rule"], "was", before, "is", result)
        case.update(result)
    CASES.write_text("".join(json.dumps(case) + "\n" for case in cases))
    print(len(cases), "cases,", sum("error" in case for case in cases), "of them refused")


if __name__ == "__main__":
    main()
