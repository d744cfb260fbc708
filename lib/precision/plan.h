#pragma once
// A PrecisionPlan says which format every tensor role has. Pure data; the plans
// are in plans.cpp and nothing else holds a method's name.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensor/tensor_format.h"

namespace fp8train {

/// The two operands of one of a linear layer's GEMMs, and how the tensor core may accumulate.
struct GemmPlan {
  TensorFormat a;  ///< fprop: x · dgrad: dy · wgrad: dy
  TensorFormat b;  ///< fprop: w · dgrad: w  · wgrad: x
  bool fast_accumulate = false;
  bool emulate_accumulator = false;  ///< on the cpu, what fast_accumulate does to a sum

  /// Returns the number of which K must be a multiple on tensor cores; 1 if no product of codes
  /// runs.
  int64_t k_multiple() const;
  bool operator==(const GemmPlan&) const = default;
};

/// The GEMMs of a linear layer, forward and backward.
struct LayerGemms {
  GemmPlan fprop, dgrad, wgrad;

  std::array<GemmPlan*, 3> gemms() { return {&fprop, &dgrad, &wgrad}; }
  std::array<const GemmPlan*, 3> gemms() const { return {&fprop, &dgrad, &wgrad}; }
  /// Calls visit(TensorFormat&) for the operands of all GEMMs.
  template <typename Visit>
  void for_each_operand(const Visit& visit) {
    for (GemmPlan* gemm : gemms()) {
      visit(gemm->a);
      visit(gemm->b);
    }
  }
  template <typename Condition>
  bool any_operand(const Condition& holds) const {
    return std::ranges::any_of(
        gemms(), [&](const GemmPlan* gemm) { return holds(gemm->a) || holds(gemm->b); });
  }
  /// Whether the first operand of a GEMM has scales.
  bool is_scaled() const {
    return fprop.a.is_scaled() || dgrad.a.is_scaled() || wgrad.a.is_scaled();
  }
  /// Returns the history length of operands that have current scaling at first; 0: none has it.
  int first_window() const;
  bool operator==(const LayerGemms&) const = default;
};

/// Which linear layers stay out of the plan's scaled formats and run in `PrecisionPlan::activation`
/// instead.
struct ExemptionRules {
  int64_t first_blocks = 0;  ///< all linears of the first n transformer blocks
  int64_t last_blocks = 0;
  int64_t first_linears = 0;  ///< the first n linears in order of execution
  int64_t last_linears = 0;   ///< not counting the head
  std::vector<std::string>
      patterns;               ///< glob (* and ?) over layer names; each must match something
  int64_t min_dimension = 0;  ///< linears with a smaller in or out dimension
  std::optional<bool> head;   ///< the output head; nothing: as the plan says, true in most

  bool operator==(const ExemptionRules&) const = default;
};

/// The names that another program gives to the linear layers of blocks: "layers.0.mlp.up" is prefix
/// + "layers.0." + the name of "mlp.up". Empty: the names of this program.
struct LayerNaming {
  std::string prefix;
  std::vector<std::pair<std::string, std::string>> names;  ///< ours, theirs

  bool operator==(const LayerNaming&) const = default;
};

/// Layers whose GEMMs another plan chooses. The formats of their stored weights, gradients and
/// moments, and of wires, stay those of the run's plan.
struct LayerPlan : LayerGemms {
  std::string pattern;                       ///< glob (* and ?) over layer names
  std::string plan;                          ///< the other plan's name
  std::optional<bool> evaluate_scaled = {};  ///< of these layers; nothing: the run's plan's
  LayerNaming naming = {};                   ///< of the pattern; not empty: from precision.file

  const char* key() const { return naming.names.empty() ? "precision.layers" : "precision.file"; }
  bool operator==(const LayerPlan&) const = default;
};

/// A part of a run: its steps up to `until`, after those of the stage before.
struct Stage {
  double until =
      0;  ///< below 1 a fraction of the run's steps, else a number of steps; 0: to the end
  bool scaled = true;     ///< if false, all GEMMs read `PrecisionPlan::activation`
  std::string plan = {};  ///< whose GEMMs a scaled stage has; empty: the run's plan's

