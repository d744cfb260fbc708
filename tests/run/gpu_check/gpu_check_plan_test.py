#!/usr/bin/env python3
"""scripts/gpu_check.sh before fake programs: the order of its items, what fits into a budget and
into a GPU, and several items in one process.

  gpu_check_plan_test.py SAMPLE_TESTS    the program of sample_tests.cpp"""

import json
import shutil
import signal
import subprocess
import sys
import time
import unittest

from gpu_check_case import SCRIPT, GpuCheckCase

sys.path.insert(0, str(SCRIPT.parent))
from gpu_check.items import all_items  # noqa: E402
from gpu_check.shapes import LARGE, layers_that_fit  # noqa: E402

STEPS = ["step.bf16", "step.te-delayed", "step.te-blockwise", "step.te-current"]
H200 = "NVIDIA H200,143771 MiB"


class OrderTest(GpuCheckCase):
    def ends(self, *words):
        """Names and the seconds after which each has usually ended."""
        lines = self.check("--list", *words).splitlines()
        return [(line.split()[1], int(line.split()[-2])) for line in lines]

    def test_one_order_over_all_groups_with_what_matters_most_first(self):
        names = [name for name, _ in self.ends()]
        self.assertEqual(
            names[:10],
            [
                "probe", "kernels.codes", "kernels.casts", "kernels.gemm", "products.right",
                "steps.distinct", *STEPS,
            ],
        )
        self.assertEqual(
            names[-4:], ["memcheck", "racecheck", "profile.te-delayed", "profile.te-blockwise"]
        )
        self.assertEqual(len(set(names)), len(names))
        self.check("--only", "casts,steps,probe")
        self.assertEqual(
            [result["item"] for result in self.results()],
            ["machine", "probe", "steps.distinct", "casts", "steps.wiring", "steps.all"],
        )

    def test_a_list_for_a_budget_has_what_fits(self):
        every = dict(self.ends())
        for budget in (60, 300, 700):
            with self.subTest(budget):
                fitting = self.ends("--budget", str(budget))
                self.assertLessEqual(max(end for _, end in fitting), budget)
                self.assertLess(len(fitting), len(every))
                known = [name for name in every if name in dict(fitting)]
                self.assertEqual([name for name, _ in fitting], known)
        self.assertIn("step.te-current", dict(self.ends("--budget", "180")))
        without_pytorch = dict(self.ends("--budget", "150", "--only", "peers.1"))
        self.assertFalse([name for name in without_pytorch if ".own.te-" in name])

    def test_a_budget_is_a_positive_number(self):
        for budget in ("0", "-5", "nan", "much"):
            done = subprocess.run(
                ["bash", SCRIPT, f"--budget={budget}", "--list"], capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(f"'{budget}' is no number of seconds", done.stderr)

    def test_every_item_has_a_time_that_its_limit_exceeds(self):
        for item in all_items():
            self.assertTrue(0 < item.usual < item.limit, item.name)
            self.assertNotEqual(item.check is None, item.part is None, item.name)


class MemoryTest(GpuCheckCase):
    def layers_asked(self):
        """Of the commands of steps and peers, by their logs."""
        text = "".join(
            path.read_text() for path in (self.folder / "work/logs").glob("*.err")
        )
        words = text.split()
        own = {words[i + 1] for i, word in enumerate(words) if word == "--layers"}
        torch = {words[i + 1] for i, word in enumerate(words) if word == "--worker"}
        return own, torch

    def test_layers_follow_from_the_memory_for_steps_and_peers_alike(self):
        self.assertEqual(
            [layers_that_fit(memory) for memory in (24, 32, 44.5, 79.6, 95, 139.8, 178)],
            [0, 2, 4, 8, 8, 16, 16],
        )
        for gpu, layers in (("NVIDIA H100 80GB HBM3,81559 MiB", "8"), (H200, "16")):
            with self.subTest(gpu):
                self.check("--only", "step.bf16,peers.1.*bf16*", GPU_CHECK_GPU=gpu)
                self.assertEqual(self.result("step.bf16")["facts"]["layers"], int(layers))
                self.assertEqual(
                    self.result("peers.1.torch.bf16-compile")["detail"]["figures"]["model"],
                    f"llama-8b-{layers}l",
                )
                own, torch = self.layers_asked()
                self.assertEqual((own, torch), ({layers}, {f"llama-8b-{layers}l"}))
                for each in ("out", "work"):
                    subprocess.run(["rm", "-r", self.folder / each], check=True)

    def test_a_gpu_too_small_for_any_of_these_models_says_so(self):
        said = self.check(
            "--only", "step.bf16,step.te-delayed,peers.1.torch.bf16-compile,casts",
            GPU_CHECK_GPU="NVIDIA L4,23034 MiB",
        )
        self.assertIn("step.te-delayed: unknown", said)
        self.assertIn("memory of 22 GiB is too small for a model of this width", said)
        self.assertIs(self.result("casts")["passed"], True)
        self.assertEqual(LARGE.fitted(22.5).layers, 0)

    def test_figures_of_other_layers_have_a_table_of_their_own(self):
        self.check("--only", "step.bf16,peers.1.*bf16*")
        first, self.out = self.out, self.folder / "second"
        self.check("--only", "step.te-delayed,peers.1.own.te-*", GPU_CHECK_GPU=H200)
        table = self.check("--table", first / "results.jsonl", self.out / "results.jsonl")
        eight, sixteen = table.split("=" * 79)
        self.assertIn("step, 8 layers", eight)
        self.assertIn("same model, alternately, 8 layers", eight)
        self.assertIn("step, 16 layers", sixteen)
        row = next(line for line in sixteen.splitlines() if line.startswith("te-delayed"))
        self.assertNotIn("1.400", row)  # there is no bf16 of 16 layers
        self.assertNotIn("16 layers", eight)

    def test_results_of_another_gpu_do_not_count_as_done(self):
        self.check("--only", "casts,probe")
        self.check("--only", "casts,probe", "--resume", GPU_CHECK_GPU=H200)
        items = [result["item"] for result in self.results()]
        self.assertEqual(items, 2 * ["machine", "probe", "casts"])


class OneProcessTest(GpuCheckCase):
    def processes(self):
        return sorted(path.name for path in (self.folder / "work/logs").glob("step.*.out"))

    def states(self):
        return {
            result["item"]: result["passed"]
            for result in self.results()
            if result["item"] != "machine"
        }

    def test_several_steps_take_one_process(self):
        self.check("--only", ",".join(STEPS))
        self.assertEqual(self.processes(), ["step.bf16.out"])
        self.assertEqual(self.states(), dict.fromkeys(STEPS, True))
        for plan, rate in (("bf16", 20000.0), ("te-delayed", 28000.0)):
            figures = self.result(f"step.{plan}")["detail"]["figures"]
            self.assertEqual(
                (figures["plan"], figures["tokens_per_second"]), (plan, rate)
            )

    def test_figures_of_another_plan_are_a_failure(self):
        two = "step.bf16,step.te-delayed"
        said = self.check("--only", two, code=1, GPU_CHECK_FAKE="step-order")
        self.assertIn("figures of plan te-delayed in the place of bf16", said)

    def test_a_plan_without_memory_is_named_and_does_not_end_the_others(self):
        said = self.check("--only", ",".join(STEPS), code=1, GPU_CHECK_FAKE="step-memory")
        self.assertIn("step.te-delayed: FAILED", said)
        self.assertIn("out of GPU memory", (self.out / "failures.txt").read_text())
        self.assertEqual(self.processes(), ["step.bf16.out"])
        self.assertEqual(self.states(), {**dict.fromkeys(STEPS, True), "step.te-delayed": False})

    def test_after_any_other_error_the_rest_runs_in_a_new_process(self):
        for wrong, words in (
            ("step-error", "illegal memory access"), ("step-crash", "SIGSEGV"),
        ):
            with self.subTest(wrong):
                self.check("--only", ",".join(STEPS), code=1, GPU_CHECK_FAKE=wrong)
                self.assertIn(words, self.result("step.te-delayed")["report"])
                self.assertEqual(
                    self.states(), {**dict.fromkeys(STEPS, True), "step.te-delayed": False}
                )
                self.assertEqual(self.processes(), ["step.bf16.out", "step.te-blockwise.out"])
                for each in ("out", "work"):
                    subprocess.run(["rm", "-r", self.folder / each], check=True)

    def killed(self, number):
        """While the second step of a process hangs."""
        process = subprocess.Popen(
            self.command("--only", ",".join(["casts", *STEPS])),
            stdout=subprocess.PIPE, text=True, env=self.environment(GPU_CHECK_FAKE="step-hang"),
        )
        end = time.monotonic() + 40  # less than a step may take
        results = self.out / "results.jsonl"
        while not results.exists() or '"step.bf16"' not in results.read_text():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
        return process.returncode

    def test_what_a_killed_process_had_measured_is_kept(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(number):
                code = self.killed(number)
                self.assertEqual(code, 143 if number == signal.SIGTERM else -signal.SIGKILL)
                self.assertEqual(self.states(), {"step.bf16": True})
                self.check("--only", ",".join(["casts", *STEPS]), "--resume")
                self.assertEqual(self.states(), dict.fromkeys([*STEPS, "casts"], True))
                figures = self.result("step.bf16")["detail"]["figures"]
                self.assertEqual(figures["tokens_per_second"], 20000.0)
                for each in ("out", "work"):
                    subprocess.run(["rm", "-r", self.folder / each], check=True)

    def test_a_budget_ends_a_process_and_leaves_what_does_not_fit(self):
        begin = time.monotonic()
        said = self.check(
            "--only", ",".join(STEPS), "--budget", "34", code=1, GPU_CHECK_FAKE="step-hang"
        )
        self.assertLess(time.monotonic() - begin, 45)
        self.assertIn("ran past its limit", self.result("step.te-delayed")["report"])
        self.assertIn("no time was left for step.te-blockwise, step.te-current", said)


class FindingsTest(GpuCheckCase):
    def test_attention_without_cudnn_fails_the_machine_where_there_is_fp8(self):
        said = self.check("--only", "casts", code=1, GPU_CHECK_FAKE="own-attention")
        self.assertIn("attention does not run in cuDNN: own kernels (built without", said)
        self.assertIs(self.result("casts")["passed"], True)
        self.check(
            "--only", "casts", GPU_CHECK_FAKE="own-attention", FP8TRAIN_CUDA_ATTENTION="own"
        )

    def test_a_refused_product_has_the_library_s_reason(self):
        said = self.check("--only", "probe", code=1, GPU_CHECK_FAKE="refused")
        self.assertIn("Unsupported M dimension for FP8: 132", said)
        self.assertNotIn("[Api]", self.result("probe")["report"])
        self.assertNotIn("cublaslt", json.dumps(self.results()[0]["detail"]))

    def test_wrong_products_are_named_with_their_bound(self):
        self.check("--only", "products.right")
        self.assertIn("1.7e-03", (self.out / "table.txt").read_text())
        said = self.check("--only", "products.right", code=1, GPU_CHECK_FAKE="wrong-products")
        self.assertIn("mlp.up dgrad 8192x28672x4096 e4m3 x e4m3 bf16: error 0.4", said)
        self.assertIn("e4m3 x e4m3 bf16: cuBLASLt has no such product", said)
        self.assertIn("2 of 3 products are wrong", said)

    def test_pytorch_finds_the_packages_of_the_bundle_and_may_lack_memory(self):
        bundle = self.folder / "bundle"
        shutil.copytree(SCRIPT.parent / "gpu_check", bundle / "scripts/gpu_check")
        shutil.copy(SCRIPT, bundle / "scripts")
        (bundle / "python").mkdir()
        command = self.command("--only", "peers.imports,peers.1.torch.bf16-compile")
        command[1] = bundle / "scripts" / SCRIPT.name
        subprocess.run(command, env=self.environment(PYTHONPATH="/known"), check=True, timeout=60)
        packages = self.result("peers.1.torch.bf16-compile")["detail"]["figures"]["packages"]
        self.assertEqual(
            packages.split(":"), [str(bundle / each) for each in ("python", "scripts")] + ["/known"]
        )
        self.assertIs(self.result("peers.imports")["passed"], True)
        self.check("--only", "peers.1.torch.bf16-compile", GPU_CHECK_FAKE="torch-memory")
        result = self.result("peers.1.torch.bf16-compile")
        self.assertEqual(
            (result["passed"], result["detail"]["reason"]), (None, "PyTorch ran out of GPU memory")
        )

    def test_tools_get_no_libraries_of_the_bundle(self):
        (self.folder / "lib").mkdir()
        self.check("--only", "memcheck,casts")
        known = [line for line in self.result("memcheck")["stderr"] if "LD_LIBRARY_PATH" in line]
        self.assertEqual(len(known), 1)
        self.assertNotIn(str(self.folder), known[0])


class BundleTest(GpuCheckCase):
    def bundle(self, features, *words):
        program = self.folder / "build/bin/fp8train"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/bash\necho 'features: cpu cuda(90a-real) {features}'\n")
        program.chmod(0o755)
        command = [
            "bash", SCRIPT, "--bundle", "--build", self.folder / "build", "--out", self.out, *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertFalse(self.out.exists())
        return done.stderr

    def test_a_build_without_attention_in_cudnn_is_not_packed(self):
        said = self.bundle("attention(own)", "--no-torchao")
        self.assertIn("has no attention in cuDNN", said)
        self.assertIn("scripts/setup.sh --dev", said)

    def test_a_wheel_that_is_not_there_is_named(self):
        said = self.bundle("attention(cudnn)", "--wheel", "/nowhere/torchao.whl")
        self.assertIn("--wheel: there is no /nowhere/torchao.whl", said)

    def test_a_build_without_test_programs_is_not_packed(self):
        said = self.bundle("attention(cudnn)", "--no-torchao")
        self.assertIn("bin/cuda_ops_test is missing", said)
        self.assertIn("scripts/build.sh --target cuda_ops_test", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
