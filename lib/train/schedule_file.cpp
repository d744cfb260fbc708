#include "train/schedule_file.h"

#include "base/error.h"
#include "base/input_file.h"
#include "base/key_error.h"

namespace fp8train {

void read_schedule_file(int64_t micro_batches, ParallelLayout& layout) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  const char* const key = "parallelism.schedule_file";
  const std::string& file = layout.schedule_file;
  if (file.empty()) {
    return;
  }
  std::string text;
  try {
    text = read_text_file(file, kMaxBytes);
  } catch (const DataError& error) {
    throw KeyError(key, std::string(": ") + error.what());  // a part of the configuration
  }
  layout.given_schedule = keyed<ConfigError>(
      key,
      [&] {
        PipelineSchedule schedule = read_schedule(text);
        check_schedule(schedule, layout.pipeline_shape(micro_batches));
        return schedule;
      },
      file + ": ");
}

}  // namespace fp8train
