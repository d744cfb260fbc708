#!/usr/bin/env python3
"""The pages are true: every command in a block of README.md, docs/, ... and at the head of a file
of configs/ runs, and every file, key, option and variable that a page names exists.

    tests/run/pages_test.py PROGRAM

A command of a block of `sh` is run, with small numbers (SMALL) and in a folder with the files that
the pages speak of (make_folder), unless NOT_RUN has a reason. A new command needs nothing here if
it can run. Commands inside of sentences are parsed: their options and keys must exist."""

import concurrent.futures
import functools
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = Path(sys.argv.pop()).resolve()
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "KNOWN_ISSUES", "ROADMAP")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
GENERATED = "docs/reference/foreign_configs.md"  # keys and files of other programs
OF_OTHERS = re.compile(
    r"model\.(safetensors|layers\.|sliding_window)|docs/examples/gemm_profiling|task: "
)
SECONDS = 120  # for one command

# Commands that do not run here: how they begin, and why. Options and keys are checked all the same.
NOT_RUN = {
    r"git clone": "network",
    r"pip install|lm_eval|wandb sync|duckdb|python3 -c": "programs of others",
    r"scripts/export/to_wandb.py": "needs the package wandb; run_export_scripts has a stand-in",
    r"scripts/(setup|demo|build|test)\.sh": "installs or builds",
    r"(FP8TRAIN_CUDA_ARCHITECTURES=\S+ )?scripts/build\.sh|cmake --preset|build/asan/": "builds",
    r"ctest": "the tests themselves",
    r"scripts/checks/|clang-format": "minutes, or changes files; scripts/test.sh runs them",
    r"scripts/kernel_resources.py": "writes to this folder; checked by scripts/test.sh",
    r"scripts/bench/": "minutes; run_quality_study runs one on a tiny model",
    r"scripts/gpu_check.sh|mkdir -p /tmp/b": "needs a GPU; run_gpu_check has a stand-in",
    r"fp8train bench products": "needs a GPU",
    r"fp8train bench step --device meta:\w+ (\.\.\.|--calibrate)": "a part of a command",
    r"fp8train config$": "asks; run_wizard and run_wizard_tmux answer",
    r"sbatch|srun|scripts/slurm_cluster.sh|\. /tmp/slurm/env": "needs Slurm; run_slurm",
}
SMALL = [
    (r"\bCHECKPOINT\b", "runs/mine"),
    (r"\bstep-\d{6}", "step-000002"),
    (r"mpirun -n (?!4 .*_tp_pp)\d+", "mpirun -n 2"),
    (r"max_steps=\d+", "max_steps=2"),
    (r"--max-new-tokens \d+", "--max-new-tokens 8"),
    (r"--val-fraction 0.01", "--val-fraction 0.5"),
    (r"--preset llama-42m (.*)--seq-length \d+", r"--preset toy \1--seq-length 64"),
    (r"(fp8train bench gemm)$", r"\1 --seconds 0.1 --sizes 64"),
    (r"(fp8train bench cast)$", r"\1 --seconds 0.1 --rows 64 --columns 64"),
]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # of Open MPI 4, the next one of 5
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "FP8TRAIN_SET": "training.max_steps=2;eval.batches=1;sample.max_new_tokens=4",
}


def run(command, folder, **environment):
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=SECONDS,
        env={**ENVIRONMENT, **environment},
    )


def blocks(page):
    """(first line, language, text) of every fenced block."""
    lines, at = page.read_text().split("\n"), 0
    while at < len(lines):
        if fence := re.match(r" *```(\w*)$", lines[at]):
            end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
            yield at + 2, fence.group(1), "\n".join(lines[at + 1 : end])
            at = end
        at += 1


def without_comment(command, words):
    for match in re.finditer(r"\s+#", command):
        try:
            if shlex.split(command[: match.start()]) == words:
                return command[: match.start()].strip()
        except ValueError:  # it is inside of quotation marks
            continue
    return command.strip()


def commands_of(text):
    """The commands of a script, without comments; one may go over several lines."""
    command = ""
    for line in text.split("\n"):
        command += line + "\n"
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # an open quotation mark
            continue
        if re.search(r"(\\|&&|\|)\n$", command):
            continue
        if words:
            yield re.sub(r"\\\n\s*", "", without_comment(command, words))
        command = ""


