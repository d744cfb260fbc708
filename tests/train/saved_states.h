#pragma once
// Engines on ranks that save the optimizer's state in parts.

#include <catch2/catch.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/dry_run.h"
#include "support/rank_threads.h"
#include "support/small_llama.h"
#include "train/checkpoint/optimizer_state.h"
#include "train/ranks.h"

namespace fp8train::test {

struct Layout {
  int ranks, stage;
};

inline EngineSettings settings_of(const std::string& plan, int stage) {
  EngineSettings settings = test::small_llama(plan);
  settings.strategy.zero_stage = stage;
  settings.strategy.bucket_bytes = 4096;
  return settings;
}

inline void run(const Layout& layout, const std::function<void(Communicator&)>& body) {
  const std::vector<std::string> errors =
      test::run_ranks(Topology::blocks(layout.ranks, layout.ranks), body);
  CHECK(errors == std::vector<std::string>(static_cast<size_t>(layout.ranks)));
}

inline void reserve(Engine& engine, const Communicator& comm) {
  engine.reserve(
      dry_run_step(engine.settings(), DeviceTraits{}, comm.topology(), comm.rank()).plan);
}

inline void train(Engine& engine, const Communicator& comm) {
  reserve(engine, comm);
  engine.model().initialize(3);
  engine.weights_changed();
  uint64_t pass = 0;
  for (int64_t step = 0; step < 2; ++step) {
    engine.step(
        [&] {
          return test::random_batch(pass++ * static_cast<uint64_t>(comm.size()) +
                                    static_cast<uint64_t>(comm.rank()));
        },
        step, 1e-3, false);
  }
}

inline void save(const std::filesystem::path& root, Engine& engine, Communicator& comm) {
  if (comm.rank() == 0) {
    begin_checkpoint(root, 1);
  }
  wait_for_first_rank(comm);
  static std::mutex mutex;
  static std::vector<FileRecord> records;
  OptimizerFile own;
  refresh_optimizer_file(engine, own);
  if (state_writer(engine).writes) {
    const FileRecord record = write_checkpoint_file(partial_checkpoint(root, 1), own.file);
    const std::lock_guard<std::mutex> lock(mutex);
    records.push_back(record);
  }
  comm.barrier().wait();
  if (comm.rank() == 0) {
    commit_checkpoint(root, 1, "test", records);
    records.clear();
  }
  wait_for_first_rank(comm);
}

/// Bytes of everything that is stored, by name and first element, each put together from all ranks.
using Bytes = std::map<std::string, std::vector<uint8_t>>;

/// All tensors of the files of a checkpoint: parts one after another.
inline Bytes contents(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::map<int64_t, std::vector<uint8_t>>> parts;
  for (const FileRecord& record : verify_checkpoint(checkpoint).files) {
    const SafetensorsFile file(checkpoint / record.name);
    for (const SafetensorsEntry& entry : file.header().entries) {
      const size_t at = entry.name.rfind('@');
      const int64_t first = at == std::string::npos ? 0 : std::stoll(entry.name.substr(at + 1));
      std::vector<uint8_t>& bytes = parts[entry.name.substr(0, at)][first];
      bytes.resize(entry.bytes());
      file.read(entry, bytes.data());
    }
  }
  Bytes whole;
  for (const auto& [name, pieces] : parts) {
    for (const auto& [first, bytes] : pieces) {
      whole[name].insert(whole[name].end(), bytes.begin(), bytes.end());
    }
  }
  return whole;
}

}  // namespace fp8train::test