  bool operator==(const Stage&) const = default;
};

/// How the down projection of a SwiGLU reads its input, silu(gate) * up, whose outliers grow
/// quadratically (Fishman et al., arXiv 2409.12517).
enum class SwigluInput : uint8_t {
  as_planned,      ///< the plan's roles
  smoothed,        ///< the plan's roles, with a scale for each channel: ops/pointwise/smoothing.h
  high_precision,  ///< fprop and wgrad, which read it, run in `PrecisionPlan::activation`
};
inline constexpr std::pair<SwigluInput, std::string_view> kSwigluInputs[] = {
    {SwigluInput::as_planned, "plain"},
    {SwigluInput::smoothed, "smooth"},
    {SwigluInput::high_precision, "bf16_down_input"}};

/// The GEMMs of attention that read FP8.
enum class Fp8Attention : uint8_t { none, forward, both };
inline constexpr std::pair<Fp8Attention, std::string_view> kFp8Attentions[] = {
    {Fp8Attention::none, "false"},
    {Fp8Attention::forward, "forward"},
    {Fp8Attention::both, "true"}};

/// The formats of attention's tensors (TransformerEngine, fp8_dpa). Without a scale of `qkv`
/// attention runs in the activation type; without one of `dout` its backward pass does.
struct AttentionPlan {
  TensorFormat qkv;                  ///< q, k and v, which share a scale
  TensorFormat probabilities, out;   ///< without a scale, `out` is in the activation type
  TensorFormat dout, dscores, dqkv;  ///< `dscores`: gradients of scores

  Fp8Attention gemms() const {
    return dout.is_scaled()  ? Fp8Attention::both
           : qkv.is_scaled() ? Fp8Attention::forward
                             : Fp8Attention::none;
  }
  bool operator==(const AttentionPlan&) const = default;
};

/// A plan. The roles from `weight` on are those of the weights of linear layers that
/// are not exempt; all other parameters, their gradients and moments are fp32.
struct PrecisionPlan : LayerGemms {
  std::string name;
  DType activation =
      DType::f32;  ///< residual stream, norm outputs, attention, and linears that are exempt
  AttentionPlan attention;
  TensorFormat saved_activation;  ///< a linear's input as backward reads it
  TensorFormat saved_norm;        ///< the input of a norm, as backward reads it
  TensorFormat saved_nonlinear;   ///< the input of an activation function, as backward reads it
  /// Norms in the blocks and activation functions read the codes of saved_norm and saved_nonlinear
  /// in the forward pass too, and the product of a SwiGLU reads silu(gate) in such codes.
  bool forward_reads_saved = false;
  /// The product of a SwiGLU is not stored for backward but made again from saved_nonlinear.
  bool recompute_swiglu = false;
  /// The rows of tokens, and the gradients of rows, on their way to experts that other ranks have.
  TensorFormat expert_dispatch;
  TensorFormat weight;  ///< the parameter as stored, of a linear layer that is not exempt
  std::optional<TensorFormat>
      master_weight;  ///< nothing: the stored weight is what the optimizer updates
  TensorFormat weight_gradient;
  TensorFormat gradient_wire;
  TensorFormat parameter_wire;
  TensorFormat moment1, moment2;
  bool dynamic_loss_scaling = false;
  /// The rank's own contribution to a gradient is not rounded to the wire's format.
  bool self_exact = false;
  bool evaluate_scaled = true;  ///< evaluation runs the scaled formats too (else `activation`)
  SwigluInput swiglu = SwigluInput::as_planned;
  ExemptionRules exemptions;
  /// The stages of a run; empty: one stage, scaled. run_stages() splits a run with several scaled
  /// plans into plans that have no other scaled plan.
  std::vector<Stage> schedule;
  std::vector<LayerPlan> layers;  ///< of those that match a layer, the last one counts

  bool operator==(const PrecisionPlan&) const = default;
};

/// The formats of one parameter, as the optimizer sees it.
struct ParameterFormats {
  TensorFormat value;  ///< the optimizer updates it: the master weight, else the weight
  TensorFormat gradient, gradient_wire, moment1, moment2;
  bool is_master = false;  ///< next to the weight as the plan stores it

  bool operator==(const ParameterFormats&) const = default;
};

/// Returns the format in which a rank adds up the gradients of its micro-batches. If ranks exchange
/// them (`exchanged`) under a scale that they share and that is not a power of two, gradients of
/// that same format would be rounded twice: they stay in bf16 until the exchange, and the sum alone
/// is stored as `formats.gradient` says (MS-AMP, msamp/nn/functional.py, whose weight gradient is
/// in 16 bits until nn/distributed.py casts it for the wire). Otherwise it is formats.gradient.
TensorFormat running_gradient(const ParameterFormats& formats, bool exchanged);

/// Returns the formats of a weight that the plan's roles are for.
ParameterFormats parameter_formats(const PrecisionPlan& plan);

/// The bytes stored for one parameter of a linear layer that is not exempt, in a large tensor.
/// Scales are included.
struct ParameterBytes {
  double weight = 0, master = 0, gradient = 0, moment1 = 0, moment2 = 0;

