"""Outlier channels: a model folder that computes the same function with larger inputs of products.

The gain of a norm is multiplied by S = 2^k in some channels, and the columns of the weights that
read the norm's output are divided by S there. Both are exact in fp32 and bf16, so that a plan
without scales gives the same loss to the last bits; only the scale that a cast shares with other
channels knows of it. Conditions are named outliers-KIND-K: `block` fills one block of 128 channels,
`one` is a single channel, `each` has one channel in each block of 128.

The folder is no checkpoint: it has weights and no optimizer state."""

import array
import json
import pathlib
import shutil
import struct

PLAIN = "plain"
KINDS = ("block", "one", "each")
BLOCK = 128
# A norm of a block and the layers that read it. The final norm is left as it is: its weight is the
# embedding's.
READERS = {
    "input_layernorm": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
}


def condition_of(kind, exponent):
    return f"outliers-{kind}-{exponent}"


def channels_of(kind, width):
    if kind == "block":
        return list(range(BLOCK, 2 * BLOCK))
    if kind == "one":
        return [BLOCK + BLOCK // 3]
    if kind == "each":
        return [start + BLOCK // 3 for start in range(0, width, BLOCK)]
    raise ValueError(f"unknown kind of outliers '{kind}' (expected {', '.join(KINDS)})")


def read_tensors(path):
    """name: (shape, fp32 values) of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        tensors = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if entry["dtype"] != "F32":
                raise ValueError(f"{path}: '{name}' is {entry['dtype']}, expected F32")
            begin, end = entry["data_offsets"]
            file.seek(start + begin)
            values = array.array("f")
            values.frombytes(file.read(end - begin))
            tensors[name] = (entry["shape"], values)
    return tensors


def write_tensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            values.tofile(file)


def scale_channels(tensors, kind, factor):
    """In place."""
    for name, (shape, gain) in tensors.items():
        layer, _, norm = name.removesuffix(".weight").rpartition(".")
        if norm not in READERS:
            continue
        channels = channels_of(kind, shape[0])
        for channel in channels:
            gain[channel] *= factor
        for reader in READERS[norm]:
            (rows, columns), weight = tensors[f"{layer}.{reader}.weight"]
            for row in range(rows):
                for channel in channels:
                    weight[row * columns + channel] /= factor


def with_outliers(checkpoint, condition):
    """The folder of a checkpoint's model under a condition; written where it is missing."""
    if condition == PLAIN:
        return checkpoint
    _, kind, exponent = condition.split("-")
    folder = checkpoint.parent.parent / condition
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(checkpoint / name, folder / name)
    tensors = read_tensors(checkpoint / "model.safetensors")
    scale_channels(tensors, kind, 2.0 ** int(exponent))
    partial = pathlib.Path(folder / "model.safetensors.new")
    write_tensors(partial, tensors)
    partial.rename(folder / "model.safetensors")
    return folder
