// Muon (Jordan et al., kellerjordan.github.io/posts/muon; github.com/KellerJordan/Muon, muon.py):
// the momentum of a hidden matrix is replaced by a matrix of the same singular vectors whose
// singular values are near 1, by a Newton-Schulz iteration in bf16. Everything else (embeddings,
// head, norms, biases) is AdamW's. A fused weight is several matrices, each orthogonalized for
// itself, as the GPT-2 speed run splits its QKV (github.com/KellerJordan/modded-nanogpt,
// train_gpt2.py, Muon.step); gate and up are two matrices wherever they are not fused. Ranks that
// have parts of a matrix gather what is orthogonalized, and each takes its part of the result
// (NVIDIA/Megatron-LM, d98e8a6, megatron/core/optimizer/emerging_optimizers.py: duplicated).
//
// It is made of operations that all devices have: ops::sgd adds to the momentum, and once more to
// the weight, and takes its factors from control blocks of its own.

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/key_error.h"
#include "ops/attention/copy_rows.h"
#include "ops/gemm/planned_gemm.h"
#include "ops/pointwise/elementwise.h"
#include "ops/storage/storage.h"
#include "optim/adamw.h"
#include "optim/registry.h"

namespace fp8train {
namespace {

/// Coefficients of the quintic a x + b x^3 + c x^5 (muon.py, zeropower_via_newtonschulz5).
constexpr float kA = 3.4445F, kB = -4.7750F, kC = 2.0315F;
/// prepare_step() makes min(1, u / (norm + 1e-6 u)) / u of a norm and a loss scale u: with one so
/// small, 1 / norm. (muon.py adds 1e-7 to the norm.)
constexpr float kNormUnit = 0x1p-40F;

bool is_matrix(const Parameter& parameter) {
  return !parameter.matrices.empty();
}

/// How the ranks of the tensor axis have the matrices of a parameter: each the same rows of all,
/// or the same columns.
struct Parts {
  bool by_columns;
  int64_t ranks, rank;

  explicit Parts(const Parameter& parameter) {
    const Sharding& part = parameter.sharding;
    by_columns = part.columns < part.width();
    ranks = part.whole.count() / parameter.shape.count();
    rank = by_columns ? part.first_column / part.columns
                      : part.runs.front().begin / part.runs.front().rows;
  }
  /// Returns the rows of a matrix of which a rank has so many.
  int64_t whole_rows(int64_t rows) const { return by_columns ? rows : rows * ranks; }
};

/// Whether the format rounds to nearest. A remainder belongs to master weights.
bool is_momentum_format(const TensorFormat& format) {
  return is_stored_format(format) && !format.remainder && format.rounding == Rounding::nearest_even;
}

double scale_of(MuonScale scale, int64_t rows, int64_t columns) {
  const auto height = static_cast<double>(rows);
  const auto width = static_cast<double>(columns);
  return scale == MuonScale::original ? std::sqrt(std::max(1.0, height / width))
                                      : 0.2 * std::sqrt(std::max(height, width));
}

/// Returns the cost of an update: the iteration's products, and passes over the elements.
double update_cost(const Parameter& parameter) {
  constexpr double kPasses = 20, kSteps = 5;
  double cost = kPasses * static_cast<double>(parameter.shape.count());
  const int64_t columns = parameter.sharding.width();
  for (const int64_t of_rank : parameter.matrices) {
    const int64_t rows = Parts(parameter).whole_rows(of_rank);
    const auto side = static_cast<double>(std::min(rows, columns));
    const auto length = static_cast<double>(std::max(rows, columns));
    cost += kSteps * side * side * (4 * length + 2 * side);
  }
  return cost;
}

/// Copies [ranks, part] to the whole matrices or, of this rank, back.
void copy_parts(Stream stream, const Parameter& of, const View& of_ranks, const View& whole,
                bool to_whole) {
  const Parts parts(of);
  const int64_t width = whole.shape[1];
  const int64_t columns = of.shape[1];
  const int64_t first = to_whole ? 0 : parts.rank;
  int64_t begin = 0;
  for (const int64_t rows : of.matrices) {
    const int64_t shift = parts.by_columns ? columns : rows * width;  // from rank to rank
    ops::copy_between(
        stream,
        {of_ranks.as<float>() + first * of.shape.count() + begin * columns,
         {0, of.shape.count(), columns}},
        {whole.as<float>() + parts.whole_rows(begin) * width + first * shift, {0, shift, width}},
        {.dtype = DType::f32, .extents = {1, to_whole ? parts.ranks : 1, rows}, .width = columns},
        to_whole);
    begin += rows;
  }
}

/// Factors that operations read on the device.
struct Factors {
  ops::StepControl momentum;   ///< of ops::sgd when it adds gradients to the momentum
  ops::StepControl direction;  ///< the same to what is orthogonalized
  ops::StepControl weight;     ///< of ops::sgd when it updates the weight
  ops::StepControl norm;       ///< of one matrix at a time
  float gradient_share;        ///< 1 - momentum
  float momentum_share;        ///< momentum
  float a, b_over_c, c;
};

class Muon final : public AdamW {
 public:
  explicit Muon(const OptimizerSite& site);

