#pragma once
// Runs that diverge at a known step: data are read in order, so that what is put into the text
// comes when it is meant to.

#include <catch2/catch.hpp>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "support/save_checkpoint.h"

namespace fp8train::test {

constexpr size_t kStepTokens = 2 * 2 * 32;  // micro-batch, accumulation, sequence
constexpr int kSteps = 40;
constexpr size_t kTextBytes = 12000;

/// 0xFF and the like, of which nothing else in the text has any: as no model expects them.
inline std::string noise(size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) {
    text.push_back(static_cast<char>('!' + (i * i * 7 + i * 3) % 90));
  }
  return text;
}

/// Data in order; `bad` replaces what the steps from `step` on read.
inline std::string text_with(const std::string& bad, size_t step) {
  std::string text;
  while (text.size() < kTextBytes) {
    text += "abcdefgh";
  }
  return text.replace((step - 1) * kStepTokens, bad.size(), bad);
}

struct DivergingFolder : TextFolder {
  /// Two steps of noise, 21 and 22.
  DivergingFolder() : TextFolder(text_with(noise(2 * kStepTokens), 21)) {}
};

inline Words command(const std::string& name, const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.val_fraction=0.1",
                 "data.shuffle=false",
                 "data.seq_length=32",
                 "training.max_steps=" + std::to_string(kSteps),
                 "training.micro_batch_size=2",
                 "training.global_batch_size=4",
                 "training.on_divergence=rollback",
                 "training.spike_threshold=6",
                 "training.spike_window=8",
                 "training.spike_steps=2",
                 "optimizer.lr=3e-3",
                 "optimizer.weight_decay=0",
                 "scheduler.warmup_steps=4",
                 "eval.interval=10",
                 "eval.batches=2",
                 "logging.interval=1",
                 "checkpoint.interval=5",
                 "threads=1",
                 "precision.plan=bf16",
                 "output_dir=" + name};
  for (const std::string& word : more) {
    const std::string key = word.substr(0, word.find('=') + 1);
    std::erase_if(words, [&](const std::string& old) { return old.starts_with(key); });
    words.push_back(word);
  }
  return words;
}

inline fs::path checkpoint(const fs::path& run, int step) {
  char name[32];
  std::snprintf(name, sizeof name, "step-%06d", step);
  return run / "checkpoints" / name;
}

inline nlohmann::json state_of(const fs::path& checkpoint) {
  return nlohmann::json::parse(read_file(checkpoint / "state.json"));
}

/// Lines of metrics without the times and without those of saves, which come when they are over;
/// those with `key` only, where that is given.
inline std::vector<std::string> metrics_of(const fs::path& run, const char* key = nullptr) {
  std::vector<std::string> found;
  for (const std::string& line : lines_of(read_file(run / "metrics.jsonl"))) {
    nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    for (const char* timed : {"tokens_per_second", "seconds_per_step", "tflops", "mfu",
                              "speed_of_light", "time", "memory_bytes", "stage_idle"}) {
      object.erase(timed);
    }
    object.erase("slowest_rank");
    object.erase("wire_bytes_within_node");  // stage 3: fewer where an evaluation gathered already
    if (!object.contains("saved") && (key == nullptr || object.contains(key))) {
      found.push_back(object.dump());
    }
  }
  return found;
}

inline void check_same_end(const fs::path& a, const fs::path& b) {
  for (const auto& entry : fs::directory_iterator(checkpoint(a, kSteps))) {
    const fs::path name = entry.path().filename();
    INFO(name);
    CHECK(same_bytes(entry.path(), checkpoint(b, kSteps) / name));
  }
  CHECK(metrics_of(a) == metrics_of(b));
}

/// The bytes of a checkpoint's files with one of them changed, saved as a checkpoint of `step`.
inline void save_changed(const fs::path& from, const fs::path& root, int step,
                         const std::string& file, const std::function<void(std::string&)>& change) {
  CheckpointContents contents = {.run_id = verify_checkpoint(from).run_id, .files = {}};
  for (const FileRecord& record : verify_checkpoint(from).files) {
    std::string bytes = read_file(from / record.name);
    if (record.name == file) {
      change(bytes);
    }
    contents.files.push_back({record.name, {}, bytes});
  }
  save_checkpoint(root, step, contents);
}

/// The embedding of one byte becomes the largest fp32 number, which is infinite in bf16.
inline void poison_embedding(std::string& safetensors, unsigned char byte) {
  uint64_t header = 0;
  std::memcpy(&header, safetensors.data(), sizeof header);
  const nlohmann::json json = nlohmann::json::parse(safetensors.substr(8, header));
  const nlohmann::json& tensor = json.at("model.embed_tokens.weight");
  const auto columns = tensor.at("shape").at(1).get<size_t>();
  const size_t begin = 8 + header + tensor.at("data_offsets").at(0).get<size_t>();
  const float largest = 3.4e38F;
  for (size_t i = 0; i < columns; ++i) {
    std::memcpy(&safetensors[begin + (byte * columns + i) * sizeof largest], &largest,
                sizeof largest);
  }
}

/// A model folder, "poisoned", that makes a step with '~' in its batch a skipped one; steps 21 and
/// 22 have one.
class PoisonedFolder : public DivergingFolder {
 public:
  PoisonedFolder() {
    write_file(*this / "text.txt", text_with("~", 1));
    expect_code(
        0, path(),
        command("base", {"training.max_steps=1", "eval.interval=0", "scheduler.warmup_steps=0",
                         "model.tie_word_embeddings=false", "model.max_position_embeddings=64"}));
    save_changed(checkpoint(*this / "base", 1), *this / "poisoned", 1, "model.safetensors",
                 [](std::string& bytes) { poison_embedding(bytes, '~'); });
    write_file(*this / "text.txt", text_with("~" + std::string(kStepTokens, 'a') + "~", 21));
  }
  static Words command_from_it(const std::string& name, const Words& more = {}) {
    Words words = command(name, more);
    std::erase(words, "model.preset=toy");
    words.emplace_back("model.from=poisoned/step-000001");
    words.emplace_back("training.max_consecutive_skips=2");
    return words;
  }
};

inline void check_rolled_back_once(const fs::path& run, const std::string& kind) {
  const nlohmann::json summary = nlohmann::json::parse(read_file(run / "summary.json"));
  CHECK(summary.at("rollbacks") == 1);
  CHECK(summary.at("steps") == kSteps);
  const nlohmann::json rollbacks = state_of(checkpoint(run, kSteps)).at("rollbacks");
  REQUIRE(rollbacks.size() == 1);
  CHECK(rollbacks[0].at("to_step") == 20);
  CHECK(rollbacks[0].at("from_step") == 22);
  CHECK(rollbacks[0].at("first_sample") == 20 * 4);
  CHECK(rollbacks[0].at("end_sample") == 22 * 4);
  CHECK(rollbacks[0].at("kind") == kind);
  const std::vector<std::string> lines = metrics_of(run, "rollback");
  REQUIRE(lines.size() == 1);
  CHECK(nlohmann::json::parse(lines[0]).at("step") == 21);
  CHECK(metrics_of(run, "loss").size() == kSteps);
  // The two steps that are done anew have other batches.
  CHECK(state_of(checkpoint(run, kSteps)).at("sample_position") == (kSteps + 2) * 4);
}

}  // namespace fp8train::test
