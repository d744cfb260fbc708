// The head on tensor ranks, each with some rows of the vocabulary's weight, against one rank. With
// as many parts everywhere all bits are the same.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "base/philox.h"
#include "nn/head.h"
#include "numeric/convert.h"
#include "parallel/tensor_ranks.h"
#include "support/rank_threads.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

constexpr int64_t kRows = 48;
constexpr int64_t kWidth = 64;
constexpr int64_t kVocabulary = 257;
constexpr int64_t kPadded = 512;  // of four ranks the third has one token, the last one none

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform_from_bits(philox(stream, 0, static_cast<uint64_t>(i)).word[0]);
    values[static_cast<size_t>(i)] = decode(encode<bf16>(2.0F * value - 1.0F));
  }
  return values;
}

std::vector<float> read(const View& view) {
  std::vector<float> values(static_cast<size_t>(view.count()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = view.dtype == DType::f32 ? view.as<float>()[i] : decode(view.as<bf16>()[i]);
  }
  return values;
}

/// The results of a rank after a step; of all ranks one after another.
struct Results {
  std::vector<float> losses, dx, gradient, logits;
  double sum = 0.0, z_sum = 0.0;
  int64_t count = 0;

  Results& operator+=(const Results& other) {
    losses = other.losses;
    logits = other.logits;
    dx.insert(dx.end(), other.dx.begin(), other.dx.end());
    gradient.insert(gradient.end(), other.gradient.begin(), other.gradient.end());
    sum += other.sum;
    z_sum += other.z_sum;
    count += other.count;
    return *this;
  }
};

struct RankHead {
  std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  ParameterStore store;
  ScalingState scaling;
  int rank, ranks;
  Parameter* weight;
  Arena saved{*device, MemoryCategory::saved_activations};
  Arena scratch{*device, MemoryCategory::workspace};
  DType type;
  Head head;

  RankHead(const PrecisionPlan& plan, int this_rank, int of_ranks)
      : rank(this_rank),
        ranks(of_ranks),
        weight(add_weight()),
        type(plan.activation),
        head(Linear(plan_linears(plan, {{.name = "head",
                                         .in_features = kWidth,
                                         .out_features = kPadded / of_ranks,
                                         .is_head = true,
                                         .split = Split::columns}})
                        .front(),
                    weight, nullptr, scaling),
             kVocabulary, 20, 1e-3F) {
    store.allocate(*device);
    scaling.allocate(*device);
    head.projection().weight().allocate(*device, store);
    saved.reserve(1 << 22);
    scratch.reserve(1 << 22);
    std::vector<float> values = random_values(kPadded * kWidth, 2);
    copy_from_host(*device, weight->value, values.data() + this_rank * weight->value.count());
    head.projection().weight().refresh(context(0), LinearWeight::Refresh::all);
  }

  Parameter* add_weight() {
    const int64_t pieces[] = {kPadded};
    const Sharding whole = whole_of({kPadded, kWidth}, 0);
    return store.add({.name = "head.weight",
                      .shape = {kPadded / ranks, kWidth},
                      .sharding = rows_of_pieces(whole, pieces, rank, ranks),
                      .overwritten = true});
  }

  /// `parts`: of sums over ranks, on all of them; 0: one of each rank.
  StepContext context(int64_t parts, RankExchange* exchange = nullptr) {
    return {.device = device.get(),
            .stream = device->stream(),
            .saved = &saved,
            .scratch = &scratch,
            .overwrites_gradients = true,
            .tensor_ranks = exchange,
            .tensor_parts = parts == 0 ? 1 : parts / ranks,
            .sums_in_fp32 = parts > 0};
  }

  /// A tensor of which this rank has the rows from `first` on.
  View put(const std::vector<float>& values, int64_t first, int64_t rows) {
    const View view = allocate(saved, type, {rows, kWidth});
    for (int64_t i = 0; i < view.count(); ++i) {
      const float value = values[static_cast<size_t>(first * kWidth + i)];
      if (type == DType::f32) {
        view.as<float>()[i] = value;
      } else {
        view.as<bf16>()[i] = encode<bf16>(value);
      }
    }
    return view;
  }

  Results run(int64_t parts, RankExchange* exchange, bool trains) {
    const int64_t own = kRows / ranks;
    const std::vector<float> values = random_values(kRows * kWidth, 1);
    const View x = put(values, rank * own, own);
    const View dx = put(values, 0, own);
    std::vector<int32_t> targets(kRows);
    for (int64_t row = 0; row < kRows; ++row) {
      targets[static_cast<size_t>(row)] =
          row % 5 == 3 ? -1 : static_cast<int32_t>((row * 131 + 256) % kVocabulary);
    }
    Results results;
    results.losses.resize(kRows);
    StepContext step = context(parts, exchange);
    step.training = trains;
    const float scale = 4.0F;
    head.loss(step, x, View{targets.data(), DType::i32, {kRows}},
              {&results.sum, &results.count, results.losses.data(), &results.z_sum},
              trains ? dx : View{}, {&scale, 1.0F / 39});
    if (trains) {
      results.dx = read(dx);
      results.gradient = read(weight->gradient);
    }
    const View logits = allocate(saved, type, {1, head.padded_vocabulary()});
    step.training = false;
    head.logits(step, put(values, 7, 1), logits);
    results.logits = read(logits);
    return results;
  }
};

Results run(const PrecisionPlan& plan, int ranks, int64_t parts, bool trains = true) {
  if (ranks == 1) {
    return RankHead(plan, 0, 1).run(parts, nullptr, trains);
  }
  std::vector<Results> of_ranks(static_cast<size_t>(ranks));
  const auto errors = run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    TensorRanks exchange(comm);
    of_ranks[static_cast<size_t>(comm.rank())] =
        RankHead(plan, comm.rank(), ranks).run(parts, &exchange, trains);
  });
  Results all;
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    CHECK(errors[rank].empty());
    CHECK(of_ranks[rank].losses == of_ranks[0].losses);
    CHECK(of_ranks[rank].logits == of_ranks[0].logits);
    all += of_ranks[rank];
  }
  return all;
}

