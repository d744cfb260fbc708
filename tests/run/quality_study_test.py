#!/usr/bin/env python3
"""scripts/bench/quality.py on a tiny model, and the arithmetic of its tables. Takes the program."""

import contextlib
import io
import json
import math
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/bench"))

import quality  # noqa: E402
from quality_study import figure, gaps, models, outliers, report  # noqa: E402
from quality_study.program import Program  # noqa: E402
from quality_study.results import Results  # noqa: E402

PROGRAM = sys.argv.pop() if len(sys.argv) > 1 else ROOT / "build/bin/fp8train"
TINY = models.Model("tiny", models.llama(256, 1, 2, 1, 256), 2, 1e-3, 12, 8, 1, 1000, 500)


def lines_of(table):
    """Lines of results of {plan: [loss of base 1, 2, ...]}."""
    return [{"model": "m", "condition": "plain", "base": base, "plan": plan, "base_steps": 1,
             "steps": 1, "tokens_per_step": 1, "as_trained": [loss], "in_bf16": [loss]}
            for plan, losses in table.items() for base, loss in enumerate(losses, 1)]


class Arithmetic(unittest.TestCase):
    def test_two_plans_are_the_paired_difference(self):
        # Differences 1 and 3: mean 2, deviation sqrt(2), of their mean 1.
        deviation, freedom = gaps.residual_deviation(
            {1: {"bf16": 1.0, "a": 2.0}, 2: {"bf16": 3.0, "a": 6.0}})
        self.assertEqual(freedom, 1)
        self.assertAlmostEqual(deviation, 1.0)
        study = gaps.study(lines_of({"bf16": [99.5, 100.5], "a": [100.5, 103.5]}), "in_bf16")
        gap = study.gaps["a"]
        self.assertAlmostEqual(gap.mean, 100 * (100.5 / 99.5 + 103.5 / 100.5 - 2) / 2)
        self.assertAlmostEqual(gap.error, 1.0)
        self.assertAlmostEqual(study.deviation, 1.0)

    def test_bases_that_differ_do_not_count(self):
        study = gaps.study(lines_of({"bf16": [1.0, 2.0, 4.0], "a": [1.01, 2.02, 4.04]}), "in_bf16")
        self.assertAlmostEqual(study.gaps["a"].mean, 1.0)
        self.assertAlmostEqual(study.gaps["a"].deviation, 0.0)
        self.assertGreater(study.spread, 50)

    def test_a_run_that_is_missing_leaves_the_least_squares_of_the_others(self):
        # Without base 2 of b the rest is a 2 x 2 table, whose residuals are 0.5, and b's is 0.
        deviation, freedom = gaps.residual_deviation(
            {1: {"bf16": 1.0, "a": 2.0, "b": 7.0}, 2: {"bf16": 3.0, "a": 6.0}})
        self.assertEqual(freedom, 1)
        self.assertAlmostEqual(deviation, 1.0)

    def test_a_base_without_bf16_is_left_out(self):
        lines = lines_of({"bf16": [1.0, 1.0, 1.0], "a": [1.0, 1.02], "b": [1.0, 1.0, 1.05, 9.0]})
        study = gaps.study(lines, "in_bf16")
        self.assertEqual(study.complete, 2)
        self.assertEqual((study.gaps["a"].runs, study.gaps["b"].runs), (2, 3))

    def test_the_control_is_not_pooled(self):
        losses = {"bf16": [1.0, 1.0, 1.0], "a": [1.0, 1.0, 1.0], models.CONTROL: [1.0, 1.3, 0.9]}
        study = gaps.study(lines_of(losses), "in_bf16")
        self.assertAlmostEqual(study.deviation, 0.0)
        self.assertGreater(study.gaps[models.CONTROL].error, 10)

    def test_critical_values_are_those_of_the_tables(self):
        # Student's t for a single comparison; C. W. Dunnett, Biometrics 20 (1964), two-sided 95 %.
        for comparisons, freedom, expected in ((1, 10, 2.228), (2, 20, 2.38), (5, 20, 2.73),
                                               (8, 20, 2.90), (8, 100_000, 2.65)):
            self.assertAlmostEqual(gaps.critical_value(comparisons, freedom), expected, delta=0.04)

    def test_outliers_are_in_the_channels_that_their_kind_names(self):
        self.assertEqual(outliers.channels_of("block", 512), list(range(128, 256)))
        self.assertEqual(len(outliers.channels_of("one", 512)), 1)
        each = outliers.channels_of("each", 512)
        self.assertEqual([channel // 128 for channel in each], [0, 1, 2, 3])
        with self.assertRaises(ValueError):
            outliers.channels_of("none", 512)

    def test_separation_is_between_the_closest_plans(self):
        gaps_of = {"te-current": [5.0, 6.0, 7.0], "te-delayed": [9.0, 9.0, 9.0],
                   "te-blockwise": [1.0, 1.0, 1.0], "deepseek-v3": [2.0, 2.0, 2.0]}
        gaps_of = {plan: dict(enumerate(values)) for plan, values in gaps_of.items()}
        mean, errors = report.separation(gaps_of)
        self.assertAlmostEqual(mean, 4.0)
        self.assertAlmostEqual(errors, 4.0 * 3 ** 0.5)  # differences 3, 4 and 5
        mean, errors = report.separation({
            plan: {0: values[0], 1: values[1]} for plan, values in gaps_of.items()
        })
        self.assertAlmostEqual(mean, 3.5)
        self.assertTrue(math.isnan(errors))
        del gaps_of["te-current"][0], gaps_of["te-delayed"][0]  # a base is compared with itself
        self.assertAlmostEqual(report.separation(gaps_of)[0], 4.5)


    def test_a_plan_whose_scales_are_not_known_is_in_the_table_and_the_figure(self):
        losses = {"bf16": [1.0], "zz-new": [1.5], "te-current": [1.2]}
        lines = [
            line | {"model": "llama-512", "condition": "outliers-one-18"}
            for line in lines_of(losses)
        ]
        with tempfile.TemporaryDirectory() as folder:
            results = Results(pathlib.Path(folder) / "results.jsonl")
            for line in lines:
                results.add(line)
            rows = [row for row in report.text(results).splitlines() if row.startswith("| `")]
            drawing = figure.svg(results)
        self.assertEqual(rows, ["| `te-current` | tensor | +20.00 |", "| `zz-new` | - | +50.00 |"])
        self.assertEqual(drawing.count("<circle"), 2)


class TinyStudy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        cls.root, cls.results = root, root / "results.jsonl"
        words = "the cat sat on the mat while a dog ran to fetch its stick and barked\n"
        (root / "text.txt").write_text(words * 300)
        models.MODELS["tiny"] = TINY

    @classmethod
    def tearDownClass(cls):
        del models.MODELS["tiny"]
        cls.folder.cleanup()

    def command(self, action, *more, results="results.jsonl"):
        log = io.StringIO()
        with contextlib.redirect_stderr(log):
            code = quality.main([action, str(self.root / "text.txt"), "--program", str(PROGRAM),
                                 "--results", str(self.root / results), "--out",
                                 str(self.root / "runs"), "--models", "tiny", "--bases",
                                 "1,2", *more])
        return code, log.getvalue()

    def test_runs_are_appended_once_and_reported(self):
        plans = ("--plans", "te-delayed,coat")
        code, log = self.command("train", *plans)
        self.assertEqual(code, 0, log)
        lines = [json.loads(line) for line in self.results.read_text().splitlines()]
        self.assertEqual(len(lines), 8)
        self.assertTrue(all(len(line["in_bf16"]) == models.EVALUATIONS for line in lines))
        by_plan = {line["plan"]: line for line in lines if line["base"] == 1}
        self.assertNotEqual(by_plan["te-delayed"]["as_trained"], by_plan["te-delayed"]["in_bf16"])
        self.assertEqual(by_plan["coat"]["as_trained"], by_plan["coat"]["in_bf16"])
        for plan in ("te-delayed", "coat"):  # from the same checkpoint, with the same batches
            self.assertAlmostEqual(by_plan[plan]["in_bf16"][-1], by_plan["bf16"]["in_bf16"][-1],
                                   delta=0.05)
        code, log = self.command("train", *plans)
        self.assertEqual((code, log), (0, ""))
        results = Results(self.results)
        self.assertIn("| `te-delayed` | 2 |", report.text(results))
        xml.etree.ElementTree.fromstring(figure.svg(results))

    def test_a_report_replaces_what_is_between_the_comments_of_a_page(self):
        page = self.root / "page.md"
        page.write_text(f"before\n{quality.BEGIN}\nold\n{quality.END}\nafter\n")
        quality.main(["report", str(page), "--results", str(self.root / "none.jsonl")])
        text = page.read_text()
        self.assertNotIn("old", text)
        self.assertTrue(text.startswith("before\n") and text.endswith("\nafter\n"))
        page.write_text("no comments")
        with self.assertRaises(SystemExit):
            quality.main(["report", str(page), "--results", str(self.root / "none.jsonl")])

    def test_an_error_of_the_program_is_reported_and_not_recorded(self):
        code, log = self.command("train", "--plans", "no-such-plan", "--bases", "1",
                                 results="failed.jsonl")
        self.assertEqual(code, 1)
        self.assertIn("no-such-plan", log)
        plans = {line["plan"] for line in Results(self.root / "failed.jsonl").lines}
        self.assertEqual(plans, {models.BASELINE, models.CONTROL})

    def test_outliers_leave_the_function_as_it_is(self):
        program = Program(PROGRAM, self.root / "others", self.root / "text.txt")
        base = program.base(TINY, 1)
        change = {}
        for plan in ("bf16", "te-current", "te-blockwise"):
            losses = [program.loss(outliers.with_outliers(base, condition), plan, 500)
                      for condition in ("plain", "outliers-one-18", "outliers-block-18")]
            change[plan] = [abs(loss - losses[0]) for loss in losses[1:]]
        self.assertEqual(change["bf16"], [0, 0])
        self.assertGreater(min(change["te-current"]), 10 * change["te-blockwise"][1])
        self.assertGreater(min(change["te-current"]), 1e-3)


if __name__ == "__main__":
    unittest.main()
