#pragma once
// The layouts of a run, which do not change what it trains: how many ranks share each layer and
// each sequence, the stages of a pipeline, the stage of ZeRO, what is recomputed, whether the
// gradients of each micro-batch are exchanged, and how the sequences of a step are divided into
// micro-batches. Each is a dry run on the meta device, timed with the stated rates of a GPU.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/settings.h"
#include "engine/step_time.h"
#include "train/preflight.h"

namespace fp8train {

/// One layout of a run: its settings, and its costs on paper.
struct Layout {
  Settings settings;          ///< those of the run with the keys of this layout
  int64_t micro_batches = 1;  ///< of a rank in a step
  size_t bytes = 0;           ///< memory of a rank
  bool is_bound = false;      ///< it needs at least that, and does not fit: the run ended there
  bool is_estimate = false;   ///< bytes and times are nearly those of its run
  StepTime time;              ///< of an optimizer step
  double tokens_per_second = 0;
  double mfu = 0;  ///< model FLOPs over the GPU's rate of 16 bits
  /// The share of the job's time that neither saves nor failures cost; with checkpoint.interval 0,
  /// that of the best interval.
  double goodput = 0;
  std::string plan;  ///< of the stage that needs the most memory, which all is about
};

/// The layouts of a run on `ranks` ranks.
struct LayoutSearch {
  int64_t tokens_per_step = 0;       ///< of all ranks
  std::vector<Layout> fitting;       ///< the fastest comes first; only others can be estimates
  std::vector<Layout> scheduled;     ///< of other schedules, whose memory is not known
  std::vector<Layout> too_large;     ///< the smallest comes first
  int64_t larger = 0;                ///< others, which need more than some of too_large
  std::vector<std::string> refused;  ///< why other combinations cannot run
  std::vector<int64_t> indivisible;  ///< replicas among which a step's sequences are not divided
  std::function<void(const LayoutSearch&)> tried;  ///< called after each dry run
};

/// Searches the layouts of a run; a step has the same tokens in all of them. `memory` is that of a
/// planned GPU. Divides training.global_batch_size, or what all ranks compute in a step, among the
/// ranks of each layout that can share it. `micro_batch_size`: the only one that is tried; 0: all.
/// Other schedules than 1F1B are tried only where they would be among the `top` fastest. States of
/// the optimizer move to the host's memory only where nothing fits otherwise, and activations where
/// nothing fits without the recomputation of whole blocks. Of deep models with blocks that are all
/// alike only the `top` layouts are run whole. `tried`: called after each dry run.
/// Throws what open_session() throws if no combination can run.
LayoutSearch search_layouts(
    const Settings& settings, const RankMemory& memory, int ranks, int64_t top,
    int64_t micro_batch_size = 0,
    const std::function<void(const LayoutSearch&)>& tried = [](const LayoutSearch&) {});

/// Returns the keys that a search varies with the layout's values: "parallelism.zero_stage=1 ..",
/// and others where they differ from those of `file`.
std::string keys_of(const Layout& layout, const Settings& file);

/// Writes the order in which the stages of a pipeline run (schedule_of()) into a file, and prints
/// that. Throws DeviceError.
void write_schedule(const std::string& file, const EngineSettings& settings);

/// Whether some layout of the search has ranks that can share the step's sequences.
bool can_be_shared(const Settings& settings, int ranks);

/// Replaces a global batch that `ranks` ranks with this micro-batch cannot share by the nearest one
/// that they can. Returns a line on that, or an empty text.
std::string fit_global_batch(int ranks, int64_t micro_batch_size, Settings& settings);

}  // namespace fp8train
