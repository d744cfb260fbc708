"""Writes tests/golden/nn/msamp_windows.txt, which tests/nn/msamp_windows_test.cpp reads: what
MS-AMP's own scaling does to tensors of one value, in the code of MS-AMP itself.

  run FORMAT WINDOW UPDATES CASTS
      CASTS casts before each update
  cast AMAX SCALE IN_TIME ...
      for each cast: |value|, the scale that it is cast with (fp32 bits), 1 where it is the tensor's
      own
  state COUNTER SCALE AMAX ...
      after each update: the updates since the first window began, the scale, and the window from
      its newest value (fp32 bits)
  weight AMAX SCALE_INV
      the inverse scale that a weight is cast with where TransformerEngine asks for the cast (fp32
      bits)

Runs msamp.common.tensor.TypeCast.cast_to_fp8, msamp.optim.LBOptimizer.step and msamp.te.extension's
fused_cast_transpose on a CPU. What needs a GPU is replaced: the cast kernel of TransformerEngine,
by a maximum into *amax, and what the modules import and do not call here. Values are zero, infinite
or NaN at random places: often, or so seldom that windows fill again in between.

Called with the path of a checkout of MS-AMP by a Python that has torch, numpy and colorlog (made
with MS-AMP 9746ea8, torch 2.15, NumPy 2.4).
"""

import pathlib
import sys
import types

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
UPDATES = 120


class Stub(types.ModuleType):
    """A module that has whatever it is asked for."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Stub(name))
        return getattr(self, name)


def on_cpu(make):
    return lambda *args, device=None, **others: make(*args, **others)


def load(checkout):
    sys.path.insert(0, str(checkout))
    # Their __init__.py import the whole of MS-AMP.
    for name in ("msamp", "msamp.nn", "msamp.optim", "msamp.te"):
        package = types.ModuleType(name)
        package.__path__ = [str(pathlib.Path(checkout, *name.split(".")))]
        sys.modules[name] = package
    for name in (
        "transformer_engine",
        "transformer_engine_extensions",
        "msamp.operators",
        "msamp.operators.dist_op",
    ):
        sys.modules[name] = Stub(name)
    sys.modules["transformer_engine.pytorch"] = sys.modules["transformer_engine"].pytorch
    torch.ones, torch.zeros = on_cpu(torch.ones), on_cpu(torch.zeros)
    torch.Tensor.is_cuda = property(lambda self: True)
    from msamp.nn.state import model_state

    sys.modules["msamp.nn"].model_state = model_state
    sys.modules["msamp.nn"].ScalingParameter = type("ScalingParameter", (), {})
    import msamp.common.tensor.cast as cast

    class Kernel:
        @staticmethod
        def cast_to_fp8(value, scale, amax, scale_inv, qtype):
            amax.copy_(torch.maximum(amax, value.abs().max()))
            return value.to(torch.uint8)

    cast.TransformerEngineWrapper = Kernel
    from msamp.common.dtype import Dtypes
    from msamp.common.tensor import ScalingMeta
    from msamp.optim.optimizer import LBOptimizer

    return Dtypes, ScalingMeta, cast.TypeCast, model_state, LBOptimizer


def bits(value):
    return f"{np.float32(float(value)).view(np.uint32):08x}"


def magnitudes(rng, count, rare):
    """Neighbours alike, as those of a tensor in training, with jumps; the part
    `rare` is not finite."""
    size = rng.uniform(-20, 20)
    for _ in range(count):
        size = rng.uniform(-20, 20) if rng.random() < 0.05 else size + rng.normal(0, 0.7)
        kind = rng.random()
        if kind < 0.08:
            yield 0.0
        elif kind < 0.08 + rare / 2:
            yield float("inf")
        elif kind < 0.08 + rare:
            yield float("nan")
        else:
            yield float(np.float32(2.0**size))


def run(parts, name, window, casts, rare, seed):
    Dtypes, ScalingMeta, TypeCast, model_state, LBOptimizer = parts
    qtype = {"e4m3": Dtypes.kfloat8_e4m3, "e5m2": Dtypes.kfloat8_e5m2}[name]

    class Steps(LBOptimizer):
        def lb_step(self, closure=None):
            return None

    metas = {
        key: ScalingMeta(qtype, torch.ones(()), torch.ones(()), torch.zeros(window), window)
        for key in ("input", "ograd")
    }
    model_state.flattened_scaling_metas = {
        key: model_state._flatten_scaling_metas([m]) for key, m in metas.items()
    }
    optimizer = Steps([torch.nn.Parameter(torch.zeros(1))], {})
    meta = metas["input" if name == "e4m3" else "ograd"]
    values = magnitudes(np.random.default_rng(seed), UPDATES * casts, rare)
    yield f"run {name} {window} {UPDATES} {casts}"
    for _ in range(UPDATES):
        line = []
        for _ in range(casts):
            value = next(values)
            in_time = bool(meta.is_in_time_scaling())
            TypeCast.cast_to_fp8(torch.tensor([-value]), meta)
            line += [bits(value), bits(meta.scale), str(int(in_time))]
        yield "cast " + " ".join(line)
        model_state.ready_to_scale_tensor = True
        optimizer.step()
        # The first entry is the place of the next step's amax.
        yield "state " + " ".join([
            str(int(meta.amax_counter)),
            bits(meta.scale),
            *(bits(v) for v in meta.amax[1:]),
        ])


def weights(parts):
    """Through TransformerEngine's patched cast, whose own scale and amax are
    there and have no say."""
    Dtypes, ScalingMeta, TypeCast, _, _ = parts
    import msamp.te.extension
    from msamp.common.tensor import ScalingTensor

    tex = sys.modules["transformer_engine_extensions"]
    rng = np.random.default_rng(17)
    for _ in range(100):
        amax = float(np.float32(2.0 ** rng.uniform(-20, 10)))
        meta = ScalingMeta(Dtypes.kfloat16)
        weight = ScalingTensor(TypeCast.cast_to_fp16(torch.tensor([[amax, -amax / 3]]), meta), meta)
        scale, amaxes, scale_inv = torch.full((), 3.0), torch.full((), 5.0), torch.zeros(())
        cast, transpose = torch.empty(0), torch.empty(0)
        tex.fused_cast_transpose(
            weight, scale, amaxes, scale_inv, cast, transpose, tex.DType.kFloat8E4M3
        )
        assert scale == 3 and amaxes == 5
        yield f"weight {bits(amax)} {bits(scale_inv)}"


def main():
    parts = load(sys.argv[1])
    lines = []
    runs = [
        ("e4m3", 16, 1, 0.08),
        ("e5m2", 16, 1, 0.02),
        ("e4m3", 16, 3, 0.01),
        ("e5m2", 4, 2, 0.08),
        ("e5m2", 4, 3, 0.02),
    ]
    for seed, (name, window, casts, rare) in enumerate(runs):
        lines += run(parts, name, window, casts, rare, seed)
    lines += weights(parts)
    (HERE / "nn" / "msamp_windows.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
