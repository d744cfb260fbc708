#!/usr/bin/env python3
"""Writes tests/golden/precision/plan_sources.json, which tests/precision/plan_sources_test.cpp
reads: what the sources of our plans say of themselves.

Called with a folder in which the sources lie as clones: torchao, TransformerEngine, MS-AMP, COAT,
accelerate. Each file is read as its HEAD has it, and the commit is noted. The sources' own Python
runs on a CPU; compiled modules are replaced by empty classes (`Stub`), and what a GPU would do with
a tensor by a note of what was asked for (`Noted`).

  torchao             Float8LinearConfig.from_recipe_name of every recipe, every field
  transformer_engine  the instances of the recipes with every default, and which GEMMs have a split
                      accumulator where a recipe does not say so
  msamp               metas of FP8Linear; the casts and products that its forward and backward ask
                      for; what the replaced cast of TransformerEngine's modules asks for; types of
                      the moments that initialize() gives to the optimizer at O1 and O2; types of
                      weights at O3
  coat                an instance of QuantizationConfig; types of the states that CoatAdamW makes
                      for an fp32 parameter; the precision of the OLMo configuration; which
                      quantized functions forward calls, in training and in evaluation
  accelerate          instances of the three recipe handlers, and what apply_fp8_autowrap hands on
                      of the first

Needs torch, PyYAML, pydantic, numpy and what accelerate imports and MS-AMP import (packaging,
psutil, huggingface_hub, safetensors, colorlog); made with torch 2.15.
"""

import ast
import dataclasses
import enum
import importlib
import json
import pathlib
import sys
import tempfile
import types

from source_clones import StubFinder, StubModule, git, load, text_of, unpack

OUT = pathlib.Path(__file__).resolve().parent / "precision/plan_sources.json"


def constants(source):
    """Module-level assignments of literals."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
    return found


def plain(value):
    """As JSON has it."""
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def attributes(instance):
    """Every attribute that is data, those of the class too."""
    names = [n for n in dir(instance) if not n.startswith("_")]
    return {
        n: plain(getattr(instance, n))
        for n in names
        if not callable(getattr(instance, n)) or isinstance(getattr(instance, n), enum.Enum)
    }


def torchao(repository):
    stub = StubModule("torchao.utils")
    stub.is_MI300 = lambda: False
    sys.modules["torchao.utils"] = stub
    config = load("torchao.float8.config", repository, "torchao/float8/config.py")
    recipes = {}
    for name in config.Float8LinearRecipeName:
        recipes[name.value] = plain(config.Float8LinearConfig.from_recipe_name(name))
    eps = constants(text_of(repository, "torchao/float8/float8_utils.py"))["EPS"]
    return {"recipes": recipes, "EPS": eps}


def transformer_engine(repository):
    recipe = load("te_recipe", repository, "transformer_engine/common/recipe/__init__.py")
    names = ["DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"]
    formats = {
        each.name: {"max_fwd": each.value.max_fwd, "max_bwd": each.value.max_bwd}
        for each in recipe.Format
    }
    modules = constants(text_of(repository, "transformer_engine/pytorch/module/base.py"))
    return {
        "formats": formats,
        "recipes": {name: attributes(getattr(recipe, name)()) for name in names},
        "split_accumulator_of_modules": {
            name: modules[name] for name in ("_2X_ACC_FPROP", "_2X_ACC_DGRAD", "_2X_ACC_WGRAD")
        },
    }


class Noted:
    """A tensor that notes which casts are asked of it."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes
        self.requires_grad, self.grad, self.value = True, None, self
        self.meta = types.SimpleNamespace(scale_inv=0.0)

    def note(self, qtype, meta, sync):
        window = None if meta is None else meta.window_size
        self.notes.append({"cast": self.name, "to": qtype.name, "window": window, "sync": sync})
        return Noted(self.name, self.notes)

    def cast(self, qtype, meta=None, sync=False):
        return self.note(qtype, meta, sync)

    def fused_cast_transpose(self, qtype, meta=None, sync=False):
        made = self.note(qtype, meta, sync)
        return made, made

    def contiguous(self):
        return self

    t = fp8_transpose = contiguous

    def backward_grad_update(self, gradient):
        pass


def meta_of(meta):
    return {
        "qtype": meta.qtype.name, "window": meta.window_size,
        "in_time_at_first": bool(meta.is_in_time_scaling()),
    }


