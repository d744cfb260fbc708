// Numbers that are slips of a key: `check` takes every field of the configuration at its bounds,
// next to them and far beyond, and ends soon with a message or with a plan.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include "base/error.h"
#include "config/fields/field_table.h"
#include "config/load.h"
#include "optim/registry.h"
#include "program.h"

namespace fp8train::test {
namespace {

constexpr double kMostSeconds = 3;
constexpr uint64_t kTokens = (uint64_t{1} << 24) + 2;  // one sample of the longest sequence

/// A folder with data for all of them; its file is sparse.
class Workshop {
 public:
  Workshop() {
    write_file(folder_ / "zeros.bin", "");
    fs::resize_file(folder_ / "zeros.bin", kTokens * sizeof(uint16_t));
  }
  const fs::path& path() const { return folder_.path(); }

 private:
  TempDir folder_;
};

bool is_of_experts(const std::string& key) {
  constexpr std::string_view kKeys[] = {"model.num_experts_per_tok",
                                        "model.moe_intermediate_size",
                                        "model.shared_expert_intermediate_size",
                                        "model.n_shared_experts",
                                        "model.first_k_dense_replace",
                                        "model.routed_scaling_factor",
                                        "model.n_group",
                                        "model.topk_group"};
  return key.starts_with("moe.") || std::ranges::find(kKeys, key) != std::end(kKeys);
}

/// Settings with which the field has a meaning.
Words settings_for(const std::string& key) {
  Words words = {"model.preset=toy",
                 "model.vocab_size=300",
                 "data.train=[{path: zeros.bin, format: raw_u16}]",
                 "data.tokenizer=none",
                 "sample.prompts=[]",
                 "device=cpu"};
  if (key != "training.max_tokens" && key != "training.max_epochs") {
    words.emplace_back("training.max_steps=10");
  }
  if (key.starts_with("fp8.")) {
    words.emplace_back("precision.plan=te-delayed");
  } else if (key == "model.rope_scaling.low_freq_factor" ||
             key == "model.rope_scaling.high_freq_factor") {
    words.emplace_back("model.rope_scaling.rope_type=llama3");
  } else if (key.starts_with("model.rope_scaling.")) {
    words.emplace_back("model.rope_scaling={rope_type: yarn, factor: 4}");
  } else if (key == "data.seq_length") {
    words.emplace_back("model.max_position_embeddings=16777216");
  } else if (key.starts_with("model.lora.") && key != "model.lora.rank") {
    words.emplace_back("model.lora.rank=4");
  } else if (is_of_experts(key)) {
    words.front() = "model.preset=toy-moe";
    words.emplace_back("model.e_score_correction_bias=true");
    if (key == "moe.warmup_capacity_factor") {
      words.emplace_back("moe.capacity_warmup=1");
    }
  }
  if (std::ranges::find(optimizer_keys(), key) != optimizer_keys().end()) {
    const auto reader = std::ranges::find_if(
        optimizers(), [&](const OptimizerEntry& entry) { return entry.reads(key); });
    words.emplace_back(fmt::format("optimizer.name={}", reader->name));
  }
  return words;
}

/// At and next to the bounds, and slips.
std::vector<std::string> values_for(const NumberRange& number) {
  const double low = number.range.min.value_or(0);
  const double high = number.range.max.value_or(0);
  std::set<std::string> values = {"2147483648", "4294967297", "9223372036854775807", "1e15", "-1"};
  if (number.whole) {
    for (const double bound : {low, high}) {
      const auto exact = static_cast<int64_t>(bound);
      for (const int64_t value : {exact - 1, exact, exact + 1}) {
        values.insert(std::to_string(value));
      }
    }
    values.insert({"18446744073709551616", "-9223372036854775808"});
  } else {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double bound : {low, high}) {
      for (const double value :
           {bound, std::nextafter(bound, infinity), std::nextafter(bound, -infinity)}) {
        values.insert(fmt::format("{}", value));
      }
    }
    values.insert({"1e308", "5e-324", "-1e308"});
  }
  return {values.begin(), values.end()};
}

std::string error_of(const Words& settings) {
  LoadRequest request;
  request.sets = settings;
  try {
    load_settings(request);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

Outcome check_program(const fs::path& where, const Words& settings) {
  Words words = {"check", "--no-scan"};
  words.insert(words.end(), settings.begin(), settings.end());
  Outcome outcome = run_program(where, words);
  INFO(fmt::format("{}\n{}{}", fmt::join(settings, " "), outcome.out, outcome.err));
  const bool too_large = outcome.code == 4 && outcome.out.find("DOES NOT FIT") < outcome.out.size();
  CHECK((outcome.code == 0 || outcome.code == 2 || too_large));
  CHECK(outcome.cpu_seconds < kMostSeconds);
  return outcome;
}

TEST_CASE("every number of the configuration has two bounds") {
  size_t count = 0;
  for (const Field& field : field_table()) {
    const bool says_number = field.accepts.starts_with("a number") ||
                             field.accepts.starts_with("a whole number") ||
                             field.accepts.starts_with("a duration");
    CAPTURE(field.key);
    if (field.key == "training.seed") {
      continue;  // all of 64 bits
    }
    CHECK(field.number.has_value() == says_number);
    if (field.number) {
      CHECK((field.number->range.min && field.number->range.max));
      ++count;
    }
  }
  CHECK(count >= 60);
}

TEST_CASE("every number at its bounds, next to them and far beyond") {
  const Workshop shop;
  size_t refused = 0;
  size_t run = 0;
  for (const Field& field : field_table()) {
    if (!field.number) {
      continue;
    }
    const Words base = settings_for(field.key);
    const size_t run_before = run;
    for (const std::string& value : values_for(*field.number)) {
      INFO(field.key << "=" << value);
      Words settings = base;
      settings.push_back(field.key + "=" + value);
      const std::string error = error_of(settings);  // any other exception ends the test
      const double number = std::strtod(value.c_str(), nullptr);
      const Range& range = field.number->range;
      // Only what a double tells apart from the bound is beyond it for certain.
      if (number > range.max.value_or(number) || number < range.min.value_or(number)) {
        CHECK(error.find(field.key) != std::string::npos);
        CHECK(error.find(value) != std::string::npos);
        CHECK(error.find(field.accepts) != std::string::npos);
        const std::string hint = field.number->range.far_hint(number);
        CHECK((hint.empty() || error.find(hint) != std::string::npos));
      }
      if (!error.empty()) {
        ++refused;
        continue;
      }
      ++run;
      check_program(shop.path(), settings);
    }
    CAPTURE(field.key);
    const bool needs_folder = field.key == "model.resize_vocabulary";  // resize_vocabulary_test.cpp
    CHECK((run > run_before || needs_folder));
  }
  CHECK(refused > 400);
  CHECK(run > 150);
}

TEST_CASE("slips of a key end soon, with the key in the message") {
  const Workshop shop;
  for (const char* slip :
       {"model.num_hidden_layers=20000", "model.hidden_size=2147483648", "model.head_dim=1e9",
        "model.head_dim=514", "training.micro_batch_size=1e15",
        "training.gradient_accumulation_steps=1e9", "threads=65535",
        "checkpoint.keep_last=4294967297", "data.seq_length=9223372036854775807",
        "training.seed=-1"}) {
    Words settings = settings_for("");
    settings.emplace_back(slip);
    const Outcome outcome = check_program(shop.path(), settings);
    const std::string text = slip;
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, Catch::Contains(text.substr(0, text.find('='))));
  }
}

TEST_CASE("products of numbers that are within their bounds") {
  const Workshop shop;
  const auto refusal = [&](const Words& more) {
    Words settings = settings_for("data.seq_length");
    settings.insert(settings.end(), more.begin(), more.end());
    const Outcome outcome = check_program(shop.path(), settings);
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK_THAT(
      refusal({"data.seq_length=16777216", "training.micro_batch_size=1048576"}),
      Catch::Contains("training.micro_batch_size") && Catch::Contains("more than 1073741824"));
  CHECK_THAT(refusal({"data.seq_length=16777216", "training.micro_batch_size=64",
                      "model.num_hidden_layers=1024", "model.hidden_size=65536",
                      "model.intermediate_size=1048576", "model.num_attention_heads=1024"}),
             Catch::Contains("activations"));
  CHECK_THAT(refusal({"training.max_steps=1e12", "training.gradient_accumulation_steps=1048576"}),
             Catch::Contains("training.max_steps"));
  // The largest model takes its time, but not for ever.
  Words largest = settings_for("data.seq_length");
  for (const char* word :
       {"model.num_hidden_layers=1024", "model.hidden_size=65536",
        "model.intermediate_size=1048576", "model.num_attention_heads=1024",
        "model.num_key_value_heads=1024", "model.head_dim=512", "model.vocab_size=16777216",
        "training.gradient_accumulation_steps=1048576"}) {
    largest.emplace_back(word);
  }
  CHECK(check_program(shop.path(), largest).code == 4);
}

TEST_CASE("one dry run whatever the number of micro-batches: the same memory, work in proportion") {
  const Workshop shop;
  const auto lines = [&](const std::string& passes) {
    Words settings = settings_for("");
    settings.push_back("training.gradient_accumulation_steps=" + passes);
    return lines_of(check_program(shop.path(), settings).out);
  };
  const auto starting = [](const Words& all, const std::string& with) {
    for (const std::string& line : all) {
      if (line.starts_with(with)) {
        return line;
      }
    }
    return std::string();
  };
  const Words few = lines("4");
  const Words many = lines("4000");
  CHECK(starting(few, "  total") == starting(many, "  total"));
  double few_flops = 0;
  double many_flops = 0;
  REQUIRE(std::sscanf(starting(few, "work ").c_str(), "work %lf", &few_flops) == 1);
  REQUIRE(std::sscanf(starting(many, "work ").c_str(), "work %lf", &many_flops) == 1);
  CHECK(many_flops == Approx(1000 * few_flops).epsilon(0.01));
}

TEST_CASE("heads of 512: training on the cpu") {
  const TempDir folder;
  write_file(folder / "text.txt", small_text(20000));
  const std::string plan = GENERATE("fp32", "bf16", "te-delayed");
  const Words command = {"model.preset=toy",
                         "model.head_dim=512",
                         "data.train=[{path: text.txt}]",
                         "data.seq_length=32",
                         "training.max_steps=30",
                         "training.micro_batch_size=4",
                         "optimizer.lr=3e-3",
                         "logging.interval=1",
                         "precision.plan=" + plan,
                         "threads=2",
                         "device=cpu",
                         "output_dir=run"};
  expect_code(0, folder.path(), command);
  const Words metrics = lines_of(read_file(folder / "run" / "metrics.jsonl"));
  const auto loss = [&](size_t line) {
    const std::string& text = metrics.at(line);
    return std::stod(text.substr(text.find("\"loss\":") + 7));
  };
  CHECK(loss(0) == Approx(std::log(258.0)).epsilon(0.05));
  CHECK(loss(29) < 0.7 * loss(0));
  // A GPU has no kernels for them: its memory is planned here, and the plan refuses.
  Words gpu = command;
  gpu.insert(gpu.begin(), "estimate");
  gpu[11] = "device=auto";
  gpu.emplace_back("job.gpu=h100");
  CHECK_THAT(expect_code(2, folder.path(), gpu).err,
             Catch::Contains("model.head_dim 512 is longer than the 256"));
}

}  // namespace
}  // namespace fp8train::test
