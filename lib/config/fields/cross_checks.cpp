#include "config/fields/cross_checks.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "optim/registry.h"
#include "precision/plan.h"

namespace fp8train {
namespace {

/// The checks of one load; a check reports at the first of the keys it names that was written.
class Checks {
 public:
  Checks(const Settings& settings, const GivenKeys& given, Problems& problems, Extent extent)
      : settings_(settings), given_(given), problems_(problems), extent_(extent) {}

  void model();
  void data();
  void training();
  void global_batch_of_job();
  void meaningless();
  void schedule();
  void precision();
  void plan();

 private:
  std::string other_key(const std::string& message) const;
  bool has(const char* key) const { return given_.find(key) != nullptr; }

  /// Nobody wrote it, or its value could be read.
  bool usable(const char* key) const {
    const GivenKey* written = given_.find(key);
    return written == nullptr || written->usable;
  }

  void complain(const std::string& key, const std::string& text) {
    if (const GivenKey* written = given_.find(key)) {
      problems_.add(written->mark, written->spelled, text);
    } else {
      const size_t dot = key.rfind('.');
      problems_.add(given_.section_mark(key.substr(0, dot)), key, text);
    }
  }

  void missing(const std::string& key, const std::string& text) {
    if (extent_ == Extent::whole && !given_.may_be_misspelled(key)) {
      complain(key, text);
    }
  }

  void missing_section(const std::string& key, const std::string& text);

  /// At `key` when it was written, else at `other`.
  void complain(const char* key, const char* other, const std::string& text) {
    complain(std::string(has(key) ? key : other), text);
  }

  /// The first written model key that describes a shape.
  const GivenKey* first_shape_key() const;
  int64_t tokens_per_step() const;
  int64_t steps() const;

