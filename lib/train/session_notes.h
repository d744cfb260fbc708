#pragma once
// Notes about a run's settings before it starts: settings that are valid but may not be intended.
// Each function adds to the notes of the session.

#include <cstdint>
#include <string>
#include <vector>

#include "config/settings.h"
#include "data/corpus.h"
#include "data/tokenizer.h"
#include "engine/engine.h"

namespace fp8train {

/// Weights come with a tokenizer: another one gives their tokens other meanings. `vocab_size`: of
/// the model, which tells where its folder has no tokenizer.
void note_other_tokenizer(const Settings& settings, const Tokenizer& tokenizer, int64_t vocab_size,
                          std::vector<std::string>& notes);

/// A run that is shorter than its schedule: usually a trial of a few steps.
void note_short_run(const ScheduleSettings& schedule, int64_t steps,
                    std::vector<std::string>& notes);

/// A rate of pre-training without warm-up for a model that is trained already. `steps`: of the run.
void note_high_rate(const Settings& settings, int64_t steps, std::vector<std::string>& notes);

/// The plan scales GEMMs, but every layer is exempt, or `request` keeps every GEMM out of scaled
/// formats: the run is not what it is called.
void note_nothing_scaled(const EngineSettings& engine, const PlanRequest& request,
                         std::vector<std::string>& notes);

/// A source that the run reads very often. `epochs`: how often it reads each of a blend, or all.
void note_many_epochs(const Corpus& train, const std::vector<double>& epochs,
                      std::vector<std::string>& notes);

/// A model whose vocabulary is many times as large as that of the tokenizer: the text never uses
/// most of it.
void note_unused_vocabulary(const Settings& settings, const Tokenizer& tokenizer,
                            int64_t vocab_size, std::vector<std::string>& notes);

/// Notes a number of processes in another program's file that is not that of the job.
void note_processes(const Settings& settings, int ranks, std::vector<std::string>& notes);

}  // namespace fp8train