  double total() const { return weight + master + gradient + moment1 + moment2; }
};
/// Returns the bytes that each role of the plan takes per parameter.
ParameterBytes bytes_per_parameter(const PrecisionPlan& plan);

/// Throws ConfigError naming the role when formats do not go together or a tensor cannot be stored
/// in its format.
void check_roles(const PrecisionPlan& plan);

/// Roles that a request replaces, in the spelling of describe(); empty ones stay the plan's.
struct RoleRequest {
  std::string weight, master_weight, weight_gradient, gradient_wire, parameter_wire;
  std::string moment1, moment2, saved_norm, saved_nonlinear, expert_dispatch;
  std::string fprop_x, fprop_w, dgrad_dy, dgrad_w, wgrad_dy, wgrad_x;

  bool operator==(const RoleRequest&) const = default;
};

enum class RoleKind : uint8_t {
  weight,
  master,
  stored,   ///< or sent, in all stages of a run alike
  passing,  ///< saved for backward, or on the way to experts
  operand,
};

/// One role, by its name, and the member of a plan that is its format.
struct Role {
  const char* name;
  RoleKind kind;
  std::string doc;  ///< one line
  std::string RoleRequest::*requested;
  TensorFormat PrecisionPlan::*format = nullptr;  ///< null for the master weight and operands
  GemmPlan PrecisionPlan::*gemm = nullptr;        ///< the GEMM that reads an operand
  TensorFormat GemmPlan::*operand = nullptr;
};
/// Returns all roles that a request can replace.
const std::vector<Role>& plan_roles();
/// Returns a role's format in words as a request has it; "none" for no master weight.
std::string describe_role(const Role& role, const PrecisionPlan& plan);

/// The element types of FP8 GEMMs.
enum class Fp8Format : uint8_t {
  hybrid,  ///< gradients in E5M2, all else in E4M3
  e4m3,
};
inline constexpr std::pair<Fp8Format, std::string_view> kFp8Formats[] = {
    {Fp8Format::hybrid, "hybrid"}, {Fp8Format::e4m3, "e4m3"}};

/// The name of the plan whose GEMMs the layers that match have.
struct LayerRequest {
  std::string pattern, plan;
  std::optional<Fp8Format> format = {};
  std::optional<bool> evaluate_scaled = {};
  LayerNaming naming = {};
  /// Whether it holds in a run whose plan has scaled GEMMs, or in one without. Otherwise its layers
  /// have the run's plan, even if another pattern matches them.
  bool in_scaled_run = true, in_plain_run = true;

  bool operator==(const LayerRequest&) const = default;
};

/// The name of the plan of the steps up to `until` (Stage::until).
struct StageRequest {
  double until = 0;
  std::string plan;