double relative_norm(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a.at(i)) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace

TEST_CASE("a head that ranks share has the loss and the gradients of one rank") {
  for (const char* const name : {"fp32", "bf16"}) {
    const PrecisionPlan plan = plan_named(name);
    // Gradients of logits are rounded to the type, on one rank of other sums.
    const bool wide = plan.activation == DType::f32;
    const Results one = run(plan, 1, 0);
    CHECK(one.count == 39);
    const Results parts = run(plan, 1, 4);
    for (const int ranks : {2, 4}) {
      CAPTURE(name, ranks);
      const Results all = run(plan, ranks, 0);
      CHECK(relative_norm(all.losses, one.losses) < 1e-6);
      CHECK(all.sum == Approx(one.sum).epsilon(1e-6));
      CHECK(all.z_sum == Approx(one.z_sum).epsilon(1e-6));
      CHECK(all.count == one.count);
      CHECK(all.logits == one.logits);
      CHECK(relative_norm(all.gradient, one.gradient) < (wide ? 1e-6 : 1e-3));
      CHECK(relative_norm(all.dx, one.dx) < (wide ? 1e-6 : 3e-3));
      const Results same = run(plan, ranks, 4);
      CHECK(same.losses == parts.losses);
      CHECK(same.sum == parts.sum);
      CHECK(same.z_sum == parts.z_sum);
      CHECK(same.count == parts.count);
      CHECK(same.gradient == parts.gradient);
      CHECK(same.dx == parts.dx);
    }
  }
}

TEST_CASE("a head that ranks share evaluates as one rank does") {
  const PrecisionPlan plan = plan_named("bf16");
  const Results one = run(plan, 1, 0, false);
  for (const int ranks : {2, 4}) {
    const Results all = run(plan, ranks, 0, false);
    CHECK(relative_norm(all.losses, one.losses) < 1e-6);
    CHECK(all.sum == Approx(one.sum).epsilon(1e-6));
    CHECK(all.z_sum == 0.0);
    CHECK(all.count == one.count);
    CHECK(all.logits == one.logits);
  }
}