  const Settings& settings_;
  const GivenKeys& given_;
  Problems& problems_;
  Extent extent_;
};

/// A section that a configuration begins with. Where only other programs' files spoke, no line of
/// theirs is to blame.
void Checks::missing_section(const std::string& key, const std::string& text) {
  bool foreign = false;
  for (const auto& [position, given] : given_.all()) {
    const bool own = find_field(given.spelled) != nullptr;
    if (own && (given.field->key.starts_with("model.") || given.field->key.starts_with("data."))) {
      return missing(key, text);
    }
    foreign = foreign || !own;
  }
  if (!foreign) {
    return missing(key, text);
  }
  if (extent_ == Extent::whole && !given_.may_be_misspelled(key)) {
    problems_.add({}, key,
                  text +
                      ". Files of other programs name no model and no data: add a run.yaml "
                      "after it");
  }
}

const GivenKey* Checks::first_shape_key() const {
  for (const auto& [position, given] : given_.all()) {
    const std::string& key = given.field->key;
    if (key.starts_with("model.") && key != "model.preset" && key != "model.from" &&
        key != "model.recompute" && key != "model.resize_vocabulary") {
      return &given;
    }
  }
  return nullptr;
}

void Checks::model() {
  const GivenKey* shape = first_shape_key();
  if (has("model.from")) {
    if (has("model.preset")) {
      complain("model.from", "conflicts with model.preset; remove one of them");
    } else if (shape != nullptr) {
      problems_.add(
          shape->mark, shape->spelled,
          "conflicts with model.from, whose config.json has the shape; remove one of them");
    }
    return;
  }
  if (has("model.resize_vocabulary")) {
    complain("model.resize_vocabulary",
             "adds tokens to the model of model.from; a model from scratch has model.vocab_size");
  }
  if (has("model.preset")) {
    return;
  }
  if (shape == nullptr) {
    missing_section("model.preset", "missing; give model.preset, model.from or the model's fields");
    return;
  }
  const ModelConfig& config = settings_.model.config;
  const std::pair<const char*, int64_t> needed[] = {
      {"model.hidden_size", config.hidden_size},
      {"model.num_hidden_layers", config.num_hidden_layers},
      {"model.num_attention_heads", config.num_attention_heads},
      {"model.max_position_embeddings", config.max_position_embeddings}};
  for (const auto& [key, value] : needed) {
    if (value == 0 && !has(key)) {
      missing(key, "missing; a model without a preset needs it");
    }
  }
}

void Checks::data() {
  const DataSettings& data = settings_.data;
  if (data.train.empty() && !has("data.train")) {
    missing_section("data.train", "missing; give at least one source such as [{path: corpus.txt}]");
  } else if (data.train.empty() && usable("data.train")) {
    complain("data.train", "an empty list; give at least one source such as [{path: corpus.txt}]");
  }
  if (!data.val.empty() && data.val_fraction > 0) {
    complain("data.val_fraction", "conflicts with data.val; remove one of them");
  }
  if (data.val.empty() && usable("data.val") && data.val_fraction == 0 &&
      usable("data.val_fraction") && settings_.eval.interval > 0) {
    complain("eval.interval",
             "asks for evaluations, but there are neither data.val nor "
             "data.val_fraction");
  }
  const int64_t context = settings_.model.config.max_position_embeddings;
  if (settings_.model.from.empty() && usable("data.seq_length") && usable("model.preset") &&
      usable("model.max_position_embeddings") && context > 0 && data.seq_length > context) {
    complain("data.seq_length", "model.max_position_embeddings",
             fmt::format("data.seq_length {} is longer than model.max_position_embeddings {}",
                         data.seq_length, context));
  }
}

/// Of one rank when no global batch is asked for; saturating.
int64_t Checks::tokens_per_step() const {
  const TrainingSettings& training = settings_.training;
  const bool is_global = training.global_batch_size > 0;
  int64_t product = is_global ? training.global_batch_size : training.micro_batch_size;
  const int64_t passes = is_global ? 1 : training.gradient_accumulation_steps;
  for (const int64_t factor : {passes, settings_.data.seq_length}) {
    if (__builtin_mul_overflow(product, factor, &product)) {
      return std::numeric_limits<int64_t>::max();
    }
  }
  return product;
}

/// Of one rank, which is the most there can be; 0 when unknown.
int64_t Checks::steps() const {
  const TrainingSettings& training = settings_.training;
  return training.max_steps > 0 ? training.max_steps : training.max_tokens / tokens_per_step();
}

void Checks::training() {
  const TrainingSettings& training = settings_.training;
  if (has("training.max_steps") && has("training.max_tokens")) {
    complain("training.max_tokens", "conflicts with training.max_steps; remove one of them");
  } else if (!has("training.max_steps") && !has("training.max_tokens")) {
    missing("training.max_steps", "missing; give either max_steps or max_tokens");
  } else if (training.max_tokens > 0 && usable("data.seq_length") && steps() == 0) {
    complain("training.max_tokens",
             fmt::format("less than one optimizer step of {} tokens", tokens_per_step()));
  }
  if (training.global_batch_size == 0) {
    return;
  }
  if (has("training.gradient_accumulation_steps")) {
    complain("training.global_batch_size",
             "conflicts with training.gradient_accumulation_steps; remove one of them");
  } else if (usable("training.micro_batch_size") &&
             training.global_batch_size % training.micro_batch_size != 0) {
    complain("training.global_batch_size",
             fmt::format("{} is not a multiple of training.micro_batch_size {}",
                         training.global_batch_size, training.micro_batch_size));
  } else if (extent_ == Extent::begun) {
    global_batch_of_job();
  }
}

/// A run is started on any number of ranks; a job that is planned has them.
void Checks::global_batch_of_job() {
  const TrainingSettings& training = settings_.training;
  const int64_t ranks = settings_.job.nodes * settings_.job.ranks_per_node;
  if (training.global_batch_size / training.micro_batch_size % ranks != 0) {
    complain("training.global_batch_size",
             fmt::format("{} is not a multiple of {} ranks x training.micro_batch_size {}",
                         training.global_batch_size, ranks, training.micro_batch_size));
  }
}

/// Keys that belong to another choice than the one made; at their defaults they say nothing.
void Checks::meaningless() {
  const auto refuse = [&](const char* key, bool without_meaning, bool changed, const char* other) {
    if (without_meaning && changed && has(key)) {
      complain(key, fmt::format("has no meaning with {}; remove it", other));
    }
  };
  const OptimizerEntry& optimizer = optimizer_named(settings_.optimizer.name);
  const std::string choice = fmt::format("optimizer.name: {}", optimizer.name);
  const Settings usual;
  for (const std::string_view key : optimizer_keys()) {
    const Field& field = *find_field(key);
    refuse(field.key.c_str(), !optimizer.reads(key), field.write(settings_) != field.write(usual),
           choice.c_str());
  }
  if (optimizer.whole_cost != nullptr && settings_.parallelism.zero_stage > 1 &&
      has("parallelism.zero_stage")) {
    complain("parallelism.zero_stage", "optimizer.name",
             fmt::format("{} cuts matrices into parts, and optimizer.name: {} updates whole ones; "
                         "set 0 or 1, or take adamw",
                         settings_.parallelism.zero_stage, optimizer.name));
  }
  const ScheduleSettings& schedule = settings_.scheduler;
  const bool constant = schedule.type == ScheduleType::constant;
  refuse("scheduler.min_lr", constant, schedule.min_lr != 0.0, "scheduler.type: constant");
  refuse("scheduler.decay_steps", constant, schedule.decay_steps != 0, "scheduler.type: constant");
}

void Checks::schedule() {
  const ScheduleSettings& schedule = settings_.scheduler;
  if (schedule.type != ScheduleType::constant && usable("scheduler.type") &&
      usable("optimizer.lr") && schedule.min_lr > settings_.optimizer.lr) {
    complain("scheduler.min_lr", "optimizer.lr",
             fmt::format("scheduler.min_lr {} is above optimizer.lr {}", schedule.min_lr,
                         settings_.optimizer.lr));
  }
  const bool comparable = usable("training.micro_batch_size") && usable("data.seq_length") &&
                          usable("training.gradient_accumulation_steps");
  // A run that ends early is no mistake (open_session warns), but answers that do not fit are.
  const int64_t last = comparable && extent_ == Extent::begun ? steps() : 0;
  if (last > 0 && schedule.warmup_steps >= last) {
    complain("scheduler.warmup_steps", "training.max_steps",
             fmt::format("the warm-up of {} steps does not end before the run's {} steps",
                         schedule.warmup_steps, last));
  } else if (last > 0 && schedule.decay_steps > last - schedule.warmup_steps) {
    complain("scheduler.decay_steps", "training.max_steps",
             fmt::format("warm-up ({}) and decay ({}) together are longer than the run's {} steps",
                         schedule.warmup_steps, schedule.decay_steps, last));
  }
  if (schedule.type == ScheduleType::wsd && schedule.decay_steps == 0 &&
      usable("scheduler.decay_steps")) {
    missing("scheduler.decay_steps", "missing; type wsd needs the length of the final decay");
  }
}

/// The written key at which to say what is wrong with one that nobody wrote: the other role that
/// the message names, else what selects the plan.
std::string Checks::other_key(const std::string& message) const {
  for (const auto& [position, given] : given_.all()) {
    const std::string& key = given.field->key;
    if (key.starts_with("precision.") && message.find(key + ":") != std::string::npos) {
      return key;
    }
  }
  for (const char* key : kPlanSelectors) {
    if (has(key)) {
      return key;
    }
  }
  return "precision.plan";
}

/// What the precision module says about the request, at the key that its message begins with.
void Checks::plan() {
  try {
    resolve_plan(settings_.precision);
  } catch (const ConfigError& error) {
    const std::string message = error.what();
    std::string key = message.substr(0, message.find_first_of(": "));
    if (!has(key.c_str())) {
      key = other_key(message);
    }
    const GivenKey* written = given_.find(key);
    const bool renamed = written != nullptr && written->spelled != key;
    problems_.add(written == nullptr ? SourceMark{} : written->mark,
                  renamed ? written->spelled : "", message);
  }
}

void Checks::precision() {
  const PlanRequest& request = settings_.precision;
  if (has("precision.plan")) {
    bool alone = true;
    for (const char* key : kPlanSelectors) {
      if (has(key)) {
        alone = false;
        complain(key,
                 "conflicts with precision.plan, which names the plan directly; remove one of "
                 "them");
      }
    }
    if (alone) {
      plan();
    }
    return;
  }
  if (!usable("mixed_precision")) {
    return;
  }
  if (request.mixed_precision == MixedPrecision::fp8) {
    plan();
    return;
  }
  bool meaningful = true;
  for (const auto& [position, given] : given_.all()) {
    if (given.field->key.starts_with("fp8.")) {
      meaningful = false;
      problems_.add(given.mark, given.spelled,
                    fmt::format("has no meaning with mixed_precision: {}; set mixed_precision: "
                                "fp8 or remove the key",
                                fields::name_in(kMixedPrecisions, request.mixed_precision)));
    }
  }
  if (meaningful) {
    plan();
  }
}

}  // namespace

void check_settings(const Settings& settings, const GivenKeys& given, Problems& problems,
                    Extent extent) {
  Checks checks(settings, given, problems, extent);
  checks.model();
  checks.data();
  checks.training();
  checks.meaningless();
  checks.schedule();
  checks.precision();
}

}  // namespace fp8train