def msamp(repository, folder):
    import torch

    unpack(repository, folder, "msamp")
    sys.path.insert(0, str(folder))
    for name in ("zeros", "ones", "empty"):
        make = getattr(torch, name)
        setattr(torch, name, lambda *a, device=None, _make=make, **k: _make(*a, **k))
    importlib.import_module("transformer_engine.pytorch.module.base")
    te = sys.modules["transformer_engine.pytorch"]
    for module, name in (
        ("linear", "_Linear"), ("layernorm_linear", "_LayerNormLinear"),
        ("layernorm_mlp", "_LayerNormMLP"),
    ):
        setattr(getattr(te.module, module), name, type(name, (torch.autograd.Function,), {}))
    import msamp as package
    from msamp.common.dtype import Floating
    from msamp.common.tensor import ScalingTensor
    from msamp.nn import FP8Linear, functional, model_state
    from msamp.optim import LBAdamW
    from msamp.te.extension import TeExtensionOverrider, tex

    result = {"qfp_max": {qtype.name: value for qtype, value in Floating.qfp_max.items()}}
    linear = FP8Linear(32, 32)
    after = meta_of(linear.scaling_metas["input"])
    linear.scaling_metas["input"].amax_counter += after["window"]
    result["linear"] = {
        "weight": meta_of(linear.weight.meta),
        "metas": {name: meta_of(meta) for name, meta in linear.scaling_metas.items()}
        | {"input": after},
        "input_in_time_after_its_window": bool(linear.scaling_metas["input"].is_in_time_scaling()),
    }

    notes = []

    def gemm(a, b, qtype, accumulate=False, out=None, use_split_accumulator=False):
        notes.append({"gemm": [b.name, a.name], "use_split_accumulator": use_split_accumulator})
        return Noted("wgrad" if a.name == "input" else "result", notes)

    functional.Gemm = types.SimpleNamespace(fp8_gemm=gemm)
    model_state.check_metas_in_flat = lambda metas: None
    context = types.SimpleNamespace()
    function = functional._FP8GemmFunction
    function.forward(
        context, Noted("input", notes), Noted("weight", notes), linear.scaling_metas,
        torch.empty(0, dtype=torch.bfloat16),
    )
    function.backward(context, Noted("ograd", notes))
    result["passes"] = list(notes)
    model_state.use_fp8_ddp = True
    notes.clear()
    function.backward(context, Noted("ograd", notes))
    result["casts_of_wgrad_with_fp8_ddp"] = [note for note in notes if note.get("cast") == "wgrad"]

    # What TransformerEngine's modules call for a weight: its scale and amax come in as 3 and 5.
    class NotedWeight(Noted, ScalingTensor):
        pass

    notes.clear()
    scale, amax, scale_inv = torch.tensor(3.0), torch.tensor(5.0), torch.tensor(1.0 / 3.0)
    TeExtensionOverrider.fused_cast_transpose(
        NotedWeight("weight", notes), scale, amax, scale_inv, Noted("out", []), Noted("out", []),
        tex.DType.kFloat8E4M3,
    )
    result["te_weight"] = {
        "casts": list(notes), "scale_after": scale.item(), "amax_after": amax.item(),
        "scale_inv_after": scale_inv.item(),
    }

    result["opt_levels"] = {}
    package.LinearReplacer.replace = staticmethod(lambda model: model)
    # in the torch of its time AdamW is no Adam
    torch.optim.Adam = type("Adam", (torch.optim.Optimizer,), {})
    for level in package.opt_levels:
        model = torch.nn.Linear(16, 16)
        adamw = torch.optim.AdamW(model.parameters())
        adamw.defaults.pop("decoupled_weight_decay", None)
        adamw.param_groups[0].pop("decoupled_weight_decay", None)
        _, optimizer = package.initialize(model, adamw, opt_level=level)
        assert isinstance(optimizer, LBAdamW)
        result["opt_levels"][level] = {
            "exp_avg": str(optimizer.exp_avg_dtype),
            "exp_avg_sq": str(optimizer.exp_avg_sq_dtype),
        }
    from msamp.megatron.optimizer.distrib_optimizer import FP8DistributedOptimizer

    names = ("weight_qtype", "master_weight_qtype", "wgrad_qtype")
    result["distributed_optimizer"] = {
        name: getattr(FP8DistributedOptimizer, name).name for name in names
    }
    return result


def calls(nodes):
    """Calls of fp8_ functions, in order, with the names of what they get."""
    found = []
    for top in nodes:
        for node in ast.walk(top):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id.startswith("fp8_")
            ):
                found.append((
                    node.lineno,
                    [node.func.id] + [a.id for a in node.args if isinstance(a, ast.Name)],
                ))
    return [call for _, call in sorted(found)]


def coat_flow(source):
    flow = {}
    for cls in ast.parse(source).body:
        forward = [
            f
            for f in getattr(cls, "body", [])
            if isinstance(f, ast.FunctionDef) and f.name == "forward"
        ]
        if (
            not isinstance(cls, ast.ClassDef)
            or not cls.name.lstrip("_").startswith("CoatLlama")
            or not forward
        ):
            continue
        if cls.name.startswith("_"):
            flow[cls.name] = {"training": calls(forward)}
            continue
        for node in forward[0].body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "self.training":
                flow[cls.name] = {"evaluation": calls(node.orelse)}
    return flow


