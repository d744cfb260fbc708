// fp8train eval: the loss of a trained model on a text or token file, or its answers to questions
// with several choices, in any precision plan.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/math.h"
#include "base/quantities.h"
#include "base/screen.h"
#include "base/text.h"
#include "checkpoint_model.h"
#include "commands.h"
#include "data/choice_questions.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "data/text_source.h"
#include "engine/dry_run.h"
#include "text_stream.h"
#include "train/inference/multiple_choice.h"

namespace fp8train {
namespace {

/// Lengths of dialogues are rounded up to it: few shapes, for devices that make plans of them.
constexpr int64_t kLengthMultiple = 64;

struct EvalOptions {
  CheckpointRequest model;
  std::string data;
  std::string choices;
  std::string samples;  ///< file
  int64_t stride = 0;
  int64_t calibrate = 8;
  bool json = false;
};

/// Opened, with memory for evaluation.
CheckpointModel open_for_evaluation(const EvalOptions& options) {
  CheckpointModel opened = open_checkpoint(options.model);
  Engine& engine = *opened.engine;
  engine.reserve(dry_run_step(engine.settings(), engine.device()).plan);
  return opened;
}

/// Sets the scales of a plan with delayed scaling where the folder has none.
void calibrate(const CheckpointModel& opened, int64_t batches,
               const std::function<std::optional<Batch>()>& next) {
  for (int64_t i = 0; !opened.has_scales && i < batches; ++i) {
    const std::optional<Batch> batch = next();
    if (!batch) return;
    opened.engine->calibrate(*batch);
  }
}

/// Bytes of the text of all tokens but the first, which is not a target; 0 where it is not known.
/// Exact up to 2^20 tokens; between parts of that size a character may be counted wrongly.
size_t bytes_of_targets(const Corpus& corpus, const Tokenizer& tokenizer) {
  constexpr int64_t kTokensAtATime = 1 << 20;
  size_t bytes = 0;
  std::vector<int32_t> ids;
  for (int64_t begin = 0; begin < corpus.size(); begin += kTokensAtATime) {
    ids.resize(static_cast<size_t>(std::min(kTokensAtATime, corpus.size() - begin)));
    corpus.read(begin, static_cast<int64_t>(ids.size()), ids.data());
    if (*std::max_element(ids.begin(), ids.end()) >= tokenizer.vocab_size()) {
      return 0;  // ids of another tokenizer, or no tokenizer
    }
    bytes += tokenizer.decode(ids).size();
    if (begin == 0) bytes -= tokenizer.decode({ids.data(), 1}).size();
  }
  return bytes;
}

void print_loss(const EvalOptions& options, const EngineSettings& engine, const LossReport& loss,
                size_t bytes) {
  const double bits = loss.mean * static_cast<double>(loss.targets) / std::numbers::ln2 /
                      static_cast<double>(bytes);
  if (options.json) {
    fmt::print(
        "{{\"plan\": \"{}\", \"loss\": {:.8f}, \"perplexity\": {:.6f}, \"tokens\": {}{}{}}}\n",
        options.model.plan, loss.mean, std::exp(loss.mean), loss.targets,
        bytes == 0 ? "" : fmt::format(", \"bytes\": {}, \"bits_per_byte\": {:.8f}", bytes, bits),
        engine.model.moe.experts == 0
            ? ""
            : fmt::format(", \"experts_dropped_percent\": {:.4f}", 100 * loss.dropped));
    return;
  }
  print_fitted("{}: loss {:.6f}, perplexity {:.4f}{} over {} tokens in windows of {}{}{}\n",
               options.model.plan, loss.mean, std::exp(loss.mean),
               bytes == 0 ? "" : fmt::format(", {:.4f} bits per byte", bits), loss.targets,
               engine.step.seq_length,
               options.stride > 0 ? fmt::format(", {} tokens apart", options.stride) : "",
               loss.dropped > 0
                   ? fmt::format("; {:.2f} % of the choices of experts dropped", 100 * loss.dropped)
                   : "");
}

/// Returns the sources at a path; in a folder of token files, those for validation.
std::vector<DataSource> sources_of(const std::string& path) {
  std::error_code unseen;
  if (std::filesystem::is_directory(path, unseen)) {
    const auto files = expand_path(path, DataSplit::val);
    if (format_of(files.front(), "auto").has_tokens()) {
      std::vector<DataSource> sources;
      for (const auto& file : files) sources.push_back({file.string(), "auto", 1.0});
      return sources;
    }
  }
  return {{path, "auto", 1.0}};
}

/// With warnings of documents that are cut or left out.
ValidationBatches batches_of(const EvalOptions& options, const Corpus& corpus,
                             const EngineSettings& settings) {
  try {
    ValidationBatches batches(corpus, settings.step.micro_batch_size, settings.step.seq_length,
                              {.stride = options.stride, .length_option = "--seq-length"});
    std::vector<std::string> notes, warnings;
    batches.samples().describe(options.data, notes, warnings);
    for (const std::string& warning : warnings) log_warning(warning);
    return batches;
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", options.data, error.what()));
  }
}

/// "batch 12/83 | eta 5s"
std::string progress_text(int64_t done, int64_t all, double seconds) {
  const double left = seconds / static_cast<double>(done) * static_cast<double>(all - done);
  return fmt::format("batch {}/{} | eta {}", done, all, describe_duration(left));
}

int evaluate_text(const EvalOptions& options) {
  const CheckpointModel opened = open_for_evaluation(options);
  Engine& engine = *opened.engine;
  const EngineSettings& settings = engine.settings();
  if (options.stride > settings.step.seq_length) {
    throw ConfigError(
        fmt::format("--stride {} is longer than the windows of {}; some tokens would "
                    "have no loss",
                    options.stride, settings.step.seq_length));
  }
  DataSettings data;
  data.train = sources_of(options.data);
  CorpusSplits splits = open_corpora(data, *opened.tokenizer, settings.model.vocab_size, "--data");
  const bool has_documents = !splits.train.form().is_windows();
  if (has_documents && options.stride > 0) {
    throw ConfigError("--stride is for text: dialogues are evaluated one in a sequence");
  }
  if (has_documents) {
    splits.train.set_form({.packing = Packing::none});  // the engine masks no documents
  }
  ValidationBatches batches = batches_of(options, splits.train, settings);
  calibrate(opened, options.calibrate, [&] { return batches.next(); });
  batches.rewind();
  engine.begin_evaluation();
  {
    ProgressLine line;
    for (int64_t done = 1; const std::optional<Batch> batch = batches.next(); ++done) {
      const Batch part = without_padding(*batch, kLengthMultiple);
      if (part.rows > 0) engine.evaluate(part);
      line.show([&] { return progress_text(done, batches.batch_count(), line.seconds()); });
    }
  }
  const LossReport loss = engine.evaluation_loss();
  if (loss.targets == 0) {
    throw DataError(fmt::format("{} has {}: a loss needs two at least", options.data,
                                counted(splits.train.size(), "token")));
  }
  print_loss(options, settings, loss,
             has_documents ? 0 : bytes_of_targets(splits.train, *opened.tokenizer));
  return 0;
}

/// Questions and answers, a line for each.
class ChoiceReport {
 public:
  explicit ChoiceReport(const std::vector<ChoiceQuestion>& questions) : questions_(questions) {}

