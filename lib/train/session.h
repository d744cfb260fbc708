#pragma once
// The meaning of a run's settings before anything large is allocated: tokenizer, data, model shape,
// precision plan, number of steps. Train, check, explain and bench all start here, so they cannot
// disagree.

#include <memory>
#include <string>
#include <vector>

#include "config/settings.h"
#include "data/corpus.h"
#include "data/samples.h"
#include "data/tokenizer.h"
#include "device/device.h"
#include "device/device_choice.h"
#include "train/step/engine.h"

namespace fp8train {

/// Steps whose losses the device keeps where spikes are looked for; they are taken no later.
constexpr int64_t kLossHistory = 256;

class DataRecord;

/// The settings, the data and the tokenizer of a run, opened and checked.
struct Session {
  Settings settings;
  std::unique_ptr<Tokenizer> tokenizer;
  CorpusSplits data;                        ///< empty unless asked for
  std::shared_ptr<DataRecord> data_record;  ///< set on the first rank of a run; null on others
  EngineSettings engine;                    ///< settings of one of the stages
  std::vector<RunStage> stages;  ///< one, but where precision.schedule has several scaled plans
  int64_t max_steps = 0;
  int ranks = 1;
  std::vector<std::string> notes;  ///< settings without a meaning here, to be reported

  /// The stage in which `steps` optimizer steps are done and another one follows, or the last one.
  size_t stage_after(int64_t steps) const;
  /// The engine becomes that of a stage.
  void enter_stage(size_t stage);
  EngineSettings engine_of(size_t stage) const;

  int64_t tokens_per_step() const { return engine.step.tokens() * ranks; }
};

/// Resolves the settings for a run of `ranks`; `open_data` also opens and checks the corpora.
/// Throws ConfigError, DataError or CheckpointError (model.from).
Session open_session(const Settings& settings, bool open_data, int ranks = 1);

/// Opens the data, and looks at the samples of training and validation. Throws as open_session()
/// does.
void open_corpora_of(Session& session);

/// The samples of a run with open data, which outlives them, in their order. Throws DataError where
/// there is none.
Samples training_samples(const Session& session);

/// Returns the shape, the plan and the batch alone, for a vocabulary that is known. Reads no data.
EngineSettings engine_settings(const Settings& settings, const ModelConfig& model);

/// Tokens of the longest prompt with its beginning-of-sequence id.
int64_t longest_prompt(const SampleSettings& sample, const Tokenizer& tokenizer);

/// The device that `device: cpu | cuda | auto` means, and in `reason` why. `tune_gemms`: its
/// products are timed (ops::tune_gemms), with choices stored in the cache folder. `gpu`: which of
/// those that this process sees.
std::unique_ptr<Device> choose_device(DeviceChoice choice, bool tune_gemms, std::string& reason,
                                      int gpu = 0);

}  // namespace fp8train
