"""The rules of docs/reference/formats.md for casts to FP8, int8 and FP4, in NumPy and ml_dtypes."""

import itertools
import math

import ml_dtypes
import numpy as np

FORMATS = {
    "e4m3": (ml_dtypes.float8_e4m3fn, "F8_E4M3", 448.0, 464.0, 3, -6),
    "e5m2": (ml_dtypes.float8_e5m2, "F8_E5M2", 57344.0, 61440.0, 2, -14),
    "int8": (np.int8, "I8", 127.0, 127.5, None, None),
    "e2m1": (ml_dtypes.float4_e2m1fn, "U8", 6.0, 7.0, 1, 0),
}
FLOATS = {"F32": np.float32, "BF16": ml_dtypes.bfloat16, "F16": np.float16}
NAN_BITS = {"F32": (np.uint32, 0x7FC00000), "BF16": (np.uint16, 0x7FFF), "F16": (np.uint16, 0x7FFF)}
LARGEST = {
    "F32": np.float32(3.40282347e38), "BF16": np.float32(255 * 2.0**120), "F16": np.float32(65504),
}
SIZES = {
    "F64": 8, "I64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}
SEED = 11
np.seterr(all="ignore")

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
            (p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c[3] ^ np.uint64(k1),
            p0 & low,
        ]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=1).reshape(-1)[:count].astype(np.float64)


# The rules.


def blocks_of(granularity, rows, columns):
    height, width = {
        "tensor": (rows, columns), "row": (1, columns), "1x128": (1, 128), "128x128": (128, 128),
        "1x32": (1, 32), "32x32": (32, 32), "1x16": (1, 16), "16x16": (16, 16),
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
    if scale in ("e8m0_floor", "e8m0_even"):
        bits = {448: 3, 57344: 2, 6: 1}[largest_code]
        carry = 1 << (22 - bits) if scale == "e8m0_even" else 0
        finite = np.isfinite(amax)
        power = (np.where(finite, amax, 0).astype(np.float32).view(np.uint32) + carry) >> 23
        code = power.astype(np.int64) - {448: 8, 57344: 15, 6: 2}[largest_code]
        missing = ~finite | (power == 255)
        code = np.where(missing, 0, np.maximum(code, 0))
        factor = np.ldexp(1.0, 127 - code).astype(np.float32)
        reciprocal = np.ldexp(1.0, code - 127).astype(np.float32)
        factor[missing] = reciprocal[missing] = np.nan
        code[missing] = 255
        return factor, reciprocal, code.astype(np.uint8)
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


def two_level_scales(amax):
    """What values are multiplied by, what codes are, the bytes of the blocks' scales, and the scale
    of the tensor."""
    one = np.float32(1)
    limit = LARGEST["F32"]
    above = np.max(amax)
    quotient = np.float32(448) * np.float32(6) / above
    quotient = limit if quotient > limit else quotient
    tensor = one if above == 0 or quotient == 0 else quotient
    under = amax * (tensor * (one / np.float32(6)))
    missing = np.isnan(under)
    limited = np.where(missing, np.float32(0), np.minimum(under, 448))
    stored = limited.astype(ml_dtypes.float8_e4m3fn)
    read = np.where(missing, np.float32(np.nan), stored.astype(np.float32))
    factor = one / (read * (one / tensor))
    factor = np.where(factor > limit, limit, factor)
    codes = stored.view(np.uint8).copy()
    codes[missing] = 0x7F
    return factor, read * (one / tensor), codes, tensor


def pack(codes):
    """Rows of 4 bits, the lower half of a byte first."""
    codes = np.pad(codes, ((0, 0), (0, codes.shape[1] % 2)))
    return codes[:, ::2] | codes[:, 1::2] << 4


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
    codes[missing] = 0x7 if format_name == "e2m1" else 0x7F
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
    above = None
    if scale == "e4m3":
        factor, reciprocal, stored, above = two_level_scales(amax)
    else:
        factor, reciprocal, stored = scales(amax, largest, scale, limit)
    spread = lambda values: np.repeat(np.repeat(values, height, 0), width, 1)[
        : x.shape[0], :columns
    ]
    scaled = x * spread(factor)
    bits = None
    if rounding == "stochastic":
        drawn = -(-columns // width) * width if format_name == "e2m1" else columns
        bits = random_bits(SEED, number, x.shape[0] * drawn).reshape(-1, drawn)[:, :columns]
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
        "underflow": int(np.sum((x != 0) & (codes & (7 if format_name == "e2m1" else 0x7F) == 0))),
        "nan": int(np.sum(np.isnan(x))),
        "infinite": int(np.sum(np.isinf(x))),
        "snr_db": None if signal == 0 or noise == 0 else 10 * math.log10(signal / noise),
    }
    if height in (16, 32) and height == width:  # each row has the scale of its square
        stored = np.repeat(stored, height, 0)[: x.shape[0]]
        scale_shape = list(stored.shape)
    scale_type = "F8_E4M3" if scale == "e4m3" else "U8" if scale.startswith("e8m0") else "F32"
    encoded = {
        "": (code_type, shape, codes.tobytes()),
        scale_name: (scale_type, scale_shape, np.ascontiguousarray(stored).tobytes()),
    }
    if format_name == "e2m1":
        del encoded[""]
        codes = pack(codes)
        encoded["_packed"] = (code_type, shape[:-1] + [codes.shape[1]], codes.tobytes())
    if above is not None:
        encoded["_global_scale"] = ("F32", [1], np.float32(above).tobytes())
    return (
        encoded,
        (dtype, shape, np.ascontiguousarray(dequantized).tobytes()),
        report,
    )
