// fp8train layouts: the ways to lay a run over GPUs that need not be here, on paper.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "commands.h"
#include "config/load.h"
#include "config/show.h"
#include "engine/pass_times.h"
#include "layouts.h"
#include "output_path.h"
#include "overview.h"
#include "session_words.h"
#include "text_stream.h"

namespace fp8train {
namespace {

struct LayoutOptions {
  RankOptions ranks;
  std::string gpu;
  int64_t top = 10;
  std::string write, schedule;
  bool overwrite = false;
};

/// "16", with its schedule: "16x4" with four chunks in each, "16+zb" with zero_bubble.
std::string stages_of(const ParallelLayout& layout) {
  return fmt::to_string(layout.pipeline) + (layout.virtual_stages > 1
                                                ? fmt::format("x{}", layout.virtual_stages)
                                            : layout.splits_backward() ? "+zb"
                                                                       : "");
}

/// "batch" is the sequences of a micro-batch, "times" the micro-batches of a step.
std::string table_of(const std::vector<Layout>& layouts, size_t shown) {
  std::vector<TableColumn> table = {{"tensor"},   {"context"},   {"expert"},          {"stages"},
                                    {"ZeRO"},     {"recompute"}, {"batch"},           {"times"},
                                    {"memory"},   {"s/step", 4}, {"exposed wire", 3}, {"idle", 2},
                                    {"tokens/s"}, {"MFU", 1},    {"goodput", 5}};
  for (size_t i = 0; i < shown; ++i) {
    const Layout& layout = layouts[i];
    const Settings& settings = layout.settings;
    add_row(
        table,
        {fmt::to_string(settings.parallelism.layout.tensor),
         fmt::to_string(settings.parallelism.layout.context),
         fmt::to_string(settings.parallelism.layout.expert), stages_of(settings.parallelism.layout),
         fmt::format("{}{}{}", settings.parallelism.zero_stage,
                     settings.parallelism.sync_each_batch ? "+sync" : "",
                     settings.optimizer.offloads ? "+host" : ""),
         fmt::format("{}{}", name_of(settings.step.decoder.recompute),
                     settings.step.decoder.offloads_saved ? "+host" : ""),
         fmt::to_string(settings.step.micro_batch_size), fmt::to_string(layout.micro_batches),
         describe_bytes(layout.bytes), fmt::format("{:.3g}", layout.time.total()),
         fmt::format("{:.1f} %", 100 * layout.time.exposed / layout.time.total()),
         fmt::format("{:.0f} %", 100 * layout.time.idle / layout.time.total()),
         describe_count(layout.tokens_per_second), fmt::format("{:.0f} %", 100 * layout.mfu),
         fmt::format("{:.1f} %", 100 * layout.goodput)});
  }
  std::erase_if(table, [](const TableColumn& column) {
    const std::string_view title = column.title;
    return (title == "context" || title == "expert") &&
           std::ranges::all_of(column.texts, [](const std::string& text) { return text == "1"; });
  });
  return table_text(std::move(table), terminal_columns(stdout));
}

/// "2, 4, 8": each once.
std::string joined_numbers(const std::vector<int64_t>& numbers) {
  return fmt::format("{}", fmt::join(std::set(numbers.begin(), numbers.end()), ", "));
}

/// Those that do not fit, and those that cannot run.
void print_others(const LayoutSearch& found, const RankMemory& memory, const Settings& file) {
  if (!found.too_large.empty()) {
    const Layout& smallest = found.too_large.front();
    const int64_t count = std::ssize(found.too_large) + found.larger;
    const auto [has, needs] = describe_both(memory.bytes, smallest.bytes);
    print_fitted("{} do{} not fit into {}; the smallest of these needs {}{} ({})\n", count,
                 count == 1 ? "es" : "", has, smallest.is_bound ? "at least " : "", needs,
                 keys_of(smallest, file));
  }
  if (!found.indivisible.empty()) {
    print_fitted(
        "not tried: {} replicas of the model, among which the step's {} sequences cannot be "
        "divided\n",
        joined_numbers(found.indivisible), found.tokens_per_step / file.step.seq_length);
  }
  for (const std::string& why : std::set(found.refused.begin(), found.refused.end())) {
    print_fitted("refused: {}\n", why);
  }
}

void print_fastest(const LayoutOptions& options, const Layout& fastest, const Settings& file,
                   int ranks) {
  print_fitted("fastest: {}\n", keys_of(fastest, file));
  if (!options.schedule.empty()) {
    write_schedule(options.schedule, open_session(fastest.settings, false, ranks).engine);
  }
  if (!options.write.empty()) {
    write_output_file(options.write, show_settings(fastest.settings, false));
    print_fitted(
        "wrote {}{}\n", options.write,
        file.data.train.empty() ? "; to train, add data.train and training.max_steps" : "");
  }
}

/// Logs how the files were read, and prints the plan. What cannot run is reported by the search.
void print_plan(Settings settings, const RankMemory& memory, int ranks) {
  settings.training.global_batch_size = 0;  // which these ranks need not be able to share
  settings.parallelism.layout = {};
  try {
    const Session session = open_session(settings, false, ranks);
    log_notes(session);
    print_fitted("{}\n", without_controls(plan_line(session, memory, 0)));
  } catch (const ConfigError&) {  // that of the search says more
  }
}

int print_layouts(const LayoutOptions& options, Settings settings, int ranks) {
  if (!can_be_shared(settings, ranks)) {
    print_fitted("{}", fit_global_batch(ranks, 1, settings));
  }
  const RankMemory memory = memory_of_job(settings, []() -> const Device& {
    throw ConfigError("layouts plans for a GPU by its stated rates: name one with --gpu");
  });
  print_plan(settings, memory, ranks);
  if (!settings.parallelism.layout.schedule_file.empty()) {
    print_fitted(
        "parallelism.schedule_file is not read: layouts tries the orders of "
        "parallelism.schedule\n");
  }
  ProgressLine line;
  const LayoutSearch found =
      search_layouts(settings, memory, ranks, options.top, 0, [&](const LayoutSearch& so_far) {
        line.show([&] {
          const auto fitting = std::ssize(so_far.fitting);
          return fmt::format("tried {}, of which {} fit",
                             counted(fitting + std::ssize(so_far.too_large), "layout"), fitting);
        });
      });
  line.finish();
  const int64_t count = std::ssize(found.fitting) + std::ssize(found.too_large) + found.larger;
  print_fitted("{} of {} on {}, {} tokens per step\n", counted(count, "layout"),
               counted(ranks, "rank"), memory.gpu->name, describe_count(found.tokens_per_step));
  if (!found.fitting.empty()) {
    const auto top = static_cast<size_t>(options.top);
    print_fitted("{}", table_of(found.fitting, std::min(top, found.fitting.size())));
    const Layout& fastest = found.fitting.front();
    if (!fastest.plan.empty()) {
      print_fitted("all in the stage of plan {}, which needs the most memory\n", fastest.plan);
    }
    if (fastest.settings.checkpoint.interval == 0) {
      print_fitted("goodput with checkpoint.interval=auto\n");
    }
    if (found.fitting.size() > top) {
      print_fitted("and {} slower ones (--top)\n", found.fitting.size() - top);
    }
  }
  print_others(found, memory, settings);
  if (found.fitting.empty()) {
    throw DeviceError(
        "no layout fits: take more ranks, a plan with fewer bytes, or a smaller model");
  }
  print_fastest(options, found.fitting.front(), settings, ranks);
  return 0;
}

int layouts(const LayoutOptions& options) {
  if (!options.write.empty()) {
    check_output_file(options.write, options.overwrite, "--write");
  }
  if (!options.schedule.empty()) {
    check_output_file(options.schedule, options.overwrite, "--schedule");
  }
  Settings settings = load(options.ranks.common, true);
  if (!options.gpu.empty()) {
    settings.job.gpu = options.gpu;
    settings.device = DeviceChoice::cuda;
  }
  const int ranks = fill_job(options.ranks.world_size, options.ranks.ranks_per_node, settings);
  if (!options.write.empty() && job_ranks(settings.job) != ranks) {
    throw ConfigError(
        fmt::format("--write: {} ranks are not whole nodes of {}: give --ranks-per-node", ranks,
                    settings.job.ranks_per_node));
  }
  return with_locations(settings, [&] { return print_layouts(options, settings, ranks); });
}

}  // namespace

void add_layouts(Arguments command, Action& action) {
  auto options = std::make_shared<LayoutOptions>();
  add_ranks(command, options->ranks);
  add_gpu(command, options->gpu);
  command.option("--top", options->top, 1, "Lines to print");
  command.path("--write", options->write, "A new file for the run with the fastest layout",
               PathUse::output);
  command.path("--schedule", options->schedule,
               "A new file for the order in which its stages run (parallelism.schedule_file)",
               PathUse::output);
  command.flag("--overwrite", options->overwrite, "Replace files that are there");
  command.run_in_first(action, [options] { return layouts(*options); });
}

}  // namespace fp8train
