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

import ml_dtypes
import numpy as np

FORMATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, "F8_E4M3", 448.0, 464.0, 3, -6),
    "e5m2": (ml_dtypes.float8_e5m2, "F8_E5M2", 57344.0, 61440.0, 2, -14),
    "int8": (np.int8, "I8", 127.0, 127.5, None, None),
}
FLOATS = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}
NAN_BITS = {"F32": (np.uint32, 0x7FC00000), "BF16": (np.uint16, 0x7FFF), "F16": (np.uint16, 0x7FFF)}
LARGEST = {
    "F32": np.float32(3.40282347e38),
    "BF16": np.float32(255 * 2.0**120),
    "F16": np.float32(65504),
}
SIZES = {
    "F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}
SEED = 11
np.seterr(all="ignore")


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
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(t[2] for t in tensors.values())
    )


# Random bits: Philox4x32-10 with the program's keys.


def philox_key(seed, purpose, index):
    mask = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15 * (purpose + 1) + 0xD1B54A32D192ED03 * (index + 1)) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def random_bits(seed, tensor, count):
    key = philox_key(seed, 0x53522D31, tensor)
    low = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    blocks = np.arange((count + 3) // 4, dtype=np.uint64)
    c = [blocks & low, blocks >> shift, np.zeros_like(blocks), np.zeros_like(blocks)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c[0]
        p1 = np.uint64(0xCD9E8D57) * c[2]
        c = [
            (p1 >> shift) ^ c[1] ^ np.uint64(k0),
            p1 & low,
            (p0 >> shift) ^ c[3] ^ np.uint64(k1),
            p0 & low,
        ]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).reshape(-1)[:count].astype(np.float64)


# The rules.


def blocks_of(granularity, rows, columns):
    height, width = {
        "tensor": (rows, columns), "row": (1, columns), "1x128": (1, 128), "128x128": (128, 128),
        "1x32": (1, 32),
    }[granularity]
    return height, width


def block_amax(x, height, width):
    """max |x| of each block, NaN where it holds one."""
    down, across = -(-x.shape[0] // height), -(-x.shape[1] // width)
    amax = np.zeros((down, across), dtype=np.float32)
    for i, j in itertools.product(range(down), range(across)):
        amax[i, j] = np.max(np.abs(x[i * height : (i + 1) * height, j * width : (j + 1) * width]))
    return amax


def scales(amax, largest_code, scale, value_for_infinity):
    """What values are multiplied by, and the bytes of what codes are multiplied by."""
    if scale == "e8m0":
        ratio = amax / np.float32(largest_code)
        mantissa, exponent = np.frexp(ratio.astype(np.float64))
        up = np.where(mantissa == 0.5, exponent - 1, exponent) + 127
        code = np.clip(np.where(ratio == 0, 0, np.where(np.isinf(ratio), 254, up)), 0, 254)
        factor = np.ldexp(1.0, 127 - code).astype(np.float32)
        reciprocal = np.ldexp(1.0, code - 127).astype(np.float32)
        factor[np.isnan(ratio)] = reciprocal[np.isnan(ratio)] = np.nan
        code[np.isnan(ratio)] = 255
        return factor, reciprocal, code.astype(np.uint8)
    factor = np.float32(largest_code) / amax
    factor[np.isinf(factor)] = value_for_infinity
    if scale == "pow2":
        factor = (factor.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    factor[(amax == 0) | ~np.isfinite(amax)] = 1
    reciprocal = np.float32(1) / factor
    return factor, reciprocal, reciprocal


def stochastic_magnitude(size, bits, largest, mantissa_bits, lowest_exponent):
    """Neighbour of a finite magnitude below or above, by its distance from the lower one."""
    size = size.astype(np.float64)
    if mantissa_bits is None:
        exponent = np.zeros(size.shape)
        normal = np.zeros(size.shape, dtype=bool)
        mantissa_bits = 0
        size = np.minimum(size, largest)
    else:
        exponent = np.frexp(size)[1] - 1
        normal = (size != 0) & (exponent >= lowest_exponent)
        exponent = np.where(normal, exponent, lowest_exponent)
    unit = np.ldexp(1.0, (exponent - mantissa_bits).astype(int))
    whole = np.floor(size / unit)
    fraction = size / unit - whole
    dropped = 23 - mantissa_bits
    up_normal = fraction * 2.0**dropped + np.floor(bits / 2.0 ** (32 - dropped)) >= 2.0**dropped
    up_below = bits < np.floor(fraction * 2.0**32)
    return np.minimum((whole + np.where(normal, up_normal, up_below)) * unit, largest)


def encode(scaled, format_name, bits):
    kind, _, largest, _, mantissa_bits, lowest_exponent = FORMATS[format_name]
    missing = np.isnan(scaled)
    value = np.where(missing, np.float32(0), np.clip(scaled, -largest, largest)).astype(np.float32)
    if bits is not None:
        value = np.copysign(
            stochastic_magnitude(np.abs(value), bits, largest, mantissa_bits, lowest_exponent),
            value,
        )
        value = value.astype(np.float32)
    if format_name == "int8":
        return np.rint(value).astype(np.int8).view(np.uint8)
    codes = value.astype(kind).view(np.uint8)
    codes[missing] = 0x7F
    return codes


def cast(tensor, number, how):
    """(dtype, shape, bytes) of codes, of scales and of the dequantized tensor; and
    what the report says."""
    dtype, shape, data = tensor
    format_name, granularity, scale, rounding = how
    kind, code_type, largest, threshold, _, _ = FORMATS[format_name]
    columns = shape[-1]
    stored = np.frombuffer(data, dtype=FLOATS[dtype]).reshape(-1, columns)
    x = stored.astype(np.float32)
    height, width = blocks_of(granularity, *x.shape)
    amax = block_amax(x, height, width)
    limit = LARGEST["F32"] if granularity == "tensor" else LARGEST[dtype]
    factor, reciprocal, stored = scales(amax, largest, scale, limit)
    spread = lambda values: np.repeat(np.repeat(values, height, 0), width, 1)[
        : x.shape[0], :columns
    ]
    scaled = x * spread(factor)
    bits = random_bits(SEED, number, x.size).reshape(x.shape) if rounding == "stochastic" else None
    codes = encode(scaled, format_name, bits)
    read_back = codes.view(kind).astype(np.float32) * spread(reciprocal)
    dequantized = read_back.astype(FLOATS[dtype])
    bits_type, nan = NAN_BITS[dtype]
    dequantized = np.where(np.isnan(read_back), bits_type(nan), dequantized.view(bits_type))
    scale_shape = [1] if granularity == "tensor" else list(amax.shape)
    scale_name = "_scale_inv" if granularity in ("1x128", "128x128") else "_scale"
    finite = np.isfinite(x)
    exact = x[finite].astype(np.float64)
    back = np.where(np.isfinite(read_back), read_back, 0)[finite].astype(np.float64)
    signal, noise = float(np.sum(exact**2)), float(np.sum((exact - back) ** 2))
    report = {
        "elements": x.size,
        "amax": None if not np.isfinite(amax).all() else float(np.max(amax)),
        "saturated": int(np.sum(np.abs(scaled) > threshold)),
        "underflow": int(np.sum((x != 0) & (codes & 0x7F == 0))),
        "nan": int(np.sum(np.isnan(x))),
        "infinite": int(np.sum(np.isinf(x))),
        "snr_db": None if signal == 0 or noise == 0 else 10 * math.log10(signal / noise),
    }
    return (
        {
            "": (code_type, shape, codes.tobytes()),
            scale_name: (
                "U8" if scale == "e8m0" else "F32",
                scale_shape,
                np.ascontiguousarray(stored).tobytes(),
            ),
        },
        (dtype, shape, np.ascontiguousarray(dequantized).tobytes()),
        report,
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
    for how in itertools.chain(plain, (("e4m3", "1x32", "e8m0"), ("e5m2", "1x32", "e8m0"))):
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
            np.arange(0, 64) / 1024,
            np.arange(0, 32) / 2,
            np.arange(200, 464, 4),
            [447, 448],
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
