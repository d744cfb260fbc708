"""Makes the token files under tests/golden/data with the formats' own code: numpy, and
indexed_dataset.py of Megatron-LM.

    tests/golden/make_token_files.py MEGATRON
        the folder that has megatron/core/datasets/indexed_dataset.py

Needs numpy. indexed_dataset.py imports torch and parts of megatron.core that its writer does not
use; they are left out here.
"""

import importlib.util
import pathlib
import shutil
import sys
import types

import numpy

out = pathlib.Path(__file__).parent / "data"


def ids(count, vocabulary):
    """The tests compute the same ids."""
    return (numpy.arange(count, dtype=numpy.int64) * 7919) % vocabulary


def indexed_dataset(folder):
    for name in (
        "torch", "megatron", "megatron.core", "megatron.core.datasets",
        "megatron.core.datasets.utils_s3", "megatron.core.utils",
    ):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["torch"].Tensor = object
    sys.modules["torch"].utils = types.SimpleNamespace(data=types.SimpleNamespace(Dataset=object))
    for name in ("S3Config", "is_s3_path", "maybe_download_file", "object_exists", "parse_s3_path"):
        setattr(sys.modules["megatron.core.datasets.utils_s3"], name, None)
    sys.modules["megatron.core.utils"].log_single_rank = lambda *_: None
    path = folder / "megatron/core/datasets/indexed_dataset.py"
    spec = importlib.util.spec_from_file_location("indexed_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def save_arrays():
    numpy.save(out / "u16.npy", ids(300, 50257).astype("<u2"))
    numpy.save(out / "i32.npy", ids(60, 128256).astype("<i4").reshape(4, 15))
    numpy.save(out / "i64.npy", ids(40, 128256).astype("<i8"))
    numpy.save(out / "u8.npy", ids(40, 200).astype("u1"))
    with open(out / "version2.npy", "wb") as file:
        numpy.lib.format.write_array(file, ids(10, 50257).astype("<u4"), version=(2, 0))
    numpy.save(
        out / "by_columns.npy", numpy.asfortranarray(ids(60, 128256).astype("<i4").reshape(4, 15))
    )
    numpy.save(out / "big_endian.npy", ids(10, 50257).astype(">u2"))
    numpy.save(out / "float.npy", ids(10, 50257).astype("<f4"))
    numpy.save(out / "negative.npy", numpy.array([1, -2, 3], dtype="<i4"))


def save_indexed(module, name, vocabulary, lengths, multimodal=False):
    """`lengths`: of the sequences of each document."""
    dtype = module.DType.optimal_dtype(vocabulary)
    builder = module.IndexedDatasetBuilder(
        str(out / f"{name}.bin"), dtype=dtype, multimodal=multimodal
    )
    tokens = ids(sum(map(sum, lengths)), vocabulary)
    for document in lengths:
        modes = [1] * len(document) if multimodal else None
        builder.add_document(tokens[: sum(document)], document, modes)
        tokens = tokens[sum(document) :]
    builder.finalize(str(out / f"{name}.idx"))


def main():
    module = indexed_dataset(pathlib.Path(sys.argv[1]))
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    save_arrays()
    save_indexed(module, "indexed_u16", 50257, [[100], [30, 0, 70], [], [50]])
    save_indexed(module, "indexed_i32", 128256, [[20], [15, 25]])
    # as `data prepare` writes them
    save_indexed(module, "documents_u16", 50257, [[100], [30], [50]])
    save_indexed(module, "documents_i32", 128256, [[20], [40]])
    save_indexed(module, "indexed_modes", 50257, [[5], [3, 4]], multimodal=True)


if __name__ == "__main__":
    main()