  void add(const std::vector<double>& log_likelihoods) {
    const ChoiceQuestion& question = questions_[count_++];
    const ChoiceAnswers answers = choose(question, log_likelihoods);
    acc_ += answers.acc == question.gold ? 1 : 0;
    acc_norm_ += answers.acc_norm == question.gold ? 1 : 0;
    acc_bytes_ += answers.acc_bytes == question.gold ? 1 : 0;
    const nlohmann::ordered_json line = {{"question", count_ - 1},
                                         {"gold", question.gold},
                                         {"log_likelihoods", log_likelihoods},
                                         {"acc", answers.acc},
                                         {"acc_norm", answers.acc_norm},
                                         {"acc_bytes", answers.acc_bytes}};
    lines_ += json_text(line) + "\n";
  }

  void print(const std::string& plan, bool as_json) const {
    nlohmann::ordered_json object = {{"plan", plan}, {"questions", count_}};
    std::string line =
        fmt::format("{}: {}", plan, counted(static_cast<int64_t>(count_), "question"));
    for (const auto& [name, right] : {std::pair{"acc", acc_}, std::pair{"acc_norm", acc_norm_},
                                      std::pair{"acc_bytes", acc_bytes_}}) {
      const Accuracy value = accuracy(right, count_);
      object[name] = value.mean;
      object[fmt::format("{}_stderr", name)] = value.standard_error;
      line += fmt::format(", {} {:.4f} ± {:.4f}", name, value.mean, value.standard_error);
    }
    fmt::print("{}\n", as_json ? json_text(object) : line);
  }

