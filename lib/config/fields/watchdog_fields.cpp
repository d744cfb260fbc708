// How long a rank may do one thing.

#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"

namespace fp8train {

std::vector<Field> watchdog_fields() {
  using namespace fields;
  const auto limit = [](const char* name, double WatchdogSettings::*member, const char* doc) {
    return field(std::string("watchdog.") + name, in(&Settings::watchdog, member),
                 {.range = between(0, kMostSeconds),
                  .accepts = "a duration such as 30m, at most 3650d, or 0: any time",
                  .is_duration = true},
                 doc);
  };
  return {
      limit("start_up", &WatchdogSettings::start_up,
            "Until the first step: ranks meet, data are opened, a checkpoint is read; or the run "
            "goes back to a checkpoint"),
      limit("data", &WatchdogSettings::data, "A micro-batch is read"),
      limit("step", &WatchdogSettings::step,
            "A micro-batch is computed, or the update. Waiting for other ranks has comm.timeout"),
      limit("evaluation", &WatchdogSettings::evaluation,
            "A batch of an evaluation, or a token of a sample"),
      limit("save", &WatchdogSettings::save, "A checkpoint is written, by any rank"),
      limit("end", &WatchdogSettings::end, "From the end of the training to that of the process"),
  };
}

}  // namespace fp8train
