// Folders and files that are not what they should be: checkpoints with valid hashes that no run has
// written, saves that were not finished, names that are too long, folders that vanish.

#include <cmath>
#include <csignal>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/checkpoint/checkpoint.h"
#include "program.h"
#include "support/save_checkpoint.h"

namespace fp8train::test {
namespace {

Words train_command(const Words& more = {}) {
  Words words = {"model.preset=toy",
                 "data.train=[{path: text.txt}]",
                 "data.seq_length=32",
                 "training.max_steps=4",
                 "training.micro_batch_size=2",
                 "checkpoint.interval=2",
                 "checkpoint.keep_last=2",
                 "threads=1",
                 "precision.plan=bf16",
                 "output_dir=run"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

/// A finished run of four steps, with checkpoints of steps 2 and 4.
class FinishedRun {
 public:
  explicit FinishedRun(const Words& more = {}) : more_(more) {
    write_file(folder_ / "text.txt", small_text(20000));
    expect_code(0, folder_.path(), train_command(more));
  }
  const fs::path& folder() const { return folder_.path(); }
  fs::path checkpoints() const { return folder_ / "run" / "checkpoints"; }

  /// Writes the newest checkpoint again, valid by every hash, after `change` has seen its content.
  void rewrite(const std::function<void(CheckpointContents&)>& change) const {
    const fs::path newest = checkpoints() / "step-000004";
    const CheckpointManifest manifest = verify_checkpoint(newest);
    CheckpointContents contents = {.run_id = manifest.run_id, .files = {}};
    for (const FileRecord& record : manifest.files) {
      contents.files.push_back({record.name, {}, read_file(newest / record.name)});
    }
    change(contents);
    save_checkpoint(checkpoints(), 4, contents);
  }

  void rewrite_state(const std::function<void(nlohmann::ordered_json&)>& change) const {
    rewrite([&](CheckpointContents& contents) {
      for (CheckpointFile& file : contents.files) {
        if (file.name == "state.json") {
          auto state = nlohmann::ordered_json::parse(*file.text);
          change(state);
          file.text = state.dump(1) + "\n";
        }
      }
    });
  }

  /// What is said of the newest checkpoint, which is passed over.
  std::string passed_over() const {
    Words more = more_;
    more.emplace_back("training.max_steps=5");
    const Outcome outcome = expect_code(0, folder(), train_command(more));
    CHECK_THAT(outcome.out, Catch::Contains("resumed from run/checkpoints/step-000002"));
    CHECK_THAT(outcome.err, Catch::Contains("skipped checkpoint step-000004"));
    return outcome.err;
  }

 private:
  Words more_;
  TempDir folder_;
};

constexpr int64_t kHuge = int64_t{1} << 62;

TEST_CASE("a state that cannot be true is not believed, whatever its hash says") {
  struct Change {
    const char* key;
    nlohmann::ordered_json value;
  };
  const auto change = GENERATE(
      Change{"step", 3}, Change{"step", -4}, Change{"step", 4.5}, Change{"sample_position", -1},
      Change{"tokens", "many"}, Change{"loss_scale", 0.0}, Change{"loss_scale", -1.0},
      Change{"good_steps", 4294967296}, Change{"applied_steps", -7}, Change{"best_val_step", 9},
      Change{"seed", 2}, Change{"data_fingerprint", "0123456789abcdef"},
      Change{"tokens_per_step", 0}, Change{"tokens_per_step", -kHuge},
      Change{"applied_steps", kHuge}, Change{"applied_steps", 5}, Change{"skipped_steps", 5},
      Change{"sample_position", kHuge}, Change{"sample_position", 17}, Change{"seq_length", 0},
      Change{"val_loss", "low"}, Change{"loss", nullptr}, Change{"first_loss", "high"},
      Change{"rollbacks", 3}, Change{"rollbacks", "none"}, Change{"data_files", 3},
      Change{"recent_losses", "many"}, Change{"plan", 7}, Change{"formats", 7},
      Change{"optimizer", {1, 2}});
  INFO(change.key << " " << change.value.dump());
  const FinishedRun run;
  run.rewrite_state([&](nlohmann::ordered_json& state) { state[change.key] = change.value; });
  const std::string said = run.passed_over();
  CHECK_THAT(said, Catch::Contains("state.json"));
  CHECK_THAT(said, !Catch::Contains("json.exception"));
}

/// Changes one fp32 or int32 value of a tensor of a safetensors file.
void set_value(std::string& file, const std::string& tensor, size_t index, float value) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const auto json = nlohmann::json::parse(file.substr(sizeof header, header));
  const auto begin = json.at(tensor).at("data_offsets").at(0).get<size_t>();
  std::memcpy(&file[sizeof header + header + begin + index * sizeof value], &value, sizeof value);
}

TEST_CASE("moments and scales that no run leaves are not loaded, whatever their hash says") {
  struct Change {
    const char* file;
    const char* tensor;
    float value;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const char* const second = "moment2.layers.0.mlp.up.weight";
  const auto change =
      GENERATE_COPY(Change{"optimizer", second, -1}, Change{"optimizer", second, NAN},
                    Change{"optimizer", second, infinity},
                    Change{"optimizer", "moment1.layers.0.mlp.up.weight", NAN},
                    Change{"scaling", "scale", -1}, Change{"scaling", "scale", 0},
                    Change{"scaling", "scale_inv", NAN}, Change{"scaling", "amax_history", -1},
                    Change{"scaling", "cursor", 1e9F}, Change{"scaling", "cursor", 0.5F});
  CAPTURE(change.file, change.tensor, change.value);
  const std::string name = change.file + std::string(".safetensors");
  const bool is_scaling = change.file == std::string("scaling");
  const std::string tensor =
      (is_scaling ? "scaling.layers.1.mlp.down.dy." : "") + std::string(change.tensor);
  const FinishedRun run({"precision.plan=te-delayed"});
  run.rewrite([&](CheckpointContents& contents) {
    for (CheckpointFile& file : contents.files) {
      if (file.name == name) {
        set_value(*file.text, tensor, 0, change.value);
      }
    }
  });
  CHECK_THAT(run.passed_over(), Catch::Contains(tensor));
}

TEST_CASE("a manifest without the optimizer or the scales is passed over") {
  const std::string name = GENERATE("optimizer.safetensors", "scaling.safetensors");
  const bool stays = GENERATE(false, true);  // the file, which nothing vouches for
  CAPTURE(name, stays);
  const FinishedRun run({"precision.plan=te-delayed"});
  const fs::path file = run.checkpoints() / "step-000004" / name;
  const std::string bytes = read_file(file);
  run.rewrite([&](CheckpointContents& contents) {
    std::erase_if(contents.files, [&](const CheckpointFile& one) { return one.name == name; });
  });
  if (stays) {
    write_file(file, bytes);
  }
  run.passed_over();
}

TEST_CASE("files of two runs are not taken for one") {
  const FinishedRun run;
  run.rewrite([](CheckpointContents& contents) { contents.run_id = "2-0123456789abcdef"; });
  CHECK_THAT(run.passed_over(), Catch::Contains("of run 2-0123456789abcdef"));
}

TEST_CASE("a checkpoint of another run with the same seed and data says what differs") {
  const FinishedRun run;
  expect_code(0, run.folder(), train_command({"output_dir=other", "optimizer.lr=0.0123"}));
  fs::remove_all(run.checkpoints());
  fs::copy(run.folder() / "other/checkpoints", run.checkpoints(), fs::copy_options::recursive);
  const Outcome outcome =
      expect_code(0, run.folder(), train_command({"training.max_steps=5", "optimizer.lr=0.002"}));
  CHECK_THAT(outcome.out, Catch::Contains("changed since then: optimizer.lr: 0.0123 -> 0.002"));
  CHECK_THAT(
      expect_code(0, run.folder(), train_command({"training.max_steps=6", "optimizer.lr=0.002"}))
          .out,
      !Catch::Contains("changed since then: optimizer"));
}

TEST_CASE("a manifest that leaves a file out") {
  const std::string name =
      GENERATE("model.safetensors", "config.json", "tokenizer.json", "state.json");
  const FinishedRun run;
  run.rewrite([&](CheckpointContents& contents) {
    std::erase_if(contents.files, [&](const CheckpointFile& file) { return file.name == name; });
  });
  CHECK_THAT(run.passed_over(), Catch::Contains("does not list " + name));
}

TEST_CASE("a save that was not finished is no model") {
  const FinishedRun run;
  const fs::path whole = run.checkpoints() / "step-000004";
  const fs::path partial = run.checkpoints() / "step-000006.partial";
  fs::copy(whole, partial);
  fs::remove(partial / "MANIFEST.json");
  const auto generate = [&](const fs::path& folder) {
    return expect_code(4, run.folder(),
                       {"generate", "--checkpoint", folder.string(), "--prompt", "a",
                        "--max-new-tokens", "1"})
        .err;
  };
  CHECK_THAT(generate(partial), Catch::Contains("interrupted"));
  CHECK_THAT(generate(partial.string() + "/"), Catch::Contains("interrupted"));
  const Outcome from = expect_code(
      4, run.folder(),
      {"data.train=[{path: text.txt}]", "model.from=" + partial.string(), "output_dir=other",
       "training.max_steps=1", "data.seq_length=32", "training.micro_batch_size=2"});
  CHECK_THAT(from.err, Catch::Contains("interrupted"));
  fs::rename(partial, run.folder() / "copy");
  CHECK_THAT(generate(run.folder() / "copy"), Catch::Contains("without its MANIFEST.json"));
  fs::remove(run.folder() / "copy" / "state.json");  // a plain model folder
  expect_code(0, run.folder(),
              {"generate", "--checkpoint", "copy", "--prompt", "a", "--max-new-tokens", "1"});
}

TEST_CASE("names that file systems do not take are a mistake of the configuration") {
  const TempDir folder;
  write_file(folder / "text.txt", small_text(20000));
  const std::string name(256, 'n');
  const std::string path = [] {
    std::string text;
    while (text.size() < 5000) text += "folder/";
    return text;
  }();
  for (const char* key : {"output_dir", "model.from", "data.tokenizer", "checkpoint.resume",
                          "comm.bootstrap_file", "data.train", "data.val"}) {
    for (const std::string& value : {name, "a/" + name + "/b", path}) {
      Words words = train_command({std::string(key) + "=" + value});
      if (std::string(key) == "model.from") {
        words.erase(words.begin());
      }
      CHECK_THAT(expect_code(2, folder.path(), words).err, Catch::Contains(key));
    }
  }
  const std::string longest(255, 'n');
  expect_code(0, folder.path(), train_command({"output_dir=" + longest}));
}

TEST_CASE("a run's folder that vanishes is not made again") {
  const TempDir folder;
  write_file(folder / "text.txt", small_text(20000));
  Process process(folder.path(), train_command({"training.max_steps=1000000",
                                                "checkpoint.interval=0", "logging.interval=1"}));
  REQUIRE(process.wait_until([&] { return last_logged_step(folder / "run") >= 3; }));
  fs::rename(folder / "run", folder / "elsewhere");
  process.send(SIGTERM);
  const Outcome outcome = process.wait();
  CHECK(outcome.code == 4);
  CHECK_THAT(outcome.err, Catch::Contains("run/checkpoints is gone"));
  CHECK_FALSE(fs::exists(folder / "run"));
}

}  // namespace
}  // namespace fp8train::test
