"""Holds `fp8train quantize` against a computation of its own in NumPy and ml_dtypes, written from
the rules of docs/reference/formats.md.

  check_quantize.py PROGRAM [MODEL.safetensors ...]
      runs every combination on tensors made here and on the files named, and counts the bytes that
      differ; exit code 1 when there are any
  check_quantize.py --fixtures
      writes tests/golden/run/quantize: a small input and, for each combination, a fingerprint of
      what the output has to hold (tests/run/quantize_test.cpp)

Needs numpy and ml_dtypes; calls nothing of the program but the command.
"""

import itertools
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

from quantize_rules import FLOATS, FORMATS, SEED, SIZES, cast

# Files: {name: (dtype, shape, bytes)} in order of the bytes, and the metadata.


def read(path):
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    body = data[8 + length :]
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    tensors = {}
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], body[begin:end])
    return tensors, metadata


def write(path, tensors):
    header, position = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values())
    )


def is_cast(tensor):
    return tensor[0] in FLOATS and len(tensor[1]) > 1 and math.prod(tensor[1]) > 0


def expected(tensors, how, dequantize):
    outputs, reports = {}, {}
    for number, (name, tensor) in enumerate(tensors.items()):
        if not is_cast(tensor):
            outputs[name] = tensor
            continue
        encoded, dequantized, reports[name] = cast(tensor, number, how)
        if dequantize:
            outputs[name] = dequantized
        else:
            outputs.update({name + suffix: values for suffix, values in encoded.items()})
    return outputs, reports


def combinations():
    plain = itertools.product(FORMATS, ("tensor", "row", "1x128", "128x128"), ("fp32", "pow2"))
    plain = (how for how in plain if how[0] != "e2m1")
    exponents = itertools.product(
        ("e4m3", "e5m2", "e2m1"), ("1x32", "32x32"), ("e8m0", "e8m0_floor", "e8m0_even")
    )
    under = itertools.product(("e2m1",), ("1x16", "16x16"), ("e4m3",))
    for how in itertools.chain(plain, exponents, under):
        for rounding in ("nearest", "stochastic"):
            yield how + (rounding,)


def arguments(how, dequantize):
    format_name, granularity, scale, rounding = how
    words = [
        "--format", format_name, "--granularity", granularity, "--scale", scale,
        "--rounding", rounding,
    ]
    words += ["--seed", str(SEED)] if rounding == "stochastic" else []
    return words + (["--dequantize"] if dequantize else [])


# Inputs.


def store(dtype, values):
    values = np.asarray(values, dtype=np.float32)
    return dtype, list(values.shape), values.astype(FLOATS[dtype]).tobytes()


