"""Items that hold kernels, whole steps and ranks against the cpu: the test programs, also
under compute-sanitizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable

from . import catch
from .item import Item, Outcome, Workspace, bench, failed_command, unknown
from .machine import find_tool
from .process import Done

SKIPPED = 77
NEW_PROCESS_SECONDS = 6.0  # at least, for a test case in a process of its own
ALONE_SECONDS = 15.0  # at most: one that hangs leaves time for the others
# Topic, filter of Catch2, usual seconds, limit; what no filter names is the last topic. A process
# takes 2 to 3 s to start, which is why there are few topics; a test case after one that ended the
# process runs in the next. Most of the seconds are the cpu's, which computes what is expected.
TOPICS = [
    ("codes", "[exhaustive]", 10, 60),
    (
        "casts",
        "[quantize]~[exhaustive],[blocks]~[exhaustive],[fused],[elementwise],[storage],[wire]",
        15,
        90,
    ),
    ("gemm", "[gemm],[scaled_gemm]", 8, 60),
    ("attention-cudnn", "[cudnn]", 15, 60),
]
OTHERS = "~" + "~".join(
    sorted(set(re.findall(r"(?<!~)\[\w+\]", ",".join(topic[1] for topic in TOPICS))))
)
SANITIZER_ERRORS = re.compile(r"ERROR SUMMARY: (\d+) error")
# Of cuBLASLt's log: why it has no such product; and of the program's: that there is none.
REASON = re.compile(r"unsupported|not supported|invalid|mismatch|\[Error\]|\[Hint\]", re.I)
LACKS = re.compile(r"does not multiply|are missing and \d+ exist")
RACES = re.compile(r"RACECHECK SUMMARY: (\d+) hazard")


@dataclass(frozen=True)
class Alone:
    """A test case in a process of its own: after one has spoilt the device, the others of
    its process fail too."""

    end: str
    text: str  # its failing assertions


def run_alone(work: Workspace, program: str, test: str) -> Alone:
    if work.left() < NEW_PROCESS_SECONDS:
        return Alone("no time left", "")
    done = work.run(
        [work.test_program(program), catch.filter_of(test)], ALONE_SECONDS, CUDA_LAUNCH_BLOCKING="1"
    )
    if done.code == 0:
        return Alone("passes alone", "")
    return Alone(
        f"fails alone: {done.end()}",
        "\n\n".join(failure.text for failure in catch.parse(done.out).failures),
    )


def unfinished(work: Workspace, program: str, wanted: str, report: catch.Report) -> list[str]:
    """Test cases that the process did not reach or did not end."""
    names: list[str] = []
    # the option of Catch2 2, then that of 3
    for option in (["--list-test-names-only"], ["--list-tests", "--verbosity", "quiet"]):
        listed = work.run([work.test_program(program), *option, wanted], 20)
        names = names or [line.strip() for line in listed.out.splitlines() if line.strip()]
    return [
        name for name in names if name not in report.seconds and name not in report.failed_tests
    ]


def run_rest(work: Workspace, program: str, names: list[str]) -> dict[str, Alone]:
    """The tests that a process did not reach, in new processes: the one that ends a process is left
    out of the next."""
    ends: dict[str, Alone] = {}
    waiting = list(names)
    while waiting and work.left() > NEW_PROCESS_SECONDS:
        wanted = ",".join(catch.filter_of(name) for name in waiting)
        done = work.run(
            [work.test_program(program), "--durations", "yes", wanted], 0.75 * work.left()
        )
        report = catch.parse(done.out)
        texts = {failure.test: failure.text for failure in report.failures}
        for name in waiting:
            if name in texts:
                ends[name] = Alone(f"fails in a new process: {done.end()}", texts[name])
            elif name in report.seconds:
                ends[name] = Alone("passes in a new process", "")
        left = [name for name in waiting if name not in ends]
        if left and len(left) == len(waiting):
            ends[left.pop(0)] = Alone(f"ends its process: {done.end()}", done.out.strip()[-2000:])
        waiting = left
    return ends | {name: Alone("no time left", "") for name in waiting}


def failed_tests(
    work: Workspace, program: str, wanted: str, done: Done, report: catch.Report
) -> Outcome:
    """Every failing assertion, and how the tests end one by one."""
    ended = report.summary and done.code >= 0  # a signal has a summary too, of what came before it
    lost = [] if ended else unfinished(work, program, wanted, report)
    alone = {test: run_alone(work, program, test) for test in report.failed_tests}
    if lost and not report.failed_tests:  # the first of them ended the process without a word
        alone[lost[0]] = run_alone(work, program, lost[0])
    alone |= run_rest(work, program, [test for test in lost if test not in alone])
    texts = [failure.text for failure in report.failures] or [done.out.strip()[-6000:]]
    known = "\n".join(texts)
    texts += [f"alone: {one.text}" for one in alone.values() if one.text and one.text not in known]
    texts.append("\n".join(f"{test}: {one.end}" for test, one in alone.items()))
    texts.append(
        f"{done.end()}; {report.summary or 'did not reach its end'}\n{done.err.strip()[-3000:]}"
    )
    detail = {
        "ended": done.end(),
        "summary": report.summary,
        "failed": report.failed_tests,
        "not_ended": lost,
        "alone": {test: one.end for test, one in alone.items()},
    }
    return Outcome(False, detail, "\n\n".join(texts).strip())


def judge(work: Workspace, program: str, wanted: str, done: Done) -> Outcome:
    if done.code == SKIPPED:
        return unknown(done.out.strip())
    report = catch.parse(done.out)
    if done.code != 0 or not report.summary:
        return failed_tests(work, program, wanted, done, report)
    missed = [line for line in done.out.splitlines() if "not run" in line]
    if missed or "No tests ran" in done.out:
        return Outcome(
            False,
            {"reason": "tests did not run"},
            "\n".join(missed) or f"no test case matches {wanted}",
        )
    slowest = dict(sorted(report.seconds.items(), key=lambda entry: -entry[1])[:5])
    return Outcome(True, {"summary": report.summary, "slowest": slowest})


def tests(program: str, wanted: str, **environment: str) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        if not work.test_program(program).exists():
            return unknown(f"{program} is not there")
        # A part of the time is left for the tests that fail, one by one.
        done = work.run(
            [work.test_program(program), "--durations", "yes", *([wanted] if wanted else [])],
            0.75 * work.left(),
            **environment,
        )
        return judge(work, program, wanted, done)

    return check


def sanitizer(tool: str, wanted: str, count: re.Pattern[str]) -> Callable[[Workspace], Outcome]:
    def check(work: Workspace) -> Outcome:
        program = find_tool("compute-sanitizer")
        if program is None:
            return unknown("compute-sanitizer is not installed")
        if not work.test_program("cuda_ops_test").exists():
            return unknown("cuda_ops_test is not there")
        done = work.run([
            program, "--tool", tool, "--error-exitcode", "9", work.test_program("cuda_ops_test"),
            "--durations", "yes", wanted,
        ])
        return judge_sanitizer(done, count)

    return check


def judge_sanitizer(done: Done, count: re.Pattern[str]) -> Outcome:
    said = [line for line in done.out.splitlines() if line.startswith("=========")]
    found = count.search(done.out)
    report = catch.parse(
        "\n".join(line for line in done.out.splitlines() if not line.startswith("========="))
    )
    detail: dict[str, Any] = {
        "ended": done.end(),
        "tests": report.summary,
        "tests_ended": len(report.seconds),
    }
    if found and int(found[1]) > 0:
        return Outcome(False, {**detail, "errors": int(found[1])}, "\n".join(said[:120]))
    if found is None or "Device not supported" in done.out:
        return Outcome(None, {**detail, "reason": f"{done.end()} before it had counted errors"}, "")
    if done.code != 0:
        return Outcome(
            False,
            detail,
            "\n\n".join(failure.text for failure in report.failures) or failed_command(done).report,
        )
    return Outcome(True, {**detail, "errors": 0})


def library_reasons(work: Workspace) -> list[str]:
    """What cuBLASLt's own log says while each product is tried once more."""
    log = work.work / "logs" / "probe.cublaslt.log"
    work.run(
        [
            work.program, "bench", "gemm", "--sizes", "256", "--seconds", "0.01", "--device",
            "cuda", "--json",
        ],
        40, FP8TRAIN_GEMM_PROBE="always", CUBLASLT_LOG_LEVEL="5", CUBLASLT_LOG_FILE=str(log),
    )
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return list(dict.fromkeys(line for line in text.splitlines() if REASON.search(line)))[:40]


