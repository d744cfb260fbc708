// Small pieces of messages, and the nearest of some names.

#include "base/text.h"

#include <catch2/catch.hpp>
#include <utility>

#include "base/nearest.h"
#include "base/quantities.h"

namespace fp8train {
namespace {

using Texts = std::vector<std::string>;

TEST_CASE("durations, counts and bytes read well") {
  CHECK(describe_duration(12.4) == "12s");
  CHECK(describe_duration(185) == "3m 05s");
  CHECK(describe_duration(3720) == "1h 02m");
  CHECK(describe_count(950) == "950");
  CHECK(describe_count(18230) == "18.2k");
  CHECK(describe_count(1.05e6) == "1.05M");
  CHECK(describe_bytes(512) == "512 B");
  constexpr size_t kMib = size_t{1} << 20;
  CHECK(describe_both(3 * kMib, 5 * kMib) ==
        std::pair<std::string, std::string>("3.0 MiB", "5.0 MiB"));
  CHECK(describe_both(size_t{80'404'000} << 10, size_t{80'384'000} << 10) ==
        std::pair<std::string, std::string>("76.68 GiB", "76.66 GiB"));
  CHECK(describe_both(300 * kMib, 300 * kMib) ==
        std::pair<std::string, std::string>("300 MiB", "300 MiB"));
  CHECK(describe_both(300 * kMib, 300 * kMib + 1).second == "300.000001 MiB");
  CHECK(describe_bytes(22.4 * 1024 * 1024) == "22.4 MiB");
}

TEST_CASE("texts are split and joined", "[base]") {
  CHECK(split("a,,b", ',') == Texts{"a", "", "b"});
  CHECK(split("a,", ',') == Texts{"a", ""});
  CHECK(split("", ',') == Texts{""});
  CHECK(shortened({"a", "b"}, 2) == Texts{"a", "b"});
  CHECK(shortened({"a", "b", "c", "d"}, 2) == Texts{"a", "b", "and 2 more"});
  CHECK(alternatives(Texts{}).empty());
  CHECK(alternatives(Texts{"a"}) == "a");
  CHECK(alternatives(Texts{"a", "b"}) == "a or b");
  CHECK(alternatives(Texts{"a", "b", "c"}) == "a, b or c");
  CHECK(joined(Texts{}).empty());
  CHECK(joined(Texts{"a", "b", "c"}) == "a, b, c");
  CHECK(joined(std::vector<std::pair<int, std::string>>{{1, "a"}, {2, "b"}},
               &std::pair<int, std::string>::second) == "a, b");
  CHECK(trimmed(" \ta b\r") == "a b");
  CHECK(trimmed(" \t").empty());
  CHECK(trimmed("").empty());
  CHECK(lower("Fp8 \xC3\x84") == "fp8 \xC3\x84");
  CHECK(replaced("a-b-", "-", "--") == "a--b--");
}

TEST_CASE("a whole number has digits only, and fits", "[base]") {
  CHECK(whole_number<int>("0") == 0);
  CHECK(whole_number<int>("007") == 7);
  CHECK(whole_number<int>("2147483647") == 2147483647);
  CHECK(whole_number<int64_t>("2147483648") == 2147483648);
  for (const char* text : {"", "-0", "-1", "+1", " 1", "1 ", "0x1", "1.0", "2147483648"}) {
    CAPTURE(text);
    CHECK_FALSE(whole_number<int>(text));
  }
}

TEST_CASE("a name is near where few letters are wrong", "[base]") {
  const Texts optimizers = {"adamw", "sgd", "muon"};
  CHECK(nearest_name("lion", optimizers).empty());
  CHECK(nearest_name("sdg", optimizers) == "sgd");
  CHECK(nearest_name("adam", optimizers) == "adamw");
  CHECK(nearest_name("Mu-on", optimizers) == "muon");
  CHECK(nearest_name("weigth_decy", {"weight_decay"}) == "weight_decay");
  CHECK(nearest_name("x", {"y"}).empty());

  const Texts plans = {"te-current", "te-blockwise", "tea", "fp8-min"};
  CHECK(nearest_names("te-curent", plans) == Texts{"te-current"});
  CHECK(nearest_names("te-block", plans) == Texts{"te-blockwise"});
  CHECK(nearest_names("te_other", plans) == Texts{"te-current", "te-blockwise"});
  CHECK(nearest_names("t", plans).empty());
  CHECK(nearest_names("other", plans).empty());
}

}  // namespace
}  // namespace fp8train