def spread_values(random, shape, low=-8, high=8):
    """Normal numbers whose size changes from row to row and from 32 columns to the next."""
    x = random.standard_normal(shape).astype(np.float32)
    rows = random.integers(low, high, shape[:-1] + (1,))
    columns = random.integers(low, high, (shape[-1] + 31) // 32).repeat(32)[: shape[-1]]
    return np.ldexp(x, rows + columns).astype(np.float32)


def adversarial(shapes):
    random = np.random.default_rng(5)
    tensors = {}
    for dtype in FLOATS:
        smallest = {"F32": 1.4e-45, "BF16": 9.2e-41, "F16": 6.0e-8}[dtype]
        for shape in shapes:
            tensors[f"{dtype}.spread.{'x'.join(map(str, shape))}"] = store(
                dtype, spread_values(random, shape)
            )
        shape = shapes[0]
        x = random.standard_normal(shape).astype(np.float32)
        x[:, ::17] *= 3000
        tensors[f"{dtype}.outliers"] = store(dtype, x)
        tensors[f"{dtype}.zeros"] = store(dtype, np.copysign(np.zeros(shape), x))
        tensors[f"{dtype}.denormals"] = store(dtype, np.rint(x) * np.float32(smallest))
        x = random.standard_normal(shape).astype(np.float32)
        x[0, 0], x[-1, -1] = np.inf, -np.inf
        tensors[f"{dtype}.infinite"] = store(dtype, x)
        x = random.standard_normal(shape).astype(np.float32)
        x[0, -1] = np.nan
        tensors[f"{dtype}.nan"] = store(dtype, x)
        # Ties of every format, and values beyond its maximum, with a scale of 1.
        x = np.concatenate([
            np.arange(0, 64) / 1024, np.arange(0, 32) / 2, np.arange(200, 464, 4), [447, 448],
        ])
        tensors[f"{dtype}.ties"] = store(dtype, np.stack([x, -x]))
    tensors["a.vector"] = store("F32", [1, 2, 3, 4])
    tensors["a.scalar"] = store("F32", 7)
    tensors["no.elements"] = ("F32", [0, 5], b"")
    tensors["numbers"] = ("I64", [2, 2], np.arange(4, dtype=np.int64).tobytes())
    tensors["doubles"] = ("F64", [2, 2], np.arange(4, dtype=np.float64).tobytes())
    return tensors


def in_order(tensors):
    """Larger elements first, as files are written; else the order that a dictionary has is
    the order of the file."""
    return dict(sorted(tensors.items(), key=lambda item: -SIZES[item[1][0]]))


LARGE = [(129, 257), (1, 1), (3, 5), (1, 300), (256, 128), (128, 129), (33, 32), (2, 3, 130)]
SMALL = [(3, 5), (1, 1), (130, 33), (2, 3, 65), (1, 140)]


# The two jobs.


def differences(got, want):
    """Bytes that differ; a tensor that is missing, or has another type or shape, counts whole."""
    wrong = 0
    for name in got.keys() | want.keys():
        a, b = got.get(name), want.get(name)
        if a is None or b is None or a[:2] != b[:2]:
            wrong += len((a or b)[2]) + 1
            print(f"  {name}: {a and a[:2]} instead of {b and b[:2]}")
        elif a[2] != b[2]:
            here = int(np.sum(np.frombuffer(a[2], np.uint8) != np.frombuffer(b[2], np.uint8)))
            print(f"  {name}: {here} of {len(a[2])} bytes")
            wrong += here
    return wrong


def wrong_figures(got, want):
    wrong = 0
    for tensor in got["tensors"]:
        for key, value in want[tensor["name"]].items():
            same = tensor[key] == value
            if key == "snr_db" and value is not None and tensor[key] is not None:
                same = abs(tensor[key] - value) < 1e-9 * max(1, abs(value))
            if not same:
                print(f"  {tensor['name']}: {key} {tensor[key]} instead of {value}")
                wrong += 1
    return wrong + abs(len(got["tensors"]) - len(want))


def check(program, path, folder):
    tensors, _ = read(path)
    total = runs = compared = 0
    for how in combinations():
        for dequantize in (False, True):
            out = pathlib.Path(folder) / "out.safetensors"
            words = [
                program, "quantize", str(path), "--out", str(out), "--force", "--json",
            ] + arguments(how, dequantize)
            report = json.loads(
                subprocess.run(words, check=True, capture_output=True, text=True).stdout
            )
            got, metadata = read(out)
            want, reports = expected(tensors, how, dequantize)
            said = json.loads(metadata["quantization"])
            assert (said["format"], said["granularity"], said["scale"]) == how[:3] and said[
                "dequantized"
            ] == dequantize
            wrong = differences(got, want) + wrong_figures(report, reports)
            if wrong:
                print(f"{path}: {' '.join(arguments(how, dequantize))}: {wrong} differences")
            total += wrong
            runs += 1
            compared += sum(len(tensor[2]) for tensor in want.values())
    print(
        f"{path}: {runs} runs, {compared} bytes and {len(reports)} reports of each run compared, "
        f"{total} differences"
    )
    return total


def fingerprint(tensors):
    """FNV-1a of names, types, shapes and bytes, in order of the names."""
    result = 0xCBF29CE484222325
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        for byte in f"{name} {dtype} {shape}\n".encode() + data:
            result = ((result ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{result:016x}"


def write_fixtures():
    folder = pathlib.Path(__file__).parent / "run" / "quantize"
    folder.mkdir(parents=True, exist_ok=True)
    tensors = in_order(adversarial(SMALL))
    write(folder / "input.safetensors", tensors)
    lines = []
    for how in combinations():
        for dequantize in (False, True) if how[3] == "nearest" else (False,):
            print_of = fingerprint(expected(tensors, how, dequantize)[0])
            lines.append(" ".join([print_of] + arguments(how, dequantize)))
    (folder / "expected.txt").write_text("\n".join(lines) + "\n")


def main():
    if sys.argv[1:] == ["--fixtures"]:
        return write_fixtures()
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "adversarial.safetensors"
        write(made, in_order(adversarial(LARGE)))
        total = sum(check(sys.argv[1], path, folder) for path in [made] + sys.argv[2:])
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
