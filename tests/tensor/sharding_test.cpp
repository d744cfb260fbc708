// Parts of parameters: those of all ranks are the whole once, and elements are the same by runs, by
// kernels' maps and by a naive walk over rows.

#include "tensor/sharding.h"

#include <catch2/catch.hpp>

#include <numeric>
#include <random>

#include "base/error.h"

using namespace fp8train;

namespace {

struct Case {
  Sharding whole;
  std::vector<int64_t> pieces;
  int ranks = 1;
  bool by_columns = false;

  Sharding part(int rank) const {
    return by_columns ? columns_of(whole, rank, ranks) : rows_of_pieces(whole, pieces, rank, ranks);
  }
};

/// A matrix or a vector of a few pieces that some ranks can share.
Case random_case(std::mt19937& engine) {
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(engine() % static_cast<uint64_t>(most)) + 1;
  };
  Case made;
  made.ranks = static_cast<int>(up_to(8));
  made.by_columns = engine() % 3 == 0;
  for (int64_t pieces = up_to(4); pieces > 0; --pieces) {
    made.pieces.push_back(up_to(9) * (made.by_columns ? 1 : made.ranks));
  }
  const int64_t rows = std::accumulate(made.pieces.begin(), made.pieces.end(), int64_t{0});
  const int64_t columns = up_to(12) * (made.by_columns ? made.ranks : 1);
  const bool is_vector = !made.by_columns && engine() % 4 == 0;
  made.whole = whole_of(is_vector ? Shape{rows} : Shape{rows, columns}, engine());
  return made;
}

/// The elements of a part, one by one.
std::vector<int64_t> walked(const Case& c, int rank) {
  std::vector<int64_t> elements;
  const int64_t width = c.whole.width();
  int64_t begin = 0;
  for (const int64_t piece : c.pieces) {
    for (int64_t row = 0; row < piece; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        const int64_t owner = c.by_columns ? column * c.ranks / width : row * c.ranks / piece;
        if (owner == rank) {
          elements.push_back((begin + row) * width + column);
        }
      }
    }
    begin += piece;
  }
  return elements;
}

}  // namespace

TEST_CASE("the parts of all ranks are the whole once, element by element") {
  std::mt19937 engine(1);
  for (int i = 0; i < 2000; ++i) {
    const Case c = random_case(engine);
    CAPTURE(i, to_string(c.whole.whole), c.pieces, c.ranks, c.by_columns);
    std::vector<int> covered(static_cast<size_t>(c.whole.whole.count()), 0);
    for (int rank = 0; rank < c.ranks; ++rank) {
      const Sharding part = c.part(rank);
      const ElementMap map = part.elements();
      const std::vector<int64_t> expected = walked(c, rank);
      std::vector<int64_t> by_runs;
      std::vector<int64_t> by_map;
      std::vector<int64_t> by_stretches;
      for (int64_t local = 0; local < part.shape().count(); ++local) {
        by_runs.push_back(part.element(local));
        by_map.push_back(map.element(local));
        ++covered.at(static_cast<size_t>(by_runs.back()));
      }
      bool by_fours = true;
      part.for_each_stretch([&](int64_t local, int64_t element, int64_t count) {
        by_fours = by_fours && local % 4 == 0 && element % 4 == 0;
        REQUIRE(local == static_cast<int64_t>(by_stretches.size()));
        for (int64_t at = 0; at < count; ++at) {
          by_stretches.push_back(element + at);
        }
      });
      CHECK((part.is_whole() || map.by_fours == by_fours));
      REQUIRE(by_runs == expected);
      REQUIRE(by_map == expected);
      REQUIRE(by_stretches == expected);
      for (size_t at = 0; map.by_fours && at + 4 <= expected.size(); at += 4) {
        REQUIRE(expected[at] % 4 == 0);
        REQUIRE(expected[at + 3] == expected[at] + 3);
      }
      CHECK(part.index == c.whole.index);
      CHECK(part.is_whole() == (c.ranks == 1));
      CHECK(part.shape().rank() == c.whole.whole.rank());
    }
    REQUIRE(covered == std::vector<int>(covered.size(), 1));
  }
}

TEST_CASE("a kernel draws for four elements at once where parts allow it") {
  const Sharding qkv = whole_of({96, 6}, 3);
  const std::vector<int64_t> pieces = {64, 16, 16};
  CHECK(whole_of({5, 3}, 0).elements().by_fours);
  CHECK(rows_of_pieces(qkv, pieces, 1, 4).elements().by_fours);
  CHECK_FALSE(rows_of_pieces(qkv, pieces, 1, 16).elements().by_fours);
  CHECK_FALSE(columns_of(qkv, 1, 2).elements().by_fours);
  CHECK(columns_of(whole_of({3, 16}, 0), 1, 2).elements().by_fours);
}

TEST_CASE("parts that are not equal are refused with the nearest number of ranks") {
  const Sharding whole = whole_of({18, 40}, 0);
  const auto message = [](const auto& cut) {
    try {
      cut();
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::vector<int64_t> pieces = {12, 6};
  CHECK(message([&] { rows_of_pieces(whole, pieces, 0, 4); }) ==
        "4 ranks cannot share 6 rows equally; the nearest number of ranks that can is 3");
  CHECK(message([&] { columns_of(whole, 0, 7); }) ==
        "7 ranks cannot share 40 columns equally; the nearest number of ranks that can is 8");
  CHECK(message([&] { columns_of(whole, 0, 64); }) ==
        "64 ranks cannot share 40 columns equally; the nearest number of ranks that can is 40");
  const std::vector<int64_t> wrong = {12, 5};
  CHECK_THROWS_AS(rows_of_pieces(whole, wrong, 0, 1), InternalError);
  CHECK_THROWS_AS(columns_of(columns_of(whole, 0, 2), 0, 2), InternalError);
}