  void set_learning_rate(double lr) override;
  std::vector<const OptimizerState*> states() const override;

 protected:
  void begin_update(const Update& step) override;
  Done update(const Update& step, size_t index) override;
  bool rounds_as_it_reads() const override { return false; }

 private:
  void check_formats(const Parameter& parameter) const;
  Factors* factors() const { return static_cast<Factors*>(factors_.data()); }
  void find_direction(const Update& step, size_t index, const View& direction) const;
  void store_momentum(const Update& step, const Parameter& of, const View& momentum,
                      const Encoded& to) const;
  void orthogonalize_all(const Update& step, size_t index, const View& matrices) const;
  void orthogonalize(const Update& step, const View& matrix) const;
  void normalize(const Update& step, const View& matrix) const;

  OptimizerState momentum_{"momentum"};
  Buffer factors_;
  Buffer scales_;                    ///< fp32: scale_of() each matrix of each parameter
  std::vector<size_t> first_scale_;  ///< of each parameter
};

Muon::Muon(const OptimizerSite& site)
    : AdamW(site, [](const Parameter& parameter) { return !is_matrix(parameter); }),
      factors_(device(), sizeof(Factors), MemoryCategory::optimizer_state) {
  std::vector<float> scales;
  for (size_t i = 0; i < parameters().all().size(); ++i) {
    const Parameter& of = parameter(i);
    first_scale_.push_back(scales.size());
    if (is_matrix(of)) {
      if (of.trained) {
        check_formats(of);
      }
      momentum_.add(i, of.formats.moment1, of);
    }
    for (const int64_t rows : of.matrices) {
      scales.push_back(static_cast<float>(
          scale_of(settings().muon.scale, Parts(of).whole_rows(rows), of.sharding.width())));
    }
  }
  momentum_.allocate(device());
  scales_ = Buffer(device(), std::max<size_t>(scales.size(), 1) * sizeof(float),
                   MemoryCategory::optimizer_state);
  device().copy_from_host(scales_.data(), scales.data(), scales.size() * sizeof(float));
  const MuonSettings& muon = settings().muon;
  Factors initial = {};
  initial.momentum.lr = initial.direction.lr = -1.0;  // ops::sgd subtracts
  initial.weight.gradient_factor = 1.0F;
  initial.norm.loss_scale = kNormUnit;
  initial.gradient_share = static_cast<float>(1.0 - muon.momentum);
  initial.momentum_share = static_cast<float>(muon.momentum);
  initial.a = kA;
  initial.b_over_c = kB / kC;
  initial.c = kC;
  device().copy_from_host(factors_.data(), &initial, sizeof(initial));
}

void Muon::check_formats(const Parameter& parameter) const {
  const ParameterFormats& formats = parameter.formats;
  if (formats.value != TensorFormat{}) {
    throw KeyError("optimizer.name",
                   ": muon updates fp32 weights, and the plan stores those of linear layers as " +
                       describe(formats.value) + "; set precision." +
                       (formats.is_master ? "master_weight" : "weight") + ": fp32, or take adamw");
  }
  if (!is_momentum_format(formats.moment1)) {
    throw KeyError(
        "optimizer.name",
        ": muon stores its momentum in formats that round to nearest, and the plan's moment1 is " +
            describe(formats.moment1) + "; set precision.moment1: bf16, or take adamw");
  }
}

void Muon::set_learning_rate(double lr) {
  AdamW::set_learning_rate(lr);
  const double of_matrices = lr * settings().muon.lr_factor;
  device().copy_from_host(&factors()->weight.lr, &of_matrices, sizeof(of_matrices));
}

std::vector<const OptimizerState*> Muon::states() const {
  std::vector<const OptimizerState*> all = AdamW::states();
  all.push_back(&momentum_);
  return all;
}

/// Copies a word of device memory, bit for bit: a cast from fp32 to fp32 changes none.
void copy_word(Stream stream, void* from, void* to) {
  ops::cast(stream, View{from, DType::f32, {1}}, {to, DType::f32, {1}});
}

void Muon::begin_update(const Update& step) {
  ops::StepControl* now = device_control();
  Factors* own = factors();
  for (ops::StepControl* control : {&own->momentum, &own->direction}) {
    copy_word(step.stream, &now->gradient_factor, &control->gradient_factor);
    ops::scale_by(step.stream, {&control->gradient_factor, DType::f32, {1}}, &own->gradient_share);
  }
  for (ops::StepControl* control : {&own->momentum, &own->direction, &own->weight}) {
    copy_word(step.stream, &now->skip, &control->skip);
  }
}

Optimizer::Done Muon::update(const Update& step, size_t index) {
  const Parameter& of = parameter(index);
  if (!is_matrix(of)) {
    return AdamW::update(step, index);
  }
  const ArenaScope scope(*step.scratch);
  const Parts parts(of);
  const View of_ranks =
      allocate(*step.scratch, DType::f32, {parts.ranks * of.shape[0], of.shape[1]});
  const View direction = rows_of(of_ranks, parts.rank * of.shape[0], of.shape[0]);
  find_direction(step, index, direction);
  if (parts.ranks == 1) {
    orthogonalize_all(step, index, direction);
  } else {
    step.combiner->gather(direction, of_ranks);
    const View whole = allocate(*step.scratch, DType::f32, of.sharding.whole);
    copy_parts(step.stream, of, of_ranks, whole, true);
    orthogonalize_all(step, index, whole);
    copy_parts(step.stream, of, of_ranks, whole, false);
  }
  ops::sgd(step.stream,
           {.weight = of.updated.value.codes,
            .gradient = direction,
            .momentum = {},
            .copy = of.copy,
            .momentum_factor = 0.0,
            .weight_decay = of.decay ? settings().weight_decay : 0.0},
           &factors()->weight);
  return {.copied = true};
}

/// Orthogonalizes and scales each of the matrices, which are whole.
void Muon::orthogonalize_all(const Update& step, size_t index, const View& matrices) const {
  const Parameter& of = parameter(index);
  int64_t begin = 0;
  for (size_t i = 0; i < of.matrices.size(); ++i) {
    const int64_t rows = Parts(of).whole_rows(of.matrices[i]);
    const View matrix = rows_of(matrices, begin, rows);
    orthogonalize(step, matrix);
    ops::scale_by(step.stream, matrix,
                  static_cast<float*>(scales_.data()) + first_scale_[index] + i);
    begin += rows;
  }
}

/// Updates m = mu m + (1 - mu) g. direction = mu m + (1 - mu) g with Nesterov's momentum, else m.
void Muon::find_direction(const Update& step, size_t index, const View& direction) const {
  const ArenaScope scope(*step.scratch);
  const Parameter& of = parameter(index);
  View gradient = of.updated.gradient.codes;
  if (of.updated.gradient.format != TensorFormat{}) {
    gradient = allocate(*step.scratch, DType::f32, of.shape);
    ops::read_stored(step.stream, of.updated.gradient, gradient);
  }
  const Encoded stored = momentum_.of(index);
  const bool is_fp32 = stored.format == TensorFormat{};
  const View momentum = is_fp32 ? stored.codes : allocate(*step.scratch, DType::f32, of.shape);
  if (!is_fp32) {
    ops::read_stored(step.stream, stored, momentum);
  }
  ops::fill(step.stream, direction, 0.0F);
  ops::sgd(step.stream,
           {.weight = direction,
            .gradient = gradient,
            .momentum = momentum,
            .copy = {},
            .momentum_factor = settings().muon.momentum,
            .weight_decay = 0.0},
           &factors()->momentum);
  if (settings().muon.nesterov) {
    ops::scale_by(step.stream, direction, &factors()->momentum_share);
    ops::sgd(step.stream,
             {.weight = direction,
              .gradient = gradient,
              .momentum = {},
              .copy = {},
              .momentum_factor = 0.0,
              .weight_decay = 0.0},
             &factors()->direction);
  }
  if (!is_fp32) {
    store_momentum(step, of, momentum, stored);
  }
}

void Muon::store_momentum(const Update& step, const Parameter& of, const View& momentum,
                          const Encoded& to) const {
  ops::Store call = {.x = momentum, .to = to, .skip = &device_control()->skip};
  if (of.sharding.cut == Axis::tensor && codec_of(to.format) == Codec::tensor) {
    call.step = CastStep::amax;
    ops::store(step.stream, call);
    step.combiner->largest({to.scales.as<float>() + 1, DType::f32, {1}});
    call.step = CastStep::codes;
  }
  ops::store(step.stream, call);
}

/// Makes the Frobenius norm 1, in place.
void Muon::normalize(const Update& step, const View& matrix) const {
  ops::StepControl* norm = &factors()->norm;
  device().fill_zero(&norm->squared_norm, sizeof(norm->squared_norm));
  add_squares(step.stream, *step.scratch, matrix, &norm->squared_norm);
  ops::prepare_step(step.stream, norm, 1.0F, {});
  ops::scale_by(step.stream, matrix, &norm->gradient_factor);
}

/// Orthogonalizes in place, by the Newton-Schulz iteration X <- a X + (b A + c A A) X with A = X
/// X^T, where products are rounded to bf16 as in muon.py. A tall matrix is its own transpose there;
/// here A is X^T X then and is on the other side, which needs no transpose.
void Muon::orthogonalize(const Update& step, const View& matrix) const {
  normalize(step, matrix);
  const ArenaScope scope(*step.scratch);
  const Stream stream = step.stream;
  const bool is_tall = matrix.shape[0] > matrix.shape[1];
  const int64_t side = std::min(matrix.shape[0], matrix.shape[1]);
  const View x = allocate(*step.scratch, DType::bf16, matrix.shape);
  const View gram = allocate(*step.scratch, DType::bf16, {side, side});
  const View sum = allocate(*step.scratch, DType::f32, {side, side});
  const View polynomial = allocate(*step.scratch, DType::bf16, {side, side});
  const auto multiply = [&](const ops::Gemm& call) {
    ops::planned_gemm(stream, device(), *step.scratch, call);
  };
  ops::cast(stream, matrix, x);
  for (int64_t i = 0; i < settings().muon.ns_steps; ++i) {
    multiply({.a = {x, is_tall}, .b = {x, !is_tall}, .c = gram});
    ops::cast(stream, gram, sum);
    ops::scale_by(stream, sum, &factors()->b_over_c);
    multiply({.a = gram, .b = gram, .c = sum, .beta = 1.0F});
    ops::scale_by(stream, sum, &factors()->c);
    ops::cast(stream, sum, polynomial);
    ops::cast(stream, x, matrix);
    ops::scale_by(stream, matrix, &factors()->a);
    multiply(
        {.a = is_tall ? x : polynomial, .b = is_tall ? polynomial : x, .c = matrix, .beta = 1.0F});
    ops::cast(stream, matrix, x);
  }
  ops::cast(stream, x, matrix);
}

}  // namespace

OptimizerEntry muon_entry() {
  return {.name = "muon",
          .make = [](const OptimizerSite& site) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Muon>(site);
          },
          .keys = {"optimizer.betas", "optimizer.eps", "optimizer.muon.momentum",
                   "optimizer.muon.nesterov", "optimizer.muon.ns_steps", "optimizer.muon.scale",
                   "optimizer.muon.lr_factor", "precision.moment1"},
          .moments = [](const OptimizerSettings&) { return MomentRoles{.moment1 = true}; },
          .note = "muon for the weights of linear layers in blocks, adamw for all else",
          .whole_cost = update_cost,
          .repeats_products = true};
}

}  // namespace fp8train