def head_of(config):
    """The commands in the comment at the head of a file of configs/."""
    head = re.match(r"(?:(?:#|//).*\n)*", config.read_text()).group(0)
    return "\n".join(re.findall(r"^(?:#|//)   (.*)$", head, re.M))


def all_commands():
    """{page: commands} of all blocks of sh and all heads of configurations. Each of these is also
    checked, explained and estimated; those of other programs name no model."""
    found = {}
    for page in PAGES:
        scripts = [text for _, language, text in blocks(page) if language == "sh"]
        found[page.relative_to(ROOT).as_posix()] = [c for s in scripts for c in commands_of(s)]
    for config in sorted((ROOT / "configs").iterdir()):
        name = config.relative_to(ROOT).as_posix()
        files = name if "\nmodel:" in config.read_text() else f"configs/laptop.yaml {name}"
        verbs = [f"fp8train {verb} {files}" for verb in ("check", "explain", "estimate")]
        found[name] = [*commands_of(head_of(config)), *verbs]
    return found


def reason_not_to_run(command):
    if command.startswith("mpirun") and "mpi" not in run("fp8train --version -v", ROOT).stdout:
        return "built without MPI"
    return next((why for start, why in NOT_RUN.items() if re.match(start, command)), None)


def make_folder(folder):
    """What the pages speak of: a text, a run.yaml, trained runs, a folder of a model, ..."""
    text = "the river ran over stones and we slept while the rain fell on the old roof\n" * 600
    for name in ("my.txt", "held_out.txt", "book.txt", "corpus/a.txt", "notes/a.md"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    records = "".join(json.dumps({"text": line}) + "\n" for line in text.split("\n"))
    (folder / "corpus/a.jsonl").write_text(records * 20)
    (folder / "corpus/b.jsonl.zst").write_bytes(gzip.compress(records.encode()))  # by the content
    question = {"context": "The", "choices": [" river", " rain"], "gold": 0}
    (folder / "questions.jsonl").write_text(json.dumps(question) + "\n")
    user = {"role": "user", "content": "Hello"}
    (folder / "prompts.jsonl").write_text(json.dumps({"messages": [user]}) + "\n")
    (folder / "beginnings.jsonl").write_text(json.dumps({"prompt": "Once"}) + "\n")
    talk = {"messages": [user, {"role": "assistant", "content": "a small model"}]}
    for name in ("dialogues.jsonl", "held_out.jsonl"):
        (folder / name).write_text((json.dumps(talk) + "\n") * 100)
    (folder / "run.yaml").write_text(
        "model: {preset: toy, max_position_embeddings: 1024}\n"
        "data: {train: my.txt, seq_length: 32}\ndevice: cpu\nprecision: {plan: te-delayed}\n"
        "training: {max_steps: 2, micro_batch_size: 2}\n"
    )
    (folder / "accelerate.yaml").write_text(
        "distributed_type: MULTI_GPU\nmixed_precision: fp8\nfp8_config: {backend: TE}\n"
    )
    for name in ("ds_config.json", "ds.json"):
        (folder / name).write_text('{"bf16": {"enabled": true}}\n')
    tokenizer = ROOT / "tests/golden/chat/qwen3"
    for command in (
        "fp8train run.yaml output_dir=runs/mine -q",
        f"fp8train run.yaml output_dir=runs/chat data.train=dialogues.jsonl data.seq_length=64 "
        f"data.tokenizer={tokenizer} -q",
        "fp8train export runs/chat --out Qwen3-8B",
    ):
        result = run(command, folder)
        assert result.returncode == 0, f"{command}:\n{result.stderr}"
    shutil.copytree(folder / "runs/mine", folder / "runs/default")
    shutil.copytree(folder / "runs/mine", folder / "run")
    shutil.copytree(folder / "Qwen3-8B", folder / "Llama-3.1-8B")
    shutil.copy(folder / "Qwen3-8B/model.safetensors", folder)
    shutil.copy(ROOT / "tests/golden/tokenizers/trained/tokenizer.json", folder)
    for name in ("configs", "docs", "scripts", "slurm"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "build").symlink_to(PROGRAM.parent.parent)


@functools.cache
def help_of(*words):
    return run(shlex.join(["fp8train", *words, "--help"]), ROOT).stdout


@functools.cache
def config_keys():
    return set(run("fp8train config keys", ROOT).stdout.split())


def is_key(key):
    return any(known == key or known.startswith(key + ".") for known in config_keys()) or (
        run(f"fp8train config explain {shlex.quote(key)}", ROOT).returncode == 0
    )


def unknown_words(command):
    """Options and keys of a command of the program, and options of a script, that do not exist."""
    words = shlex.split(command, comments=True)
    scripts = [word for word in words if re.match(r"(scripts|packaging)/[\w/.]+$", word)]
    if scripts and (ROOT / scripts[0]).is_file():
        text = (ROOT / scripts[0]).read_text()
        options = [w.split("=")[0] for w in words[words.index(scripts[0]) :] if w.startswith("--")]
        return [w for w in options if w not in text and not w.startswith("--target")]
    if "fp8train" not in words:
        return []
    words = words[words.index("fp8train") + 1 :]
    end = next((i for i, word in enumerate(words) if re.fullmatch(r"[|>&;]+\d?", word)), len(words))
    path = []
    for word in words[:end]:
        names = re.split(r"(?:Subc|C)ommands:\n", help_of(*path))
        if len(names) < 2 or not re.search(rf"^  {re.escape(word)}\s", names[1], re.M):
            break
        path.append(word)
    rest, unknown = words[len(path) : end], []
    text = help_of(*(path or ["train"])) + (help_of() if not path else "")
    for word in rest:
        if word.startswith("-") and len(word) > 1:
            if not re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", text):
                unknown.append(word)
        elif key := re.match(r"([a-z_0-9.]+)=", word):
            unknown += [] if is_key(key.group(1)) else [word]
    return unknown


def spans_of(page):
    """The texts in backquotes outside of blocks, on one line each."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.M | re.S)
    return {re.sub(r"\s+", " ", span) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)}


def names_of_pages():
    """(page, text in backquotes), of all pages that people write."""
    return [
        (page.relative_to(ROOT).as_posix(), span)
        for page in PAGES
        if page.relative_to(ROOT).as_posix() != GENERATED
        for span in sorted(spans_of(page))
        if not OF_OTHERS.match(span)
    ]


class Pages(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = Path(cls.temporary.name) / "folder"
        cls.folder.mkdir()
        make_folder(cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def assert_none(self, problems):
        self.assertEqual(problems, [], "\n" + "\n".join(problems))

    def test_commands_run(self):
        commands = all_commands()
        every = [command for group in commands.values() for command in group]
        stale = [start for start in NOT_RUN if not any(re.match(start, c) for c in every)]
        self.assertEqual(stale, [], "NOT_RUN: no page has such a command any more")

        def run_page(page):
            folder = Path(self.temporary.name) / page.replace("/", "+")
            shutil.copytree(self.folder, folder, symlinks=True)
            problems = []
            for command in commands[page]:
                if reason_not_to_run(command):
                    continue
                for pattern, text in SMALL:
                    command = re.sub(pattern, text, command)
                result = run(command, folder)
                if result.returncode != 0:
                    end = (result.stderr + result.stdout)[-600:]
                    problems.append(f"{page}: {command}\n  exit {result.returncode}: {end}")
            return problems

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            problems = [problem for group in pool.map(run_page, commands) for problem in group]
        self.assert_none(problems)
        left = sum(reason_not_to_run(command) is not None for command in every)
        print(f"commands of pages: {len(every) - left} run, {left} not run")

    def test_options_and_keys_of_commands_exist(self):
        parsed, problems = 0, []
        groups = {**all_commands()}
        for page in PAGES:
            name = page.relative_to(ROOT).as_posix()
            inline = [s for s in spans_of(page) if re.search(r"(^| )(fp8train|scripts/\S+) ", s)]
            groups[name] = groups[name] + [span for span in inline if span.count('"') % 2 == 0]
        for name, commands in groups.items():
            for command in commands:
                parsed += 1
                problems += [f"{name}: {command}: {word}" for word in unknown_words(command)]
        self.assert_none(problems)
        print(f"commands of pages: {parsed} parsed")

    def test_files_exist(self):
        tops = {path.name for path in ROOT.iterdir()} - {"build"}
        path = r"(?<![\w./{-])[\w.-]+/[\w./*-]*[\w*/]"
        named = [
            (page, file.rstrip("/"))
            for page, span in names_of_pages()
            for file in re.findall(path, span)
            if file.split("/")[0] in tops and not re.search("[A-Z]{4}", file)  # NAME
        ]
        self.assertGreater(len(named), 100)
        self.assert_none([f"{page}: {file}" for page, file in named if not [*ROOT.glob(file)]])
        print(f"files of pages: {len(named)} exist")

    def test_keys_and_variables_exist(self):
        sections = {key.split(".")[0] for key in config_keys() if "." in key}
        key = re.compile(rf"((?:{'|'.join(sections)})(?:\.[a-z_0-9]+)+)(?=$|[:= ])")
        keys = [(page, m.group(1)) for page, span in names_of_pages() if (m := key.match(span))]
        self.assertGreater(len(keys), 100)
        self.assert_none([f"{page}: {name}" for page, name in keys if not is_key(name)])
        source = "".join(
            file.read_text()
            for folder in ("lib", "apps", "scripts", "cmake", "tests", "packaging")
            for file in (ROOT / folder).rglob("*")
            if file.suffix in {".cpp", ".h", ".cu", ".py", ".sh", ".cmake", ".txt"}
        )
        variables = {v for page in PAGES for v in re.findall(r"\bFP8TRAIN_\w+", page.read_text())}
        self.assert_none(sorted(name for name in variables if name not in source))
        print(f"names of pages: {len(keys)} keys, {len(variables)} variables exist")

    def test_names_of_the_code_exist(self):
        folders = ("lib", "apps", "tests", "scripts", "cmake")
        files = [f for folder in folders for f in (ROOT / folder).rglob("*") if f.is_file()]
        words = {file.name for file in files}
        for file in files:
            words.update(re.findall(r"\w+", file.read_text(errors="replace")))
        name_of_code = r"(?:\w+::)*([A-Za-z_]\w+(?:\.(?:cpp|cuh?|py)\b)?)"
        not_names = re.compile(r"[/*=]|NAME|^git |^fp8train |\.h$|\.json$")
        named = [
            (page, name)
            for page, span in names_of_pages()
            if page.startswith("docs/develop/") and not not_names.search(span)
            for name in re.findall(name_of_code, span.split("(")[0])
        ]
        self.assertGreater(len(named), 300)
        self.assert_none([f"{page}: {name}" for page, name in named if name not in words])
        pair = r"`(?:\w+::)*(\w+)(?:\(\))?`(?: \(|, )`([\w./-]+\.(?:h|cpp|cuh?|py))`"
        pairs = [  # `name` (`file`) and `name`, `file`: the file has the name
            (name, file, [f for f in files if f.as_posix().endswith("/" + file)])
            for page in (ROOT / "docs/develop").rglob("*.md")
            for name, file in re.findall(pair, re.sub(r"\s+", " ", page.read_text()))
        ]
        self.assertGreater(len(pairs), 80)
        has = lambda found, name: any(re.search(rf"\b{name}\b", f.read_text()) for f in found)
        self.assert_none([f"{name} not in {file}" for name, file, f in pairs if not has(f, name)])
        print(f"names of the code: {len(named)} exist, {len(pairs)} in the files that they name")

    def test_configurations_of_pages_load(self):
        loaded = 0
        for page in PAGES:
            for line, language, text in blocks(page):
                if language == "yaml" and not OF_OTHERS.match(text):
                    (self.folder / "block.yaml").write_text(text + "\n")
                    result = run("fp8train config convert block.yaml", self.folder)
                    self.assertEqual(result.returncode, 0, f"{page}:{line}: {result.stderr}")
                    loaded += 1
        self.assertGreater(loaded, 10)
        print(f"configurations of pages: {loaded} load")

    def test_the_excerpt_of_explain_is_what_it_prints(self):
        (text,) = [t for _, _, t in blocks(ROOT / "README.md") if t.startswith("$ fp8train")]
        shown = [line.rstrip() for line in text.split("\n")[1:] if line.strip(" .")]
        settings = "model.preset=llama-42m;precision.plan=deepseek-v3;job.gpu=h100;device=cuda"
        result = run(text.split("\n")[0][2:], self.folder, FP8TRAIN_SET=settings)
        printed = [line.rstrip() for line in result.stdout.split("\n")]
        self.assert_none(
            [line for line in shown if not any(p.startswith(line.rstrip(" .")) for p in printed)]
        )


if __name__ == "__main__":
    unittest.main()
