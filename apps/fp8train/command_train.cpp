// fp8train train, the default command: from a configuration to a trained model in a run directory.

#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/signals.h"
#include "comm/backends/backends.h"
#include "comm/launch.h"
#include "commands.h"
#include "config/show.h"
#include "run_screen.h"
#include "train/run.h"
#include "train/watch/run_watchdog.h"

namespace fp8train {
namespace {

struct TrainOptions {
  CommonOptions common;
  std::string resume;
};

/// All ranks find the same errors before they have met: the first one says what is wrong, which
/// ends the others. One that is not ended has a file of its own, and says so.
template <class Work>
auto as_rank(const Work& work) {
  try {
    return work();
  } catch (const ConfigError& error) {
    const int rank = rank_of_launcher();
    if (rank == 0) {
      throw;
    }
    std::this_thread::sleep_for(std::chrono::seconds(2));
    throw ConfigError(fmt::format("rank {}: {}", rank, error.what()));
  }
}

std::unique_ptr<Communicator> find_ranks(const Settings& settings, RunWatchdog& watchdog) {
  try {
    return make_communicator(settings.comm);
  } catch (const TimeoutError& error) {
    throw TimeoutError(watchdog.report_failed_wait(error.what()));
  }
}

}  // namespace

void add_train(Arguments command, Action& action) {
  auto options = std::make_shared<TrainOptions>();
  add_common(command, options->common);
  command.option("--resume auto|never|FOLDER", options->resume,
                 "Short for --set checkpoint.resume=");
  command.run(action, [options] {
    if (!options->resume.empty()) {
      options->common.sets.push_back("checkpoint.resume=" + options->resume);
    }
    const Settings settings = as_rank([&] { return load(options->common); });
    install_stop_handlers();  // before ranks find each other, which takes long on many nodes
    RunWatchdog& watchdog = RunWatchdog::start(settings.watchdog, settings.output_dir);
    const std::unique_ptr<Communicator> comm =
        as_rank([&] { return find_ranks(settings, watchdog); });
    return run_as_rank(*comm, [&](const EndRanks& end_ranks) {
      RunScreen screen(options->common.quiet ? RunScreen::Style::quiet
                                             : screen_style(settings.logging.format, stdout),
                       stdout, options->common.verbose > 0);
      const RunOutcome outcome = train({.settings = settings,
                                        .resolved_yaml = show_settings(settings, true),
                                        .command = command_line(),
                                        .version = version_text(),
                                        .listener = &screen,
                                        .watchdog = &watchdog,
                                        .end_other_ranks = end_ranks},
                                       *comm);
      return outcome == RunOutcome::finished ? 0 : kExitRequeue;
    });
  });
}

}  // namespace fp8train