def probe(work: Workspace) -> Outcome:
    """Each pair of operands, accumulation and result that layers may ask for, on small shapes."""
    outcome = bench(work, *work.shapes.probes())
    figures = outcome.detail.get("figures")
    if figures is None:
        return outcome
    ways: dict[str, str] = {}
    for entry in figures["results"]:
        way = (
            f"{entry['operands']} to "
            f"{entry['result']}{', fast accumulation' if entry['fast_accumulate'] else ''}"
        )
        state = entry.get("error") or (
            f"dequantized: {entry['dequantized']}" if "dequantized" in entry else "native"
        )
        ways[way] = state if ways.get(way, "native") == "native" else ways[way]
    refused = {way: state for way, state in ways.items() if state != "native"}
    wrong = {way: state for way, state in refused.items() if not state.startswith("dequantized")}
    # Compute capability 9.0 has all products but those of 1x32 blocks.
    lacking = (
        {way: state for way, state in refused.items() if "1x32" not in way}
        if work.facts.get("compute_cap", "9.0") == "9.0"
        else {}
    )
    lines = [f"{way}: {state}" for way, state in (wrong or lacking).items()]
    detail: dict[str, Any] = {"native": sorted(set(ways) - set(refused)), "refused": refused}
    if lines or any(LACKS.search(line) for line in work.stderr):
        detail["cublaslt"] = library_reasons(work)
        lines += [f"cuBLASLt: {reason}" for reason in detail["cublaslt"] if lines]
    return Outcome(not wrong and not lacking, detail, "\n".join(lines))


