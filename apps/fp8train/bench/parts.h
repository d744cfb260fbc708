#pragma once
// The parts of fp8train bench, a file each: its options, and what it measures as JSON. Rates are
// per second of medians on random data.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli.h"
#include "device/device.h"
#include "engine/engine.h"
#include "model/model_config.h"

namespace fp8train {

/// The step that `fp8train bench step` measures, or models for a GPU that is not here.
struct StepBench {
  std::string preset = "nanogpt-laptop";
  std::string plan = "bf16";      ///< of the step; of `bench step` also several, with commas
  std::vector<std::string> sets;  ///< "precision.key=v" and "fp8.key=v": changes to the plan
  StepSettings settings = {.seq_length = 64, .micro_batch_size = 12};
  int64_t vocabulary = 0;  ///< 0: the preset's, or 65
  int64_t layers = 0;      ///< 0: the preset's
  int64_t zero_stage = 0;
  int64_t bucket_mb = 0;  ///< 0: default_bucket_bytes()
  std::string timeline;   ///< where to write one; empty: nowhere
  /// Weights are a few drawn values, repeated: billions take minutes to draw as training does.
  bool quick_weights = false;
};

/// The preset's model. Throws ConfigError for an unknown one.
ModelConfig model_of(const StepBench& bench);

/// Returns the settings of an engine that runs the step. Throws ConfigError for an unknown preset
/// or plan, and for a change that the plan does not take.
EngineSettings engine_settings_of(const StepBench& bench);

struct BenchOptions {
  bool json = false, tune = false, verify = false;
  std::string device = "auto";
  int64_t threads = 0;
  double seconds = 3.0;
  StepBench step;
  std::string calibration;  ///< a file of measured products; empty: none
  std::string sizes, modes = "bf16,tensor,row,block,mx";
  int64_t rows = 0, columns = 0, tokens = 8192;
  int64_t batch = 4, heads = 8, kv_heads = 8, head_dim = 64;
  bool deterministic = false;
};

using Json = nlohmann::ordered_json;
using ReportSink = std::function<void(const Json& report)>;

struct BenchPart {
  const char* name = nullptr;
  const char* help = nullptr;
  const char* example = nullptr;
  void (*add_options)(Arguments part, BenchOptions& options) = nullptr;  ///< null: none of its own
  /// The measurement on the device that the options name.
  Json (*measure)(Device& device, const BenchOptions& options) = nullptr;
  /// In place of `measure`: hands over a whole report for each plan as soon as it is there; none
  /// where another rank has it. Returns the exit code.
  int (*run)(const BenchOptions& options, const ReportSink& report) = nullptr;
  bool is_tuned = false;
  const char* device_help = "cpu, cuda or auto";
};

/// A whole training step on random tokens, against the rate of GEMMs measured in the same run. On
/// several ranks (mpirun, srun) each has a batch of its own. Several plans are measured one after
/// another in one process; one that does not fit into memory does not end the others.
extern const BenchPart kStepBench;
/// Products by the format of their operands, alone and with one cast of each operand from bf16,
/// against bf16 in the same run. A layer casts its weight once per optimizer step only, and where
/// the units want one order of operands x and dy in both orientations.
extern const BenchPart kGemmBench;
/// The GEMMs of a model's layers, forward and backward, as each mode of scaling runs them: with
/// operands that are there already, so that casts are not counted. A product that the device
/// refuses has an error and does not end the others. With --verify each is run once on operands
/// whose product is known exactly, and "wrong" counts the results beyond the bound.
extern const BenchPart kProductsBench;
/// Causal attention alone, forward and backward.
extern const BenchPart kAttentionBench;
/// How fast values become codes, against the memory bandwidth that a copy reaches in the same run
/// on buffers of the same size.
extern const BenchPart kCastBench;

}  // namespace fp8train
