#pragma once
// How long the passes of each part of a model take, and the order in which the stages of a pipeline
// run them: functions of the settings alone, so that all ranks, a resumed run and `estimate` agree
// on them without a message.

#include <vector>

#include "engine/engine.h"

namespace fp8train {

/// Returns the modelled seconds of the passes of a rank's micro-batch through each part of the
/// model, in order: the FLOPs of its products at the rates that a step is assumed to reach on an
/// H100, whatever the run's device is, and the bytes that the operations around them move. Messages
/// and what ranks exchange within layers have no time. Empty for an engine that has a part of its
/// own (EngineSettings::part): its model is not that of the pipeline.
std::vector<ActionTimes> pass_times(const EngineSettings& settings);

/// Returns the order of a step: ParallelLayout::given_schedule, or that which make_schedule() makes
/// for pass_times(). Throws ConfigError as make_schedule() does.
PipelineSchedule schedule_of(const EngineSettings& settings);

}  // namespace fp8train
