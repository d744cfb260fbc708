// The bound of the rows of a dropless mixture, against routings that are made to need many.

#include "nn/dropless_rows.h"

#include <catch2/catch.hpp>

#include <numeric>
#include <vector>

#include "base/philox.h"

namespace fp8train {
namespace {

/// Draws of one routing.
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t end) {
    return static_cast<int64_t>(philox(seed_, 0, next_++).word[0]) % end;
  }

 private:
  uint64_t seed_, next_ = 0;
};

/// Tokens of experts for all choices, each at most as many as there are tokens: those that need
/// much padding (one token, or one more than a multiple), one expert with all, or any numbers.
std::vector<int64_t> adversarial(const DroplessRows& rows, Draws& draws) {
  int64_t left = rows.per_token * rows.tokens;
  std::vector<int64_t> tokens(static_cast<size_t>(rows.experts));
  const int64_t kind = draws.below(4);
  const auto add = [&](int64_t& own, int64_t count) {
    count = std::min({count, left, rows.tokens - own});
    own += count;
    left -= count;
  };
  for (int64_t& own : tokens) {
    const int64_t multiples = draws.below(1 + rows.tokens / rows.multiple);
    add(own, kind == 0   ? 1
             : kind == 1 ? multiples * rows.multiple + 1
             : kind == 2 ? (draws.below(2) == 0 ? rows.tokens : 0)
                         : draws.below(1 + rows.tokens));
  }
  for (size_t i = 0; left > 0; i = (i + 1) % tokens.size()) {
    add(tokens[i], kind < 2 ? rows.multiple : left);
  }
  return tokens;
}

TEST_CASE("no routing needs more rows than a dropless mixture has memory for") {
  int64_t nearest = 1 << 30;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Draws draws(seed);
    DroplessRows rows = {.experts = 1 + draws.below(64),
                         .per_token = 1,
                         .tokens = 1 + draws.below(2000),
                         .multiple = int64_t{16} << draws.below(4)};
    rows.per_token = 1 + draws.below(std::min<int64_t>(rows.experts, 8));
    const std::vector<int64_t> tokens = adversarial(rows, draws);
    REQUIRE(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}) ==
            rows.per_token * rows.tokens);
    int64_t needed = 0;
    for (const int64_t own : tokens) {
      REQUIRE(rows.of_expert(own) >= own);
      REQUIRE(rows.of_expert(own) <= rows.largest());
      REQUIRE(rows.of_expert(own) % rows.multiple == 0);
      needed += rows.of_expert(own);
    }
    CAPTURE(seed, rows.experts, rows.per_token, rows.tokens, rows.multiple);
    REQUIRE(needed <= rows.bound());
    nearest = std::min(nearest, rows.bound() - needed);
    // Beyond the choices there is less than a multiple for each expert, twice.
    REQUIRE(rows.bound() < rows.per_token * rows.tokens + 2 * rows.experts * rows.multiple);
  }
  CHECK(nearest == 0);
}

}  // namespace
}  // namespace fp8train