  bool operator==(const StageRequest&) const = default;
};

/// The format in which matrix multiplications compute.
enum class MixedPrecision : uint8_t { no, bf16, fp16, fp8 };
inline constexpr std::pair<MixedPrecision, std::string_view> kMixedPrecisions[] = {
    {MixedPrecision::no, "no"},
    {MixedPrecision::bf16, "bf16"},
    {MixedPrecision::fp16, "fp16"},
    {MixedPrecision::fp8, "fp8"}};

/// How sums of FP8 products that may use a short accumulator are made on the cpu.
enum class Accumulation : uint8_t {
  exact,     ///< in fp32
  emulated,  ///< GemmPlan::emulate_accumulator
};
inline constexpr std::pair<Accumulation, std::string_view> kAccumulations[] = {
    {Accumulation::exact, "exact"}, {Accumulation::emulated, "emulated"}};

/// The settings of precision that a user can give. An empty field means the plan's default.
struct PlanRequest {
  MixedPrecision mixed_precision = MixedPrecision::no;
  std::string plan;     ///< a plan by name; wins over mixed_precision and the four below
  std::string backend;  ///< program whose method is used; with one of the next three it selects a
                        ///< plan under mixed_precision: fp8
  std::string recipe;
  std::string opt_level;  ///< for backends whose recipes are levels
  std::optional<bool> use_te;
  std::optional<Fp8Format> format;
  std::optional<int64_t> margin;
  std::optional<int64_t> interval;
  std::optional<int64_t> amax_history_len;
  std::optional<AmaxAlgorithm> amax_compute_algo;
  /// Whether the amax of x and dy is the largest of all ranks; that of a weight always is.
  std::optional<bool> reduce_amax;
  std::vector<bool>
      override_linear_precision;  ///< fprop, dgrad, wgrad: true keeps that GEMM in `activation`
  /// fprop, dgrad, wgrad: whether tensor cores may keep partial sums of FP8 products in their short
  /// accumulator; empty: the plan's.
  std::vector<bool> fast_accumulation;
  std::optional<Accumulation> accumulation;
  std::optional<bool> power_2_scale;  ///< current scaling only
  std::optional<bool> use_autocast_during_eval;
  std::optional<SwigluInput> swiglu;
  std::optional<Fp8Attention> attention;
  std::optional<bool> self_exact;                             ///< PrecisionPlan::self_exact
  std::optional<bool> forward_reads_saved, recompute_swiglu;  ///< of PrecisionPlan
  RoleRequest roles;                                          ///< any plan
  ExemptionRules exemptions;
  std::vector<StageRequest> schedule;
  std::vector<LayerRequest>
      layers;               ///< PrecisionPlan::layers, without the options that tune a plan
  std::string layers_file;  ///< that has layers in another program's words
  std::vector<LayerRequest> file_layers;  ///< what it says, in place of `layers`

  bool operator==(const PlanRequest&) const = default;
};

/// Returns the plan that the request selects, with its overrides applied: first the options that
/// tune a plan, then single roles. Roles that the plan derives from an operand of a GEMM
/// (saved_activation, codes that are the weight, their wire) follow that operand. Throws
/// ConfigError naming the key when something has no meaning for the plan (amax_history_len with
/// current scaling, ...), roles do not go together, or the plan does not exist.
PrecisionPlan resolve_plan(const PlanRequest& request);

/// Steps [begin, end) of a run, and the plan whose operands and scales they have. The formats of
/// stored parameters and of wires are the same in all stages of a run.
struct RunStage {
  int64_t begin = 0, end = 0;
  PrecisionPlan plan;
  std::vector<std::pair<int64_t, int64_t>> plain_steps;  ///< [begin, end) each, in order
};

/// Returns the stages of a run of `steps`, in order: one, or as many as precision.schedule names
/// scaled plans one after another. Scaling begins in each as at the start of a run. Throws
/// ConfigError when a stage has no step, and as resolve_plan() does.
std::vector<RunStage> run_stages(const PlanRequest& request, int64_t steps);

/// Returns the steps of a run of `steps` in which no GEMM is scaled, [begin, end) each, in order.
/// Throws ConfigError when a stage has no step.
std::vector<std::pair<int64_t, int64_t>> plain_steps(const PrecisionPlan& plan, int64_t steps);

/// Returns the names of all plans that train as they are, in the table's order.
std::vector<std::string> plan_names();

/// Returns the name of the plan that fp8.backend with fp8.recipe or fp8.opt_level and fp8.use_te
/// selects. Empty ones mean the first plan of the table that fits, but an empty fp8.opt_level means
/// the usual level of its backend (LevelBackend). Throws ConfigError naming the key and listing
/// what there is.
std::string plan_for_method(const PlanRequest& request);

/// Throws ConfigError naming the key for a plan, a method or a role's format that no run has,
/// whatever the rest of its request is.
void check_names(const PlanRequest& request);

/// Whether an operand of a GEMM has scales.
bool has_scaled_gemms(const PrecisionPlan& plan);

/// Returns a plan by name with its defaults; `custom`, which consists of overrides, too. Throws
/// ConfigError that begins with `key` and lists the plans if there is none.
PrecisionPlan plan_named(const std::string& name, const char* key = "precision.plan");

/// Whether the plan means something only with at least one role of the request. False for an
/// unknown name.
bool needs_roles(const std::string& name);

/// How a plan is selected, and who published it.
struct PlanOrigin {
  std::string selected_by;  ///< keys as they are written in a configuration
  std::string source;
};
/// Returns the origin of a plan. Throws ConfigError for an unknown name.
PlanOrigin plan_origin(const std::string& name);

/// These return the known backends, each backend with its recipes, and the levels, for messages and
/// the documentation of the keys.
std::string backends_text();
std::string recipes_text();
std::string opt_levels_text();

}  // namespace fp8train
