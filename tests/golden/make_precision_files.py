#!/usr/bin/env python3
"""What Megatron-LM's own code reads in the files of tests/golden/precision/files: for each layer of
two blocks the key of its configuration, or null. Only the outcome is stored
(tests/golden/precision/files.json).

    tests/golden/make_precision_files.py MEGATRON_LM
        a working copy; its quant_config.py runs alone
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

HERE = Path(__file__).parent
PARTS = [
    "self_attention.linear_qkv",
    "self_attention.linear_proj",
    "mlp.linear_fc1",
    "mlp.linear_fc2",
]


def load_quant_config(checkout):
    """The file imports one logging function of the package, which asks for torch."""
    for name in ["megatron", "megatron.core", "megatron.core.utils"]:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["megatron.core.utils"].log_single_rank = lambda *_: None
    path = Path(checkout) / "megatron/core/quantization/quant_config.py"
    spec = importlib.util.spec_from_file_location("quant_config", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["quant_config"] = module
    spec.loader.exec_module(module)
    return module


def main():
    upstream = load_quant_config(sys.argv[1])
    result = {}
    for path in sorted((HERE / "precision/files").glob("*.yaml")):
        recipe = upstream.RecipeConfig.from_yaml_file(str(path))
        found = {}
        for block in range(2):
            for part in PARTS:
                name = f"decoder.layers.{block}.{part}"
                found[name] = recipe.match_to_config_key(upstream.MatchContext(name, block))
        result[path.name] = found
    (HERE / "precision/files.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