def coat(repository):
    import torch
    import yaml

    sys.modules["transformers"] = StubModule("transformers")
    for name in ("coat", "coat.utils", "coat.optimizer"):
        sys.modules[name] = StubModule(name)
    path = "coat/utils/_fp8_quantization_config.py"
    config = load("coat.utils._fp8_quantization_config", repository, path)
    optimizer = load("coat.optimizer.fp8_adamw", repository, "coat/optimizer/fp8_adamw.py")
    parameter = torch.nn.Parameter(torch.zeros(4, 256))
    parameter.grad = torch.zeros(4, 256)
    adamw = optimizer.CoatAdamW([parameter])
    lists = [[] for _ in range(12)]
    adamw._init_group(adamw.param_groups[0], lists[0], lists[1], False, True, *lists[2:])
    states = {
        name: {"dtype": str(s.dtype), "count": s.numel()}
        for name, s in adamw.state[parameter].items()
        if name != "step"
    }

    olmo = yaml.safe_load(text_of(repository, "examples/OLMo/configs/coat/OLMo-1B-COAT-Both.yaml"))
    for name in ("olmo", "olmo.aliases", "olmo.exceptions", "olmo.util"):
        sys.modules[name] = StubModule(name)
    train = load("olmo.config", repository, "examples/OLMo/olmo/config.py").TrainConfig
    run = types.SimpleNamespace(
        precision=olmo["precision"], fsdp=types.SimpleNamespace(precision=olmo["fsdp"]["precision"])
    )
    run.autocast_precision = train.autocast_precision.fget(run)
    mixed = train.fsdp_precision.fget(run)
    return {
        "QuantizationConfig": attributes(config.QuantizationConfig()),
        "states_of_1024_fp32_values": states,
        "olmo": {
            "quantize_model": olmo["quantize_model"],
            "quantize_optimizer": olmo["quantize_optimizer"], "param_dtype": str(mixed.param_dtype),
            "reduce_dtype": str(mixed.reduce_dtype),
        },
        "flow": coat_flow(text_of(repository, "coat/models/coat_llama.py")),
    }


def accelerate(repository, folder):
    unpack(repository, folder, "src/accelerate")
    sys.path.insert(0, str(folder / "src"))
    from accelerate.utils import dataclasses as handlers
    from accelerate.utils import transformer_engine as wrapping

    ao = StubModule("torchao.float8")
    ao.Float8LinearConfig = sys.modules["torchao.float8.config"].Float8LinearConfig
    sys.modules["torchao.float8"] = ao
    recipe = sys.modules["te_recipe"]
    sys.modules["transformer_engine.common.recipe"] = recipe
    sys.modules["transformer_engine.common"].recipe = recipe
    sys.modules["transformer_engine"].common = sys.modules["transformer_engine.common"]
    sys.modules["transformer_engine.pytorch.fp8"].check_mxfp8_support = lambda: (True, "")
    for module in (handlers, wrapping):
        module.is_transformer_engine_available = module.is_torchao_available = lambda: True
    seen = {}
    wrapping.contextual_fp8_autocast = lambda forward, made, use: (
        seen.update(recipe=made, use_during_eval=use) or forward
    )
    model = types.SimpleNamespace(forward=lambda: None)
    wrapping.apply_fp8_autowrap(model, handlers.TERecipeKwargs())
    made = {
        "recipe": type(seen["recipe"]).__name__, "fields": attributes(seen["recipe"]),
        "use_during_eval": seen["use_during_eval"],
    }
    result = {"TERecipeKwargs": {"fields": attributes(handlers.TERecipeKwargs()), "makes": made}}
    for name in ("MSAMPRecipeKwargs", "AORecipeKwargs"):
        result[name] = {"fields": attributes(getattr(handlers, name)())}
    return result


def main():
    root = pathlib.Path(sys.argv[1])
    where = {
        name: str(root / name)
        for name in ("torchao", "TransformerEngine", "MS-AMP", "COAT", "accelerate")
    }
    sys.meta_path.insert(0, StubFinder())
    for name in ("transformer_engine.common", "transformer_engine.pytorch.fp8"):
        importlib.import_module(name)

    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        document = {
            "commits": {
                name: git(path, "rev-parse", "HEAD").decode().strip()
                for name, path in where.items()
            },
            "torchao": torchao(where["torchao"]),
            "transformer_engine": transformer_engine(where["TransformerEngine"]),
            "msamp": msamp(where["MS-AMP"], folder),
            "coat": coat(where["COAT"]),
            "accelerate": accelerate(where["accelerate"], folder),
        }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
