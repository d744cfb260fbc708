// Random damage to a checkpoint, of every kind that a disk, a copy or a person makes: none of it is
// loaded.

#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>

#include "base/error.h"
#include "io/checkpoint/checkpoint.h"
#include "support/files.h"
#include "support/sanitized.h"
#include "support/save_checkpoint.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

namespace fs = std::filesystem;
using Bytes = std::map<std::string, std::string>;  ///< files of a checkpoint by name

/// How many; all 10,000 with FP8TRAIN_TEST_ROTATION=all.
int number_of_damages() {
  const char* const rotation = std::getenv("FP8TRAIN_TEST_ROTATION");
  const bool all = rotation != nullptr && std::strcmp(rotation, "all") == 0;
  return all ? 10000 : test::kSanitized ? 300 : 2000;
}

fs::path saved(const fs::path& root, int64_t step, const std::string& run_id) {
  std::vector<float> weights(120);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = static_cast<float>(step) + static_cast<float>(i) * 0.5F;
  }
  CheckpointContents contents;
  contents.run_id = run_id;
  contents.files = {{"model.safetensors", {{"w", DType::f32, {3, 40}, weights.data()}}, {}},
                    {"optimizer.safetensors", {{"m", DType::f32, {120}, weights.data()}}, {}},
                    {"state.json", {}, "{\"step\": " + std::to_string(step) + "}\n"}};
  return save_checkpoint(root, step, contents);
}

Bytes bytes_of(const fs::path& checkpoint) {
  Bytes bytes;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    bytes[entry.path().filename().string()] = test::read_file(entry.path());
  }
  return bytes;
}

/// Draws damages. `other`: a checkpoint of another step, whose files may be put in place.
class Damages {
 public:
  Damages(Bytes good, Bytes other) : good_(std::move(good)), other_(std::move(other)) {
    for (const auto& [name, bytes] : good_) {
      names_.push_back(name);
    }
  }

  /// The checkpoint's files with one damage; never those of the good one. `what` says which.
  Bytes draw(std::string& what) {
    Bytes bytes = good_;
    do {
      const std::string& name = names_[below(names_.size())];
      std::string& content = bytes[name];
      const size_t kind = below(9);
      what = name + ", kind " + std::to_string(kind);
      apply(kind, name, content, bytes);
    } while (bytes == good_);
    return bytes;
  }

 private:
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  char any() { return static_cast<char>(below(256)); }

  void apply(size_t kind, const std::string& name, std::string& content, Bytes& bytes) {
    const size_t at = content.empty() ? 0 : below(content.size());
    const size_t length = std::min(content.size() - at, 1 + below(64));
    switch (kind) {
      case 0:  // one bit
        content.at(at) = static_cast<char>(content.at(at) ^ (1 << below(8)));
        break;
      case 1:  // one byte
        content.at(at) = any();
        break;
      case 2:  // a run of bytes
        for (size_t i = at; i < at + length; ++i) {
          content[i] = any();
        }
        break;
      case 3:  // a run of zeros, as of blocks that were never written
        content.replace(at, length, length, '\0');
        break;
      case 4:  // cut off
        content.resize(at);
        break;
      case 5:  // longer
        content.append(1 + below(20), any());
        break;
      case 6:  // a part is missing
        content.erase(at, length);
        break;
      case 7:  // two files exchanged
        content.swap(bytes[names_[below(names_.size())]]);
        break;
      default:  // missing, or that of another step
        if (below(4) == 0) {
          bytes.erase(name);
        } else {
          content = other_.at(name);
        }
    }
  }

  Bytes good_, other_;
  std::vector<std::string> names_;
  std::mt19937 random_{20};
};

void replace_files(const fs::path& checkpoint, const Bytes& from, const Bytes& to) {
  for (const auto& [name, bytes] : from) {
    if (to.count(name) == 0) {
      fs::remove(checkpoint / name);
    }
  }
  for (const auto& [name, bytes] : to) {
    const auto known = from.find(name);
    if (known == from.end() || known->second != bytes) {
      test::write_file(checkpoint / name, bytes);
    }
  }
}

}  // namespace

TEST_CASE("no damaged checkpoint is loaded, whatever the damage") {
  const test::TempDir dir;
  const fs::path path = saved(dir / "a", 3, "run-1");
  const Bytes good = bytes_of(path);
  Damages damages(good, bytes_of(saved(dir / "b", 4, "run-1")));
  const int count = number_of_damages();
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string what;
    const Bytes bytes = damages.draw(what);
    replace_files(path, good, bytes);
    try {
      verify_checkpoint(path);
      FAIL_CHECK("loaded silently: damage " << i << " of " << what);
    } catch (const CheckpointError&) {
      ++refused;
    }
    replace_files(path, bytes, good);
  }
  CHECK(refused == count);
  CHECK_NOTHROW(verify_checkpoint(path));
}

}  // namespace fp8train
