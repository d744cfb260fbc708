#include "layout_runs.h"

#include <algorithm>

#include "comm/topology.h"
#include "engine/few_blocks.h"
#include "model/linear_sites.h"
#include "model/model_config.h"
#include "train/checkpoint/run_checkpoints.h"
#include "train/session.h"

namespace fp8train {
namespace {

/// Assumed: a rank copies its state to the host over PCIe 4.0 at this rate, and a job that failed
/// trains again after this time.
constexpr double kHostBytesPerSecond = 25e9;
constexpr double kRestartSeconds = 300;

/// The most chunks of a stage that are tried.
constexpr int64_t kMaxChunks = 8;

/// Models with fewer linear layers are run as they are.
constexpr size_t kManyLinears = 2000;

/// The share of the job's time that trains, with saves at the run's interval or at the best one.
double goodput_of(const Settings& settings, const DryRunStep& step, double step_seconds,
                  int ranks) {
  const double given = settings.job.mtbf_seconds;
  const double mtbf = given > 0 ? given : assumed_mtbf(ranks);
  const double stall = static_cast<double>(step.state_copy) / kHostBytesPerSecond;
  const int64_t interval = settings.checkpoint.interval;
  const double between = interval > 0 ? static_cast<double>(interval) * step_seconds
                                      : best_save_seconds(std::max(stall, 1e-6), mtbf);
  return 1 / (1 + stall / between) / (1 + (between / 2 + kRestartSeconds) / mtbf);
}

bool has_equal_blocks(const Session& session) {
  for (size_t i = 0; i < session.stages.size(); ++i) {
    if (!has_equal_blocks(session.engine_of(i))) {
      return false;
    }
  }
  return true;
}

}  // namespace

LayoutRuns::LayoutRuns(const Settings& settings, const RankMemory& memory, int ranks)
    : memory_(memory),
      ranks_(ranks),
      topology_(Topology::blocks(ranks, static_cast<int>(settings.job.ranks_per_node))) {
  const Session session = open_session(settings, false);
  const EngineSettings& engine = session.engine;
  model_ = engine.model;
  bucket_bytes_ = engine.strategy.bucket_bytes;
  flops_per_token_ = flops_per_token(model_, engine.step.seq_length);
  head_blocks_ = head_blocks(engine);
  runs_few_ = linear_sites(model_).size() > kManyLinears && has_equal_blocks(session);
}

/// The keys that a search varies mean the same for a model of one block, which is faster to open.
Session LayoutRuns::session_of(const Settings& settings) const {
  Settings opened = settings;
  if (runs_few_) {
    opened.model.from.clear();
    opened.model.config = model_;
    opened.model.config.num_hidden_layers = 1;
    opened.model.config.first_window_layer = 0;
    opened.parallelism.bucket_bytes = bucket_bytes_;
  }
  Session session = open_session(opened, false, ranks_);
  session.engine.model = model_;
  set_parts(session.engine.strategy.layout);
  return session;
}

void LayoutRuns::set_parts(ParallelLayout& layout) const {
  if (layout.stage_blocks.empty()) {
    layout.stage_blocks = deal_blocks(model_.num_hidden_layers,
                                      layout.pipeline * layout.virtual_stages, head_blocks_);
  }
}

Layout LayoutRuns::plan(const Settings& settings, std::vector<Layout>* others) const {
  if (!runs_few_) {
    return run(settings, limit(), others);
  }
  const Session session = session_of(settings);
  StageRuns runs = largest_stage_runs(session, [&](const EngineSettings& engine, int rank) {
    return logged_few_blocks(engine, memory_.traits, topology_, rank);
  });
  Layout layout = layout_of(settings, session, runs, false);
  layout.is_estimate = true;
  if (fits(layout) && others != nullptr) {
    add_schedules(session, runs, layout, *others);
  }
  return layout;
}

Layout LayoutRuns::run(const Settings& settings, size_t limit) const {
  return run(settings, limit, nullptr);
}

Layout LayoutRuns::run(const Settings& settings, size_t limit, std::vector<Layout>* others) const {
  const Session session = session_of(settings);
  bool one_is_too_large = false;  // then the others need no dry run
  bool is_bound = false;
  StageRuns runs = largest_stage_runs(session, [&](const EngineSettings& engine, int rank) {
    DryRunStep of_rank;
    is_bound = is_bound || one_is_too_large;
    if (!one_is_too_large) {
      of_rank = logged_step(engine, memory_.traits, topology_, rank, limit);
      one_is_too_large = of_rank.memory.total() > limit;
      is_bound = of_rank.is_bound;
    }
    return of_rank;
  });
  Layout layout = layout_of(settings, session, runs, is_bound);
  if (!one_is_too_large && others != nullptr) {
    add_schedules(session, runs, layout, *others);
  }
  return layout;
}

/// The time is that of a run which did not end at a limit.
Layout LayoutRuns::layout_of(const Settings& settings, const Session& session, StageRuns& runs,
                             bool is_bound) const {
  const DryRunStep& step = runs.largest_run();
  Layout layout = {.settings = settings};
  layout.micro_batches = session.engine.step.gradient_accumulation_steps;
  layout.bytes = step.memory.total();
  layout.is_bound = is_bound;
  layout.plan = session.stages.size() > 1 ? step.plan_name : "";
  if (!is_bound) {
    set_time(session.engine, runs, layout);
  }
  return layout;
}

void LayoutRuns::set_time(const EngineSettings& engine, StageRuns& runs, Layout& layout) const {
  layout.time = step_time(engine, runs, topology_, *memory_.gpu);
  const double seconds = layout.time.total();
  const ParallelLayout& axes = engine.strategy.layout;
  const int64_t tokens =
      engine.step.tokens() * (ranks_ / (axes.tensor * axes.pipeline * axes.context));
  layout.tokens_per_second = static_cast<double>(tokens) / seconds;
  layout.mfu =
      layout.tokens_per_second / ranks_ * flops_per_token_ / (memory_.gpu->tera_flops_16bit * 1e12);
  layout.goodput = goodput_of(layout.settings, runs.largest_run(), seconds, ranks_);
}

/// With one chunk in each stage zero_bubble, with several interleaved.
void LayoutRuns::add_schedules(const Session& session, StageRuns& runs, const Layout& layout,
                               std::vector<Layout>& others) const {
  const int64_t stages = layout.settings.parallelism.layout.pipeline;
  const bool in_groups = layout.micro_batches % stages == 0;
  for (int64_t chunks = 1;
       stages > 1 && chunks <= kMaxChunks && chunks * stages <= model_.num_hidden_layers;
       chunks *= 2) {
    if (chunks > 1 && !in_groups) {
      break;
    }
    Layout other = layout;
    ParallelLayout& changed = other.settings.parallelism.layout;
    changed.schedule = chunks == 1 ? ScheduleKind::zero_bubble : ScheduleKind::interleaved;
    changed.virtual_stages = chunks;
    if (chunks > 1) {
      changed.stage_blocks.clear();
    }
    EngineSettings engine = session.engine;
    engine.strategy.layout = changed;
    set_parts(engine.strategy.layout);
    set_time(engine, runs, other);
    if (other.tokens_per_second > layout.tokens_per_second) {
      others.push_back(std::move(other));
    }
  }
}

}  // namespace fp8train
