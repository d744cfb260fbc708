#!/usr/bin/env python3
"""scripts/gpu_check.sh before fake programs: what it parses, what it keeps and what it says.

  gpu_check_test.py SAMPLE_TESTS    the program of sample_tests.cpp"""

import json
import signal
import subprocess
import tarfile
import time
import unittest

from gpu_check_case import GpuCheckCase

LONG_NAME = (
    "norm backward, whose name has [brackets], a comma and so many words that a line of 79 ends"
)


class GpuCheckTest(GpuCheckCase):
    def test_every_item_starts_and_is_parsed_among_warnings(self):
        self.check()
        results = self.results()
        self.assertEqual([result["item"] for result in results], ["machine", *self.listed()])
        for result in results:
            self.assertIs(result["passed"], True, result)
            self.assertTrue(
                result["facts"]["driver"] == "580.1"
                and result["facts"]["attention"] == "cuDNN 9.19 in bf16 and fp16",
                result,
            )
            self.assertEqual(
                result["facts"]["fp8_modes"],
                {"e4m3 delayed": "native", "e4m3 1x32": "this GPU has none"},
            )
        for item in (
            "casts", "step.te-delayed", "products.row", "curve.bf16", "memcheck",
            "profile.te-delayed", "peers.2.torch.bf16-compile",
        ):
            self.assertTrue([line for line in self.result(item)["stderr"] if "warns" in line], item)
        kernels = self.result("profile.te-delayed")["detail"]["kernels"]
        self.assertEqual(
            [
                (kernel["launches"], kernel["gbytes_per_second"], kernel["occupancy"])
                for kernel in kernels
            ],
            [(2, 4000.0, 50.0), (1, 1.0, 50.0)],
        )
        table = (self.out / "table.txt").read_text()
        for words in (
            ["te-delayed", "28,000", "1.400"],
            ["own.te-delayed", "28,000", "1.474", "1.474"],
            ["mlp.up", "fprop", "700"],
            ["4,000", "GB/s"],
            ["swiglu"],
        ):
            self.assertTrue(
                [line for line in table.splitlines() if all(word in line for word in words)],
                (words, table),
            )
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            self.assertIn("logs/kernels.others.out", archive.getnames())
        self.assertEqual(
            sorted(path.name for path in self.out.iterdir()),
            ["failures.txt", "logs.tar.gz", "results.jsonl", "table.txt"],
        )

    def test_clocks_are_sampled_while_an_item_runs(self):
        self.check("--only", "curve.bf16", GPU_CHECK_SAMPLES=str(self.folder / "samples"))
        clocks = self.result("curve.bf16")["clocks"]
        self.assertEqual(
            (clocks["sm_mhz"]["median"], clocks["watts"]["max"], clocks["limited_by"]),
            (1980.0, 650.5, ["power cap"]),
        )

    def test_failing_assertions_are_whole_and_each_test_runs_alone(self):
        said = self.check("--only", "kernels", code=1, GPU_CHECK_SAMPLE="fail")
        result = self.result("kernels.others")
        self.assertEqual(result["detail"]["failed"], [LONG_NAME, "a norm after it"])
        self.assertEqual(
            result["detail"]["alone"],
            {LONG_NAME: "fails alone: exit code 7", "a norm after it": "passes alone"},
        )
        for words in (
            "sample_tests.cpp:", "CHECK( row == 100 )", "0 == 100", "4 == 100", "row 4",
            "and 2 more failing assertions", "CHECK_FALSE( spoilt )",
        ):
            self.assertIn(words, result["report"])
            self.assertIn(words, said)
        self.assertNotIn("5 == 100", result["report"])
        self.assertIn("CHECK( row == 100 )", (self.out / "failures.txt").read_text())
        self.assertIs(self.result("kernels.gemm")["passed"], True)

    def test_a_crash_is_named_and_what_it_kept_from_running_runs_alone(self):
        self.check("--only", "kernels.others", code=1, GPU_CHECK_SAMPLE="crash")
        result = self.result("kernels.others")
        self.assertEqual(
            result["detail"]["alone"]["a norm after it"], "passes in a new process"
        )
        self.assertIn("SIGABRT", result["detail"]["alone"][LONG_NAME])

    def wait_for(self, item):
        """Until the log of this item is there."""
        log = self.folder / "work/logs" / f"{item}.out"
        end = time.monotonic() + 120
        while not log.exists():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def killed(self, number):
        process = subprocess.Popen(
            self.command("--group", "1"),
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(GPU_CHECK_SAMPLE="sleep"),
        )
        self.wait_for("kernels.gemm")
        time.sleep(0.2)
        process.send_signal(number)
        process.communicate(timeout=60)
        done = ["machine", "probe", "kernels.codes", "kernels.casts"]
        self.assertEqual([result["item"] for result in self.results()], done)
        return process.returncode, done

    def test_a_killed_run_keeps_what_it_did_and_goes_on(self):
        _, done = self.killed(signal.SIGKILL)
        with (self.out / "results.jsonl").open("a") as file:
            # as a machine that is taken away leaves it
            file.write('{"item": "kernels.gemm", "passed"')
        said = self.check("--group", "1", "--resume")
        self.assertNotIn("kernels.codes", said)
        lines = (self.out / "results.jsonl").read_text().splitlines()
        results = [
            json.loads(line) for line in lines if line != '{"item": "kernels.gemm", "passed"'
        ]
        self.assertEqual(
            [result["item"] for result in results],
            [*done, "machine", *self.listed("--group", "1")[3:]],
        )
        self.assertIn("nothing is left to do", self.check("--group", "1", "--resume"))

    def test_a_stopped_run_ends_its_command_and_packs_its_logs(self):
        code, _ = self.killed(signal.SIGTERM)
        self.assertEqual(code, 128 + signal.SIGTERM)
        self.assertIn("kernels.casts", (self.out / "table.txt").read_text())
        with tarfile.open(self.out / "logs.tar.gz") as archive:
            self.assertIn("logs/kernels.gemm.out", archive.getnames())

    def test_an_item_ends_at_the_budget_and_what_does_not_fit_is_left(self):
        begin = time.monotonic()
        said = self.check(
            "--group",
            "1",
            "--only",
            "probe,kernels.gemm,steps.distinct",
            "--budget",
            "17",
            code=1,
            GPU_CHECK_SAMPLE="sleep",
        )
        self.assertLess(time.monotonic() - begin, 25)
        self.assertIn("no time was left for steps.distinct", said)
        self.assertIn("ran past its limit", self.result("kernels.gemm")["report"])

    def test_items_are_chosen_by_group_name_and_pattern(self):
        every = self.listed()
        self.assertEqual(self.listed("--group", "3", "--group", "1", "--group", "2"), every)
        self.assertEqual(
            sorted(sum((self.listed("--group", str(group)) for group in (1, 2, 3)), [])),
            sorted(every),
        )
        self.assertEqual(
            self.listed("--only", "step.te-*,curve", "--skip", "curve.fp32,*-blockwise"),
            [
                "step.te-delayed", "step.te-current", "step.te-delayed-tuned",
                "curve.bf16", "curve.te-delayed", "curve.torchao-rowwise",
            ],
        )
        self.check("--only", "nonsense", code=2)
        self.assertFalse(self.out.exists())

    def test_failures_of_one_kind_each(self):
        cases = [
            ("garbage", "casts", False, "exit code 0"),
            ("diverges", "curve.bf16", False, "step 21 is the first"),
            ("memcheck", "memcheck", False, "norm_backward+0x100"),
            ("no-torch", "peers.1.torch.bf16-compile", None, "no torch"),
            ("no-torch", "peers.imports", None, "no torch"),
            ("no-options", "attention.deterministic", None, "has not all of these options"),
        ]
        for wrong, item, passed, words in cases:
            with self.subTest(wrong):
                self.check("--only", item, code=1 if passed is False else 0, GPU_CHECK_FAKE=wrong)
                result = self.result(item)
                self.assertIs(result["passed"], passed)
                self.assertIn(words, result["report"] + str(result["detail"]))

    def test_what_failed_runs_again_when_asked(self):
        self.check("--only", "curve", code=1, GPU_CHECK_FAKE="diverges")
        before = len(self.results())
        self.check("--only", "curve", "--resume")
        self.assertEqual([result["item"] for result in self.results()[before:]], ["machine"])
        self.check("--only", "curve,casts", "--retry")
        self.assertEqual(
            [result["item"] for result in self.results()[before + 1:]],
            ["machine", "casts", *self.listed("--only", "curve")],
        )
        self.assertNotIn("FAILED", (self.out / "table.txt").read_text())

    def test_without_a_gpu_nothing_runs(self):
        said = self.check(code=2, GPU_CHECK_FAKE="no-gpu")
        self.assertIn("libcublasLt.so.13 is not found", said)
        self.assertEqual([result["item"] for result in self.results()], ["machine"])

    def test_a_program_that_multiplies_nothing_still_has_its_kernels_tested(self):
        self.check("--only", "kernels.codes,casts", code=1, GPU_CHECK_FAKE="no-products")
        self.assertEqual(
            [(result["item"], result["passed"]) for result in self.results()],
            [("machine", False), ("kernels.codes", True), ("casts", False)],
        )

    def test_libraries_that_only_python_has_are_a_failure_but_do_not_end_the_check(self):
        (self.folder / "fake-wheels/nvidia/cublas/lib").mkdir(parents=True)
        said = self.check(
            "--only",
            "casts",
            code=1,
            GPU_CHECK_FAKE="libraries",
            PYTHONPATH=str(self.folder / "fake-wheels"),
        )
        self.assertIn("found only through LD_LIBRARY_PATH", said)
        self.assertIs(self.result("casts")["passed"], True)

    def test_tables_of_several_machines_are_one(self):
        self.check("--only", "step.bf16")
        first = self.out
        self.out = self.folder / "second"
        self.check("--only", "step.te-delayed")
        table = self.check("--table", first / "results.jsonl", self.out / "results.jsonl")
        self.assertIn("1.400", table)


if __name__ == "__main__":
    unittest.main(verbosity=2)
