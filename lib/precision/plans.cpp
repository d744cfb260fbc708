// The plans. Nothing below this file knows a method's name.

#include "precision/plan_entries.h"
#include "precision/plan_formats.h"

namespace fp8train {
namespace {

/// Everything in fp32.
PrecisionPlan fp32() {
  return unscaled("fp32", DType::f32);
}

/// bf16 GEMMs and activations, bf16 weights with an fp32 master (the usual mixed precision).
PrecisionPlan bf16_mixed() {
  PrecisionPlan plan = unscaled("bf16", DType::bf16);
  plan.weight = plain(DType::bf16);
  plan.master_weight = plain(DType::f32);
  return plan;
}

/// fp16 GEMMs and activations, fp32 weights, dynamic loss scaling (torch.amp's GradScaler).
PrecisionPlan fp16_mixed() {
  PrecisionPlan plan = unscaled("fp16", DType::f16);
  plan.dynamic_loss_scaling = true;
  return plan;
}

/// DelayedScaling, defaults of common/recipe/__init__.py: margin 0, history 1024, max.
PrecisionPlan te_delayed() {
  return hybrid_by_tensor("te-delayed", ScalePolicy::delayed);
}

/// Float8CurrentScaling of the same file: scales from the tensor itself, fp32.
PrecisionPlan te_current() {
  return hybrid_by_tensor("te-current", ScalePolicy::current);
}

/// Float8BlockScaling of the same file: E4M3 everywhere, 1x128 for x and dy,
/// 128x128 for w, scales that are powers of two, split accumulation in all three GEMMs.
PrecisionPlan te_blockwise() {
  return in_blocks_of_128("te-blockwise", ScaleType::pow2);
}

/// MXFP8BlockScaling of the same file: E4M3 in blocks of 32 with E8M0 scales rounded
/// up; accumulation as TransformerEngine's module constants have it.
PrecisionPlan te_mxfp8() {
  return in_one_format("te-mxfp8", blockwise(per::block_1x32, ScaleType::e8m0), true);
}

/// NVFP4BlockScaling of the same file (arXiv 2509.25149): E2M1, 16x16 blocks for w, a random
/// Hadamard transform for wgrad, stochastic dy. The last blocks, in bf16 there, are a setting.
PrecisionPlan te_nvfp4() {
  PrecisionPlan plan = unscaled("te-nvfp4", DType::bf16);
  TensorFormat x = blockwise(per::block_1x16, ScaleType::e4m3);
  x.dtype = DType::e2m1;
  TensorFormat w = x;
  w.block = per::block_16x16;
  TensorFormat dy = x;
  dy.rounding = Rounding::stochastic;
  plan.fprop = gemm_in(x, w, false);
  plan.dgrad = gemm_in(dy, w, false);
  x.hadamard = dy.hadamard = true;
  plan.wgrad = gemm_in(dy, x, false);
  plan.saved_activation = x;
  return plan;
}

/// torchao.float8's recipe "tensorwise" (torchao/float8/config.py): as TransformerEngine's
/// current scaling but for the smallest amax. torchao keeps x in bf16 for backward and casts it
/// again, with the same scale and so to the same codes; here the codes are stored.
PrecisionPlan torchao_tensorwise() {
  PrecisionPlan plan = hybrid_by_tensor("torchao-tensorwise", ScalePolicy::current);
  change_operands(plan, [](TensorFormat& format) { format = with_epsilon(format); });
  plan.gradient_wire = plain(DType::bf16);
  return plan;
}

/// torchao.float8's recipe "rowwise" of the same file: E4M3 for all three tensors, scales along the
/// contracted extent, rounded down to powers of two. The rounding clears the mantissa; torchao's
/// exp2(floor(log2)) in fp32 gives the next power of two for scales a few ulp below it.
PrecisionPlan torchao_rowwise() {
  const TensorFormat row = with_epsilon(blockwise(per::row, ScaleType::pow2));
  PrecisionPlan plan = in_one_format("torchao-rowwise", row, true);
  plan.gradient_wire = plain(DType::bf16);
  return plan;
}

/// torchao.float8's recipe "rowwise_with_gw_hp" of the same file: as rowwise,
/// but dgrad's weight has one scale and wgrad is a bf16 product.
PrecisionPlan torchao_rowwise_gw_hp() {
  PrecisionPlan plan = torchao_rowwise();
  plan.name = "torchao-rowwise-gw-hp";
  plan.dgrad.b.block = per::tensor;
  plan.wgrad = gemm_in(plain(DType::bf16), plain(DType::bf16), false);
  plan.saved_activation = plain(DType::bf16);
  return plan;
}

/// Float8BlockwiseLinear of torchao/prototype/blockwise_fp8_training/linear.py: the blocks of
/// TransformerEngine's Float8BlockScaling, with fp32 scales.
PrecisionPlan torchao_blockwise() {
  PrecisionPlan plan = te_blockwise();
  plan.name = "torchao-blockwise";
  change_operands(plan, [](TensorFormat& format) {
    format.scale_type = ScaleType::f32;
    format = with_epsilon(format);
  });
  plan.gradient_wire = plain(DType::bf16);
  return plan;
}

/// MXFP8Linear of torchao/prototype/moe_training/mxfp8_linear.py with its default, RCEIL: the casts
/// of TransformerEngine's MXFP8BlockScaling.
PrecisionPlan torchao_mxfp8() {
  PrecisionPlan plan = te_mxfp8();
  plan.name = "torchao-mxfp8";
  plan.fprop.fast_accumulate = false;
  plan.gradient_wire = plain(DType::bf16);
  return plan;
}

/// MXLinear of torchao with the recipe MXFP4_EMULATED (torchao 7bb7f06,
/// torchao/prototype/mx_formats/config.py and mx_linear.py, the last commit that has it): E2M1 in
/// blocks of 32 along the contracted extent of all operands, scales rounded down.
PrecisionPlan torchao_mxfp4() {
  PrecisionPlan plan = torchao_mxfp8();
  plan.name = "torchao-mxfp4";
  change_operands(plan, [](TensorFormat& format) {
    format.dtype = DType::e2m1;
    format.scale_type = ScaleType::e8m0_floor;
  });
  return plan;
}

/// TransformerEngine's GEMMs on MS-AMP's weights (use_te), which keep MS-AMP's current scale: the
/// patched casts of msamp/te/extension.py leave TransformerEngine's slots of weights alone.
PrecisionPlan msamp_te_gemms(const char* name) {
  PrecisionPlan plan = hybrid_by_tensor(name, ScalePolicy::delayed);
  plan.fprop.b = plan.dgrad.b = stored_by_tensor(DType::e4m3);
  return plan;
}

/// FP8-LM (arXiv 2310.18313, sections 2.2 and 2.3): MS-AMP O3 with the mu controller, whose bound
/// is at least two codes here (ops/storage/storage_math.h).
PrecisionPlan fp8_lm() {
  PrecisionPlan plan = with_storage_o3(gemms_by_window("fp8-lm"));
  plan.gradient_wire.policy = ScalePolicy::automatic;
  return plan;
}

/// DeepSeek-V3: fine-grained GEMMs, bf16 moments, fp32 weight gradients; inputs of SwiGLU stored in
/// E4M3 with a scale for 1x128, its product made again in backward; rows go to experts in E4M3 with
/// powers of two for scales, and come back in bf16 (section 3.3.3). Our choices: a bf16 wire for
/// gradients; E4M3 for the input of the projection after attention, which the paper stores in E5M6.
PrecisionPlan deepseek_v3() {
  PrecisionPlan plan = fine_grained("deepseek-v3");
  plan.saved_nonlinear = plan.expert_dispatch = plan.saved_activation;
  plan.expert_dispatch.scale_type = ScaleType::pow2;
  plan.recompute_swiglu = true;
  plan.gradient_wire = plan.moment1 = plan.moment2 = plain(DType::bf16);
  return plan;
}

/// DeepSeek-V3.1: all scales of blocks are powers of two ("scale_fmt": "ue8m0" in
/// deepseek-ai/DeepSeek-V3, inference/configs/config_v3.1.json; use_ue8m0 of DeepGEMM's
/// utils/math.py).
PrecisionPlan deepseek_v31() {
  PrecisionPlan plan = deepseek_v3();
  plan.name = "deepseek-v3.1";
  change_operands(plan, [](TensorFormat& format) { format.scale_type = ScaleType::pow2; });
  plan.weight = plan.parameter_wire = plan.fprop.b;
  plan.saved_nonlinear = plan.saved_activation;
  return plan;
}

/// LLM.Q as its README trains (IST-DASLab/llmq, --model-dtype=bf16 --matmul-dtype=e4m3
/// --opt-m-dtype=bf16 --opt-v-dtype=bf16): one current scale per tensor, E4M3 for dy too
/// (src/kernels/quant.cu); bf16 weights without a master, and moments, rounded stochastically
/// (src/kernels/adamw.cu); bf16 gradients.
PrecisionPlan llm_q() {
  TensorFormat tensor = scaled(DType::e4m3, ScalePolicy::current);
  tensor.amax_epsilon = 1e-10F;
  PrecisionPlan plan = in_one_format("llm.q", tensor, false);
  plan.weight = plan.moment1 = plan.moment2 = stochastic(plain(DType::bf16));
  plan.weight_gradient = plan.gradient_wire = plan.parameter_wire = plain(DType::bf16);
  return plan;
}

/// COAT as it is released (arXiv 2410.19313; coat/models/coat_llama.py, coat/optimizer): one
/// current scale per tensor, E5M2 gradients; norms, SiLU and the product of a SwiGLU read E4M3
/// codes with a bf16 scale for 1x16 in both passes; evaluation in high precision; fp32 weights
/// and wire (COAT's wgrad is bf16, here fp32); moments in E4M3 with an expanded range, to nearest.
PrecisionPlan coat() {
  PrecisionPlan plan = hybrid_by_tensor("coat", ScalePolicy::current);
  plan.saved_norm = plan.saved_nonlinear = blockwise(per::group(16), ScaleType::f32);
  plan.forward_reads_saved = true;
  plan.evaluate_scaled = false;
  plan.moment1 = stored_by_group(DType::e4m3);
  plan.moment1.expanded = true;
  plan.moment2 = plan.moment1;
  return plan;
}

/// Ours, for speed: te-delayed with fast sums in all GEMMs, an FP8 head, bf16 moments and wire.
PrecisionPlan fp8_fast() {
  PrecisionPlan plan = hybrid_by_tensor("fp8-fast", ScalePolicy::delayed);
  plan.fprop.fast_accumulate = plan.dgrad.fast_accumulate = plan.wgrad.fast_accumulate = true;
  plan.exemptions.head = false;
  plan.gradient_wire = plain(DType::bf16);
  plan.moment1 = plan.moment2 = stochastic(plain(DType::bf16));
  return plan;
}

/// Ours, 13 bytes per parameter: fine-grained GEMMs, fp32 master
/// and gradients, bf16 moments rounded stochastically, gradients that cross the wire once in E4M3.
PrecisionPlan fp8_safe() {
  PrecisionPlan plan = fine_grained("fp8-safe");
  plan.gradient_wire = stored_by_group(DType::e4m3);
  plan.moment1 = plan.moment2 = stochastic(plain(DType::bf16));
  return plan;
}

/// Ours, 7.2 bytes: FP16 master, bf16 gradients, E4M3 moments with an expanded range. The scales of
/// the wire are powers of two, so that its values are exact in bf16.
PrecisionPlan fp8_lean() {
  PrecisionPlan plan = fine_grained("fp8-lean");
  plan.master_weight = stochastic(stored_by_group(DType::f16));
  plan.weight_gradient = plain(DType::bf16);
  plan.gradient_wire = stored_by_group(DType::e4m3);
  plan.gradient_wire.scale_type = ScaleType::pow2;
  plan.moment1 = stored_by_group(DType::e4m3);
  plan.moment1.expanded = true;
  plan.moment2 = stochastic(plan.moment1);
  return plan;
}

/// Ours, 7.1 bytes: gradients are stored as they cross the wire, moments in E4M3 and FP16.
PrecisionPlan fp8_min() {
  PrecisionPlan plan = fine_grained("fp8-min");
  plan.master_weight = stochastic(stored_by_group(DType::f16));
  plan.weight_gradient = plan.gradient_wire = stored_by_group(DType::e4m3);
  plan.moment1 = stored_by_group(DType::e4m3);
  plan.moment2 = stored_by_group(DType::f16);
  return plan;
}

/// Quantization-aware training for torchao's Int8DynamicActivationInt8WeightConfig
/// (torchao/quantization/quant_api.py): fprop multiplies INT8 codes with a symmetric scale for each
/// token and each output channel (127 / amax); backward takes the rounded values as they are, in
/// bf16, and passes gradients straight through the rounding (torchao/quantization/qat).
PrecisionPlan int8_qat() {
  PrecisionPlan plan = unscaled("int8-qat", DType::bf16);
  TensorFormat row = blockwise(per::row, ScaleType::f32);
  row.dtype = DType::i8;
  plan.fprop = gemm_in(row, row, false);
  plan.dgrad.b = plan.wgrad.b = row;
  plan.saved_activation = row;
  plan.gradient_wire = plain(DType::bf16);
  return plan;
}

/// The plan that is what a request's roles say: bf16 until then.
PrecisionPlan custom() {
  PrecisionPlan plan = bf16_mixed();
  plan.name = "custom";
  return plan;
}

PlanEntry msamp(const char* name, const char* level, bool use_te,
                PrecisionPlan (*storage)(PrecisionPlan)) {
  const auto make = [=] { return storage(use_te ? msamp_te_gemms(name) : gemms_by_window(name)); };
  return {name, "msamp", level, use_te, make, use_te ? "MS-AMP with TransformerEngine" : "MS-AMP"};
}

PlanEntry advised(PlanEntry entry, const char* advice) {
  entry.advice = advice;
  return entry;
}

constexpr const char* kTransformerEngine = "TransformerEngine";
constexpr const char* kTorchao = "torchao.float8";

}  // namespace

const std::vector<PlanEntry>& plan_entries() {
  static const std::vector<PlanEntry> all = {
      {"fp32", "", "", false, fp32, "IEEE 754", MixedPrecision::no},
      {"bf16", "", "", false, bf16_mixed, "A Study of BFLOAT16 (1905.12322)", MixedPrecision::bf16},
      {"fp16", "", "", false, fp16_mixed, "Mixed Precision Training (1710.03740)",
       MixedPrecision::fp16},
      {"te-delayed", "te", "delayed", false, te_delayed, kTransformerEngine},
      advised({"te-current", "te", "current", false, te_current, kTransformerEngine},
              "FP8 with the least risk: no scale is from an earlier step"),
      {"te-blockwise", "te", "blockwise", false, te_blockwise, kTransformerEngine},
      advised(
          {"te-mxfp8", "te", "mxfp8", false, te_mxfp8, "TransformerEngine; OCP MX specification"},
          "the smallest error of the plans that it multiplies in FP8"),
      {"te-nvfp4", "te", "nvfp4", false, te_nvfp4, "TransformerEngine; NVFP4 (2509.25149)"},
      msamp("msamp-o1", "O1", false, with_storage_o1),
      msamp("msamp-o2", "O2", false, with_storage_o2),
      msamp("msamp-o3", "O3", false, with_storage_o3),
      msamp("msamp-o1-te", "O1", true, with_storage_o1),
      msamp("msamp-o2-te", "O2", true, with_storage_o2),
      msamp("msamp-o3-te", "O3", true, with_storage_o3),
      {"torchao-tensorwise", "torchao", "tensorwise", false, torchao_tensorwise, kTorchao},
      {"torchao-rowwise", "torchao", "rowwise", false, torchao_rowwise, kTorchao},
      {"torchao-rowwise-gw-hp", "torchao", "rowwise_with_gw_hp", false, torchao_rowwise_gw_hp,
       kTorchao},
      {"torchao-blockwise", "torchao", "blockwise", false, torchao_blockwise, "torchao prototype"},
      {"torchao-mxfp8", "torchao", "mxfp8_rceil", false, torchao_mxfp8, "torchao prototype"},
      {"torchao-mxfp4", "torchao", "mxfp4_emulated", false, torchao_mxfp4,
       "torchao prototype, until March 2026"},
      {"fp8-lm", "", "", false, fp8_lm, "FP8-LM (2310.18313)"},
      {"deepseek-v3", "", "", false, deepseek_v3, "DeepSeek-V3 (2412.19437)"},
      {"deepseek-v3.1", "", "", false, deepseek_v31, "DeepSeek-V3.1, DeepGEMM"},
      {"llm.q", "", "", false, llm_q, "LLM.Q (IST-DASLab/llmq)"},
      {"coat", "", "", false, coat, "COAT (2410.19313)"},
      {"fp8-fast", "", "", false, fp8_fast, "this program; other arithmetic than te-delayed"},
      {"fp8-safe", "", "", false, fp8_safe, "this program"},
      {"fp8-lean", "", "", false, fp8_lean, "this program"},
      {"fp8-min", "", "", false, fp8_min, "this program"},
      {"int8-qat", "", "", false, int8_qat, "torchao int8 dynamic activation, int8 weight"},
      {"custom", "", "", false, custom, "you", {}, true}};
  return all;
}

const LevelBackend& level_backend() {
  static const LevelBackend kLevels = {"msamp", "O2"};
  return kLevels;
}

}  // namespace fp8train
