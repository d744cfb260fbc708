// Damaged configurations: loading gives Settings that survive being shown, or a ConfigError, and
// nothing else.

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

#include "config/load_support.h"
#include "config/show.h"

namespace fp8train {
namespace {

const std::string kValid = R"(model:
  preset: toy
  num_hidden_layers: 3
  rope_scaling: {rope_type: llama3, factor: 8.0}
data:
  train: [{path: a.txt, weight: 2.5}, {path: "b c.jsonl", format: jsonl}]
  val_fraction: 0.1
  seq_length: 64
training: {max_steps: 2000, micro_batch_size: 12, seed: 1, max_time: 3h50m}
optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.99], grad_clip: 1.0}
scheduler: {type: cosine, warmup_steps: 100, min_lr: 1e-4}
mixed_precision: fp8
fp8:
  recipe: delayed
  amax_history_len: 16
  override_linear_precision: [false, false, true]
  exempt: ["*.down", "h.0.*"]
sample:
  prompts: ["Once upon", "\n"]
device: cpu
)";

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const size_t count = 1 + below(3);
    for (size_t i = 0; i < count; ++i) {
      once(text);
    }
    return text;
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  /// [begin, end) of a random line.
  std::pair<size_t, size_t> line(const std::string& text) {
    const size_t at = below(text.size() + 1);
    const size_t before = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    return {begin, std::min(text.find('\n', at), text.size())};
  }

  std::string nasty() {
    static const std::vector<std::string> kValues = {"null",
                                                     "~",
                                                     "-1",
                                                     "0",
                                                     "1e308",
                                                     "1e999",
                                                     "9223372036854775807",
                                                     "-9223372036854775809",
                                                     "18446744073709551616",
                                                     ".nan",
                                                     "-.inf",
                                                     "nan",
                                                     "true",
                                                     "no",
                                                     "\"3\"",
                                                     "''",
                                                     "[]",
                                                     "{}",
                                                     "[[[]]]",
                                                     "{a: {b: {c: 1}}}",
                                                     "*a",
                                                     "&a 1",
                                                     "!!int 3",
                                                     "1_000",
                                                     "0x10",
                                                     "010",
                                                     "1e-400",
                                                     "100M",
                                                     "1.5B",
                                                     "|\n    text",
                                                     ">\n",
                                                     "? a",
                                                     "- 1",
                                                     "{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     ":",
                                                     "\"",
                                                     "'",
                                                     "%",
                                                     "@",
                                                     "`",
                                                     "\t",
                                                     "---",
                                                     "...",
                                                     "<<: *a",
                                                     "a: 1",
                                                     "\xff\xfe",
                                                     "\xef\xbb\xbf",
                                                     "ü",
                                                     "5e-1",
                                                     std::string(300, '['),
                                                     std::string(300, '{'),
                                                     std::string(2000, 'x')};
    return kValues[below(kValues.size())];
  }

  void once(std::string& text) {
    const auto [begin, end] = line(text);
    const std::string whole = text.substr(begin, end - begin);
    switch (below(7)) {
      case 0:  // delete a line
        text.erase(begin, end - begin + 1);
        break;
      case 1:  // duplicate a line
        text.insert(begin, 1, '\n');
        text.insert(begin, whole);
        break;
      case 2: {  // replace what follows the first colon
        const size_t colon = whole.find(':');
        if (colon != std::string::npos) {
          text.replace(begin + colon + 1, whole.size() - colon - 1, nasty());
          text.insert(begin + colon + 1, 1, ' ');
        }
        break;
      }
      case 3:  // something at a random position
        text.insert(below(text.size() + 1), nasty());
        break;
      case 4:  // change the nesting
        text.insert(begin, 1 + below(2), ' ');
        break;
      case 5:  // another byte
        if (!text.empty()) {
          text[below(text.size())] = static_cast<char>(below(256));
        }
        break;
      default: {  // replace a value inside a flow collection
        const size_t comma = text.find(',', below(text.size() + 1));
        if (comma != std::string::npos) {
          text.insert(comma, nasty());
        }
      }
    }
  }

  std::mt19937 random_;
};

TEST_CASE("10000 damaged configurations give settings or a ConfigError") {
  REQUIRE_NOTHROW(test::load_text(kValid));
  size_t loaded = 0;
  size_t refused = 0;
  for (uint32_t seed = 0; seed < 10000; ++seed) {
    const std::string text = Mutator(seed).mutate(kValid);
    try {
      const Settings settings = test::load_text(text);
      ++loaded;
      const std::string shown = show_settings(settings, true);
      if (test::error_of(shown) != "loaded" || test::load_text(shown) != settings) {
        FAIL("seed " << seed << " does not survive being shown:\n"
                     << text << "\nshown:\n"
                     << shown);
      }
    } catch (const ConfigError& error) {
      ++refused;
      if (!std::string(error.what()).starts_with("run.yaml:")) {
        FAIL("seed " << seed << " has an error without a location: " << error.what());
      }
    }
  }
  CHECK(loaded > 500);
  CHECK(refused > 5000);
}

}  // namespace
}  // namespace fp8train
