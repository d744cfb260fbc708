#pragma once
// Weights, batches and random signs of the oracle's model, bit for bit as
// tests/golden/oracle/weights.py makes them: from integers by SplitMix64 (Steele et al., "Fast
// splittable pseudorandom number generators", OOPSLA 2014).

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/loader.h"
#include "nn/parameter.h"

namespace fp8train::test::oracle {

inline uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// The use that is made of a draw.
enum class Use : uint8_t { element, row, column, step, token, target, sign, wide };

/// The draws for one tensor of a step.
class Draws {
 public:
  Draws(uint64_t step, std::string_view name, Use use) {
    uint64_t hash = 2166136261;  // FNV-1a
    for (const char c : name) {
      hash = ((hash ^ static_cast<uint8_t>(c)) * 16777619) & 0xFFFFFFFF;
    }
    key_ = mixed(step << 40 | static_cast<uint64_t>(use) << 32 | hash);
  }
  uint64_t operator[](uint64_t index) const { return mixed(key_ + index * 0x9E3779B97F4A7C15); }
  /// About 2^(k/2) for a random k below 8, times 8.
  int64_t factor(uint64_t index) const { return kFactors[(*this)[index] & 7]; }

  static constexpr std::array<int64_t, 8> kFactors = {8, 11, 16, 23, 32, 45, 64, 91};

 private:
  uint64_t key_;
};

/// Powers of two that cancel in the model (spread() in weights.py): the exponent of an element.
class Spread {
 public:
  explicit Spread(const Parameter& parameter)
      : half_(parameter.shape.rows() / 2), is_up_(parameter.name.ends_with("mlp.up.weight")) {
    const std::string& name = parameter.name;
    const auto with = [&](std::string_view end, std::string_view other) {
      return name.substr(0, name.size() - end.size()) + std::string(other);
    };
    if (name.ends_with("attention_norm.weight") || name.ends_with("mlp_norm.weight")) {
      column_ = {name, 1};
    } else if (name.ends_with(".qkv.weight")) {
      column_ = {with(".qkv.weight", "_norm.weight"), -1};
    } else if (is_up_) {
      column_ = {with(".up.weight", "_norm.weight"), -1};
      row_ = {with(".up.weight", ".down.weight"), 1};
    } else if (name.ends_with("mlp.down.weight")) {
      column_ = {name, -1};
    }
  }
  int operator()(int64_t row, int64_t column) const {
    return exponent(column_, column) + (is_up_ && row >= half_ ? exponent(row_, row - half_) : 0);
  }

 private:
  struct Source {
    std::string name;
    int sign = 0;
  };
  static int exponent(const Source& source, int64_t index) {
    if (source.sign == 0) {
      return 0;
    }
    const Draws draws(0, source.name, Use::wide);
    return source.sign * (static_cast<int>(draws[static_cast<uint64_t>(index)] % 21) - 10);
  }
  Source column_, row_;
  int64_t half_;
  bool is_up_;
};

/// The sum of four parts of a draw, nearly normal.
inline int64_t normal(uint64_t draw) {
  const uint64_t sum =
      (draw & 0xFFFF) + (draw >> 16 & 0xFFFF) + (draw >> 32 & 0xFFFF) + (draw >> 48 & 0xFFFF);
  return static_cast<int64_t>(sum) - 131070;
}

/// value() in weights.py: whole numbers, rounded to fp32, times powers of two.
inline std::vector<float> value(uint64_t step, const Parameter& parameter, bool wide) {
  const std::string& name = parameter.name;
  const bool is_vector = parameter.shape.rank() == 1;
  const bool is_router = name.ends_with("router.weight");
  const int shift = name.ends_with("router.bias") ? 20
                    : is_vector                   ? 16
                    : name == "embedding.weight"  ? 28
                    : name == "head.weight"       ? 35
                                                  : 34;
  const int64_t columns = parameter.shape.back();
  const Draws element(step, name, Use::element);
  const Draws row(0, name, Use::row);
  const Draws column(0, name, Use::column);
  const auto of_step = 5 + static_cast<int64_t>(Draws(step, name, Use::step)[0] & 7);
  const Spread spread(parameter);
  std::vector<int64_t> of_column;
  for (int64_t c = 0; c < columns; ++c) {
    of_column.push_back(column.factor(static_cast<uint64_t>(c)) * of_step);
  }
  std::vector<float> values;
  const float scale = std::ldexp(1.0F, -shift);
  for (int64_t index = 0; index < parameter.shape.rows(); ++index) {
    // The last two experts have the same scores.
    const int64_t r = is_router && index + 1 == parameter.shape.rows() ? index - 1 : index;
    const int64_t of_row = row.factor(static_cast<uint64_t>(r));
    for (int64_t c = 0; c < columns; ++c) {
      const uint64_t draw = element[static_cast<uint64_t>(r * columns + c)];
      const int64_t whole =
          is_vector ? Draws::kFactors[draw & 7] * (1024 + static_cast<int64_t>(draw >> 8 & 1023))
                    : normal(draw) * of_row * of_column[static_cast<size_t>(c)];
      const float value = static_cast<float>(whole) * scale;
      values.push_back(wide ? std::ldexp(value, spread(r, c)) : value);
    }
  }
  return values;
}

/// Makes a gradient that of the weight before it is spread.
inline void multiply_by_spread(const Parameter& parameter, std::vector<float>& gradient) {
  const Spread spread(parameter);
  const int64_t columns = parameter.shape.back();
  for (size_t i = 0; i < gradient.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    gradient[i] = std::ldexp(gradient[i], spread(index / columns, index % columns));
  }
}

inline Batch batch(uint64_t step, uint64_t micro, int64_t rows, int64_t columns,
                   uint64_t vocabulary) {
  Batch result;
  result.rows = rows;
  result.columns = columns;
  const Draws token(step * 8 + micro, "tokens", Use::token);
  const Draws target(step * 8 + micro, "tokens", Use::target);
  for (uint64_t i = 0; i < static_cast<uint64_t>(rows * columns); ++i) {
    result.tokens.push_back(static_cast<int32_t>(token[i] % vocabulary));
    result.targets.push_back(static_cast<int32_t>(target[i] % vocabulary));
  }
  return result;
}

/// Sums of the elements with random signs: the mean square of the differences of those of two
/// tensors is about the square of the tensors' distance.
inline std::vector<double> projections(const std::string& name, const std::vector<float>& values,
                                       size_t count) {
  const Draws sign(0, name, Use::sign);
  std::vector<double> sums(count, 0.0);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t draw = sign[i];
    for (size_t p = 0; p < count; ++p) {
      sums[p] += double{values[i]} * (1.0 - 2.0 * static_cast<double>(draw >> p & 1));
    }
  }
  return sums;
}

}  // namespace fp8train::test::oracle
