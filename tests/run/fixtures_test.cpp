// Checkpoints of earlier versions (tests/golden/checkpoints): they are read to the last bit, and
// runs go on from them.

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "program.h"

namespace fp8train::test {
namespace {

using Bytes = std::map<std::string, std::string>;

const fs::path kFixtures = fs::path(FP8TRAIN_GOLDEN_DIR) / "checkpoints";

/// Folders with a run.yaml and step-000006.
std::vector<fs::path> fixtures() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(kFixtures)) {
    if (entry.path().filename() == "run.yaml") {
      found.push_back(entry.path().parent_path());
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Puts scales that are saved by slot together as earlier versions did: a column for each slot.
void join_scales(const fs::path& checkpoint, Bytes& tensors) {
  const auto state = nlohmann::json::parse(read_file(checkpoint / "state.json"));
  const nlohmann::json& formats = state.at("formats");
  std::map<std::string, std::vector<std::string>> columns;  // by part
  for (const char* part : {"amax", "scale", "scale_inv", "amax_history", "cursor"}) {
    for (const nlohmann::json& slot :
         formats.is_object() ? formats.at("scaled_tensors") : nlohmann::json::array()) {
      const auto found = tensors.find("scaling." + slot.get<std::string>() + "." + part + " F32");
      if (found != tensors.end()) {
        columns[part].push_back(found->second);
        tensors.erase(found);
      }
    }
  }
  for (const auto& [part, slots] : columns) {
    std::string& joined = tensors["scaling.0." + part + " F32"];
    for (size_t row = 0; row < slots.front().size(); row += sizeof(float)) {
      for (const std::string& slot : slots) {
        joined += slot.substr(row, sizeof(float));
      }
    }
  }
}

/// All tensors of a checkpoint's files by name; parts of ranks ("NAME@FIRST") put together.
Bytes tensors_of(const fs::path& checkpoint) {
  std::map<std::string, std::map<int64_t, std::string>> parts;
  for (const FileRecord& record : verify_checkpoint(checkpoint).files) {
    if (!record.name.ends_with(".safetensors")) {
      continue;
    }
    const SafetensorsFile file(checkpoint / record.name);
    for (const SafetensorsEntry& entry : file.header().entries) {
      const size_t at = entry.name.rfind('@');
      const int64_t first = at == std::string::npos ? 0 : std::stoll(entry.name.substr(at + 1));
      std::string& bytes =
          parts[entry.name.substr(0, at) + " " + std::string(entry.type.name)][first];
      bytes.resize(entry.bytes());
      file.read(entry, bytes.data());
    }
  }
  Bytes whole;
  for (const auto& [name, pieces] : parts) {
    for (const auto& [first, bytes] : pieces) {
      whole[name] += bytes;
    }
  }
  join_scales(checkpoint, whole);
  return whole;
}

Words command(const fs::path& fixture, const fs::path& checkpoint, const std::string& out,
              int steps) {
  return {(fixture / "run.yaml").string(),
          "threads=1",
          "checkpoint.resume=" + checkpoint.string(),
          "training.max_steps=" + std::to_string(steps),
          "logging.interval=1",
          "output_dir=" + out};
}

TEST_CASE("there is a checkpoint of each kind") {
  CHECK(fixtures().size() >= 4);
  CHECK(fs::exists(kFixtures / "format1/te-delayed/step-000006/scaling.safetensors"));
  CHECK(fs::exists(kFixtures / "format1-by-slot/te-delayed/step-000006/scaling.safetensors"));
  CHECK(fs::exists(kFixtures /
                   "format1/coat-two-ranks/step-000006/optimizer-00002-of-00002.safetensors"));
}

TEST_CASE(
    "a checkpoint of an earlier version is read to the last bit, and a run continues from it") {
  for (const fs::path& fixture : fixtures()) {
    CAPTURE(fixture);
    const fs::path checkpoint = fixture / "step-000006";
    const TempDir dir;
    fs::copy_file(kFixtures / "text.txt", dir / "text.txt");
    // What was read is written again at once.
    const Outcome read = expect_code(0, dir.path(), command(fixture, checkpoint, "read", 6));
    CHECK_THAT(read.out, Catch::Contains("resumed from") && Catch::Contains("at step 6"));
    const Bytes saved = tensors_of(checkpoint);
    CHECK(saved.size() >= 30);
    CHECK((tensors_of(dir / "read/checkpoints/step-000006") == saved));

    expect_code(0, dir.path(), command(fixture, checkpoint, "on", 8));
    std::vector<double> losses;
    for (const std::string& line : lines_of(read_file(dir / "on/metrics.jsonl"))) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) {
        losses.push_back(json.at("loss").is_number() ? json.at("loss").get<double>() : NAN);
      }
    }
    REQUIRE(losses.size() == 2);
    CHECK(std::isfinite(losses[0]));
    CHECK(losses[1] < 3.2);  // 27 letters: an untrained model has 3.3
    CHECK((tensors_of(dir / "on/checkpoints/step-000008") != saved));
  }
}

}  // namespace
}  // namespace fp8train::test