  const std::string& lines() const { return lines_; }

 private:
  const std::vector<ChoiceQuestion>& questions_;
  size_t count_ = 0, acc_ = 0, acc_norm_ = 0, acc_bytes_ = 0;
  std::string lines_;
};

std::function<void(size_t)> progress_lines(size_t total) {
  return [total, line = std::make_shared<ProgressLine>()](size_t done) {
    line->show([&] { return fmt::format("{} of {} continuations", done, total); });
  };
}

int evaluate_choices(EvalOptions options) {
  const std::vector<ChoiceQuestion> questions = read_choice_questions(options.choices);
  std::optional<AtomicFile>
      samples;  // one that cannot be written is an error before the evaluation
  if (!options.samples.empty()) samples.emplace(options.samples);
  CheckpointFacts facts = describe_checkpoint(options.model);
  options.model.path = facts.folder;  // a run may save another one meanwhile
  const int64_t longest =
      options.model.step.seq_length > 0 ? options.model.step.seq_length : facts.longest_sequence;
  std::vector<Continuation> texts;
  size_t most_tokens = 0;
  for (const ChoiceQuestion& question : questions) {
    for (Continuation& text : encode_question(*facts.tokenizer, question, longest)) {
      most_tokens = std::max(most_tokens, text.tokens.size());
      texts.push_back(std::move(text));
    }
  }
  const auto inputs = static_cast<int64_t>(most_tokens) - 1;
  options.model.step.seq_length = std::min(longest, round_up(inputs, kColumnMultiple));
  const CheckpointModel opened = open_for_evaluation(options);
  const EngineSettings& settings = opened.engine->settings();
  ContinuationBatches batches(texts, settings.step.micro_batch_size, settings.step.seq_length);
  calibrate(opened, options.calibrate,
            [&] { return batches.done() ? std::nullopt : std::optional(batches.next(true)); });
  const std::vector<double> likelihoods =
      log_likelihoods(*opened.engine, texts, progress_lines(texts.size()));
  ChoiceReport report(questions);
  auto next = likelihoods.begin();
  for (const ChoiceQuestion& question : questions) {
    const auto end = next + static_cast<std::ptrdiff_t>(question.choices.size());
    report.add({next, end});
    next = end;
  }
  report.print(options.model.plan, options.json);
  if (samples) {
    std::fflush(stdout);  // the result is there even if the file cannot be written
    samples->write(report.lines());
    samples->commit();
  }
  return 0;
}

int evaluate(EvalOptions options) {
  options.model.step.micro_batch_size = 16;
  if (options.data.empty() == options.choices.empty()) {
    throw ConfigError("give either --data FILE, for the loss, or --choices FILE, for questions");
  }
  if (!options.choices.empty() && options.stride > 0) {
    throw ConfigError("--stride is for --data");
  }
  if (options.choices.empty() && !options.samples.empty()) {
    throw ConfigError("--samples is for --choices");
  }
  return options.choices.empty() ? evaluate_text(options) : evaluate_choices(std::move(options));
}

}  // namespace

void add_eval(Arguments command, Action& action) {
  auto options = std::make_shared<EvalOptions>();
  add_checkpoint_options(command, options->model);
  command.path("--data PATH", options->data,
               "Text, JSON lines or token file, or a folder (of a prepared one its "
               "validation files): loss, perplexity, bits per byte");
  command.path("--choices", options->choices,
               "JSON lines with context, choices and gold: accuracy by log-likelihood");
  command.path("--samples", options->samples,
               "File to write: log-likelihoods and answers of each question", PathUse::output);
  command.option("--stride", options->stride, 0,
                 "Tokens from one window of --data to the next; 0: windows do not overlap");
  command.option("--seq-length", options->model.step.seq_length, 0, "0: the model's context");
  command.option(
      "--calibrate", options->calibrate, 0,
      "Batches that set the scales of a plan with delayed scaling when the folder has none");
  command.flag("--json", options->json, "As JSON");
  command.run(action, [options] { return evaluate(*options); });
}

}  // namespace fp8train
