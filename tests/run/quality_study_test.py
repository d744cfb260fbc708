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
from quality_study import benefit, figure, gaps, models, outliers, report  # noqa: E402
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
    def test_a_gap_has_students_interval_over_bases(self):
        study = gaps.Study(lines_of({"bf16": [100, 200, 400], "a": [101, 204, 412]}), "in_bf16")
        gap = study.gap("a")  # 1, 2 and 3 %
        self.assertAlmostEqual(gap.mean, 2.0)
        self.assertEqual(gap.bases, 3)
        self.assertAlmostEqual(gap.deviation, 1.0)
        self.assertAlmostEqual(gap.half_width(), 4.3027 / 3 ** 0.5, places=4)
        self.assertGreater(study.spread(), 50)

    def test_quantiles_are_those_of_the_tables_of_students_t(self):
        for probability, freedom, expected in ((0.975, 1, 12.7062), (0.975, 3, 3.1824),
                                               (0.95, 17, 1.7396), (0.975, 1000, 1.9623)):
            self.assertAlmostEqual(gaps.quantile_of_t(probability, freedom), expected, places=3)

    def test_bf16_is_the_mean_of_its_replicates_and_each_has_a_gap_to_the_others(self):
        losses = {"bf16": [99.0], "bf16-halves": [101.0], "bf16-thirds": [103.0], "a": [102.01]}
        study = gaps.Study(lines_of(losses), "in_bf16")
        self.assertAlmostEqual(study.gap("a").mean, 1.0)
        self.assertAlmostEqual(study.gap("bf16-halves").mean, 0.0)
        self.assertAlmostEqual(study.gap("bf16-thirds").mean, 3.0)

    def test_a_base_without_bf16_is_left_out(self):
        study = gaps.Study(lines_of({"bf16": [1.0], "a": [1.0, 9.0]}), "in_bf16")
        self.assertEqual(study.gap("a").bases, 1)

    def test_the_contrast_is_the_mean_of_the_fp8_plans_on_bases_that_have_all(self):
        losses = {"bf16": [1, 1, 1], "te-current": [1.02, 1.03, 1.05], "coat": [1.04, 1.05],
                  "te-nvfp4": [2, 2, 2], models.CONTROL: [3, 3, 3]}
        family = gaps.Study(lines_of(losses), "in_bf16").family()
        self.assertEqual(family.bases, 2)
        self.assertAlmostEqual(family.mean, 3.5)  # 3 and 4 %

    def test_equivalence_asks_for_the_interval_and_not_for_the_mean(self):
        self.assertEqual(gaps.Gap(0.05, 0.02, 16).margin(), 0.10)
        self.assertEqual(gaps.Gap(0.09, 0.10, 16).margin(), 0.25)
        self.assertIsNone(gaps.Gap(0.0, 0.6, 16).margin())
        self.assertIsNone(gaps.Gap(-0.3, 0.02, 16).margin())
        self.assertIsNone(gaps.gap_of([0.0]).margin())

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
        plans = ("--plans", "bf16-halves,bf16-kicked,te-delayed,coat")
        code, log = self.command("train", *plans)
        self.assertEqual(code, 0, log)
        lines = [json.loads(line) for line in self.results.read_text().splitlines()]
        self.assertEqual(len(lines), 10)
        self.assertTrue(all(len(line["in_bf16"]) == models.EVALUATIONS for line in lines))
        by_plan = {line["plan"]: line for line in lines if line["base"] == 1}
        self.assertNotEqual(by_plan["te-delayed"]["as_trained"], by_plan["te-delayed"]["in_bf16"])
        self.assertEqual(by_plan["coat"]["as_trained"], by_plan["coat"]["in_bf16"])
        for plan in ("te-delayed", "coat"):  # from the same checkpoint, with the same batches
            self.assertAlmostEqual(by_plan[plan]["in_bf16"][-1], by_plan["bf16"]["in_bf16"][-1],
                                   delta=0.05)
        kicked = by_plan["bf16-kicked"]  # one step in FP8, evaluated in bf16
        self.assertEqual(kicked["as_trained"], kicked["in_bf16"])
        self.assertNotEqual(kicked["in_bf16"], by_plan["bf16"]["in_bf16"])
        code, log = self.command("train", *plans)
        self.assertEqual((code, log), (0, ""))
        results = Results(self.results)
        self.assertIn("| `te-delayed` | 2 |", report.text(results))
        xml.etree.ElementTree.fromstring(figure.svg(results))
        drawing = benefit.svg(PROGRAM, results)
        xml.etree.ElementTree.fromstring(drawing)
        self.assertEqual(drawing.count("<circle"), 2)  # bf16 itself has no gap
        self.assertIn(">18<", drawing)  # bytes per parameter in bf16
        self.assertIn(">1.00<", drawing)

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
        self.assertEqual(plans, {models.BASELINE})

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