def kernel_items() -> list[Item]:
    items = [Item("probe", 1, 6, 60, probe)]
    items += [
        Item(f"kernels.{topic}", 1, usual, limit, tests("cuda_ops_test", wanted))
        for topic, wanted, usual, limit in TOPICS
    ]
    items.append(Item("kernels.others", 1, 30, 150, tests("cuda_ops_test", OTHERS)))
    # First the steps of plans that have kernels or wiring of their own, then what else is tested of
    # them, then all plans. Each engine makes its plans of cuDNN, for about 2 s.
    steps, distinct = "[cuda]~[nccl]", {"FP8TRAIN_TEST_PLANS": "distinct"}
    first = "*gradients\\, Llama,two runs on cuda are bitwise equal"
    items += [
        Item("steps.distinct", 1, 25, 100, tests("train_test", first, **distinct)),
        Item("steps.wiring", 1, 100, 240, tests("train_test", steps, **distinct)),
        Item("steps.all", 1, 200, 400, tests("train_test", steps)),
    ]
    return items


def sanitizer_items() -> list[Item]:
    races = "[small][quantize],[small][norm],[small][optimizer]"
    return [
        Item("memcheck", 1, 30, 100, sanitizer("memcheck", "[small]", SANITIZER_ERRORS)),
        Item("racecheck", 1, 20, 80, sanitizer("racecheck", races, RACES)),
        Item("ranks", 1, 10, 60, tests("nccl_comm_test", "")),
        Item("ranks.steps", 1, 10, 60, tests("train_test", "[nccl]")),
    ]
