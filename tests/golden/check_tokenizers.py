#!/usr/bin/env python3
"""Holds the ids of `data prepare` against Hugging Face's tokenizers, over a text of any length.

    tests/golden/check_tokenizers.py build/bin/fp8train TEXT TOKENIZER...
        TOKENIZER: a folder with tokenizer.json

Prints the number of ids that differ, and MB/s of both on one thread. Needs: pip
install tokenizers numpy
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402


def read_shards(folder):
    shards = []
    for path in sorted(folder.glob("train_*.bin")):
        magic = numpy.fromfile(path, numpy.int32, 1)[0]
        shards.append(
            numpy.fromfile(
                path, numpy.uint16 if magic == 20240520 else numpy.uint32, offset=1024
            ).astype(numpy.int64)
        )
    return numpy.concatenate(shards)


def main():
    program, text = Path(sys.argv[1]), Path(sys.argv[2])
    megabytes = text.stat().st_size / 1e6
    failed = False
    for folder in sys.argv[3:]:
        tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        content = text.read_bytes().decode("utf-8", "replace")
        start = time.perf_counter()
        expected = numpy.array(tokenizer.encode(content, add_special_tokens=False).ids)
        theirs = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as out:
            start = time.perf_counter()
            command = [
                program, "data", "prepare", text, "--format", "text", "--tokenizer", folder,
                "--no-append-eos", "--out", out,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            ours = time.perf_counter() - start
            ids = read_shards(Path(out))
        # a template's BOS
        prefix = (
            len(ids) - len(expected)
            if len(ids) - len(expected) == 1 and ids[0] != expected[0]
            else 0
        )
        same = len(ids) - prefix == len(expected)
        differing = (
            int((ids[prefix:] != expected).sum())
            if same
            else f"{len(ids)} instead of {len(expected)}"
        )
        failed = failed or differing != 0
        print(
            f"{Path(folder).name}: {len(expected)} ids, {differing} differ; tokenizers "
            f"{megabytes / theirs:.1f} MB/s, "
            f"fp8train {megabytes / ours:.1f} MB/s"
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
