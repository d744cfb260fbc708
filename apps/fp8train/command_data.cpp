// fp8train data: prepares and inspects token files.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json_text.h"
#include "base/screen.h"
#include "base/text.h"
#include "choices.h"
#include "commands.h"
#include "data/folder_files.h"
#include "data/inspect.h"
#include "data/prepare.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/tokenizers/registry.h"
#include "io/metrics.h"
#include "text_stream.h"

namespace fp8train {
namespace {

/// The options of how records are read, for each command of this file. Returns what --bad-lines is
/// set to; set_bad_lines() takes it over.
std::shared_ptr<std::string> add_record_options(Arguments& part, RecordRules& rules) {
  part.option("--text-key KEY", rules.text_key, "Key of the text in JSON lines");
  auto bad_lines = std::make_shared<std::string>("error");
  part.option("--bad-lines ACTION", *bad_lines,
              "Records that cannot be read or learned: error, or skip with a warning");
  return bad_lines;
}

void set_bad_lines(const std::string& given, RecordRules& rules) {
  rules.bad_lines = choose<BadLines>("--bad-lines", given, choices_of(kBadLines));
}

std::function<void(uint64_t)> progress_lines() {
  return [line = std::make_shared<ProgressLine>()](uint64_t bytes) {
    line->show([&] {
      const double megabytes = static_cast<double>(bytes) / 1e6;
      return fmt::format("{:.0f} MB in {:.0f} s, {:.1f} MB/s", megabytes, line->seconds(),
                         megabytes / line->seconds());
    });
  };
}

std::string text_format_choices() {
  std::vector<std::string> names = text_format_names();
  names.insert(names.begin(), "auto");
  return alternatives(names);
}

struct InspectOptions {
  InspectSettings settings;
  std::vector<std::string> inputs;
  std::string tokenizer;
  bool json = false;
};

nlohmann::ordered_json json_of(const DataFileFacts& facts) {
  nlohmann::ordered_json object = {
      {"file", facts.path}, {"format", facts.format}, {"bytes", facts.bytes}};
  if (!facts.type.empty()) object["type"] = facts.type;
  if (facts.documents) object["documents"] = *facts.documents;
  if (facts.text_bytes) object["text_bytes"] = *facts.text_bytes;
  if (facts.tokens) {
    object["tokens"] = *facts.tokens;
    object["min_id"] = facts.min_id;
    object["max_id"] = facts.max_id;
    object["first_ids"] = facts.first_ids;
  }
  if (!facts.first_text.empty()) object["first_text"] = facts.first_text;
  object["xxh3_128"] = facts.xxh3_128;
  return object;
}

/// A file on one line.
std::string summary_of(const DataFileFacts& facts) {
  std::string line = facts.path + ": " + facts.format;
  if (!facts.type.empty()) line += " " + facts.type;
  line += ", " + counted(static_cast<int64_t>(facts.bytes), "byte");
  if (facts.documents) line += ", " + counted(*facts.documents, "document");
  if (facts.text_bytes)
    line += fmt::format(", {} of text", counted(static_cast<int64_t>(*facts.text_bytes), "byte"));
  if (facts.tokens) {
    line += ", " + counted(*facts.tokens, "token");
    if (*facts.tokens > 0) line += fmt::format(", ids {} to {}", facts.min_id, facts.max_id);
  }
  return line;
}

void print_details(const DataFileFacts& facts) {
  if (facts.tokens) print_fitted("  first ids   {}\n", fmt::join(facts.first_ids, " "));
  if (!facts.first_text.empty())
    print_fitted("  first text  {}\n", json_text(nlohmann::json(facts.first_text)));
  print_fitted("  xxh3-128    {}\n", facts.xxh3_128);
}

/// Adds the list and the tokenizer of a folder that `data prepare` wrote. Throws DataError for a
/// list of something else.
void add_files_of_prepared(const std::filesystem::path& list,
                           std::set<std::filesystem::path>& companions) {
  const std::filesystem::path folder = list.parent_path();
  expand_path((folder / ".").string(), DataSplit::all);
  companions.insert(list);
  for (const char* name : tokenizers::tokenizer_file_names()) companions.insert(folder / name);
  for (const std::string& name : names_of_part(folder, FolderPart::tokenizer)) {
    companions.insert(folder / name);
  }
}

/// Leaves out files that belong to others of the list.
void remove_companions(std::vector<std::filesystem::path>& paths, const std::string& named) {
  std::set<std::filesystem::path> companions;
  for (const std::filesystem::path& path : paths) {
    try {
      if (path.filename() == kDatasetFile) add_files_of_prepared(path, companions);
      const DataFormat& format = format_of(path, named, kFormatOption);
      if (format.companions == nullptr) continue;
      for (auto& companion : format.companions(path, true)) {
        if (companion != path) companions.insert(std::move(companion));
      }
    } catch (const DataError&) {
      continue;  // inspect_file() says it
    }
  }
  if (!std::ranges::all_of(paths, [&](const auto& path) { return companions.contains(path); })) {
    std::erase_if(paths, [&](const auto& path) { return companions.contains(path); });
  }
}

/// All files, also behind one that is damaged.
int inspect(InspectOptions& options) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (!options.tokenizer.empty()) {
    tokenizer = make_tokenizer(
        options.tokenizer,
        []() -> std::string {
          throw ConfigError(
              "--tokenizer: char is made of a training text; give the folder that "
              "`data prepare` or a checkpoint wrote");
        },
        "--tokenizer");
    if (tokenizer->type() != TokenizerType::none) options.settings.tokenizer = tokenizer.get();
  }
  size_t failed = 0;
  const auto unless_refused = [&](bool alone, const auto& work) {
    try {
      work();
    } catch (const DataError& error) {
      if (alone) throw;
      print_fitted(stderr, "{}\n", without_controls(error.what()));
      ++failed;
    }
  };
  std::vector<std::filesystem::path> paths;
  for (const std::string& input : options.inputs) {
    unless_refused(options.inputs.size() == 1, [&] {
      for (auto& path : expand_path(input, DataSplit::all)) paths.push_back(std::move(path));
    });
  }
  if (paths.size() > 1) {
    remove_companions(paths, options.settings.format);
  }
  const size_t all = paths.size() + failed;
  for (const std::filesystem::path& path : paths) {
    unless_refused(all == 1, [&] {
      const DataFileFacts facts = inspect_file(path, options.settings);
      if (options.json) {
        fmt::print("{}\n", json_text(json_of(facts)));
      } else {
        print_fitted("{}\n", without_controls(summary_of(facts)));
        if (all == 1) print_details(facts);
      }
    });
  }
  if (failed > 0) {
    throw DataError(fmt::format("{} of {} files cannot be read", failed, all));
  }
  return 0;
}

void add_inspect(Arguments& command, Action& action) {
  auto options = std::make_shared<InspectOptions>();
  Arguments part =
      command.part("inspect", "Describe the content of token files, texts and JSON lines",
                   "fp8train data inspect tokens --tokenizer tokens");
  part.required_paths("input", options->inputs,
                      "Files, folders or globs; one alone is shown in detail");
  part.path("--tokenizer PATH", options->tokenizer,
            "Tokenizer file or folder: samples are decoded, texts encoded");
  part.option("--format", options->settings.format, "auto, or a name of data.train[].format");
  const auto bad_lines = add_record_options(part, options->settings.rules);
  part.option("--threads", options->settings.threads, 0, "0: all cores");
  part.flag("--json", options->json, "An object in each line");
  part.run(action, [options, bad_lines] {
    set_bad_lines(*bad_lines, options->settings.rules);
    return inspect(*options);
  });
}

}  // namespace

void add_data(Arguments command, Action& action) {
  add_inspect(command, action);
  auto settings = std::make_shared<PrepareSettings>();
  auto out = std::make_shared<std::string>();
  auto output_format = std::make_shared<std::string>(name_of(settings->output_format));
  auto chat_template = std::make_shared<std::string>("auto");
  Arguments prepare =
      command.part("prepare", "Tokenize text and JSON-lines files into token files",
                   "fp8train data prepare text.txt --out tokens --val-fraction 0.1");
  prepare.required_paths("input", settings->inputs, "Files or globs");
  prepare.required_path("--out FOLDER", *out, "Folder to write", PathUse::output);
  prepare.option("--output-format FORMAT", *output_format,
                 alternatives(token_file_formats()) + "; indexed has .bin and .idx");
  prepare.path("--tokenizer PATH", settings->tokenizer,
               "byte, char, or a tokenizer file or folder");
  prepare.option("--format", settings->format, text_format_choices());
  prepare.option("--chat-template NAME", *chat_template,
                 "How dialogues are written, as data.chat_template (default: the tokenizer's)");
  const auto bad_lines = add_record_options(prepare, settings->rules);
  prepare.option("--val-fraction", settings->val_fraction, 0,
                 "Part of the texts that is held back for validation");
  prepare.option("--shard-tokens", settings->shard_tokens, 1,
                 "Tokens of a file; more go into the next one");
  prepare.flag("--append-eos,!--no-append-eos", settings->append_eos,
               "End each document with the tokenizer's end-of-sequence id (default: on)");
  prepare.option("--threads", settings->threads, 0, "0: all cores");
  prepare.run(action, [settings, out, output_format, chat_template, bad_lines] {
    set_bad_lines(*bad_lines, settings->rules);
    settings->out = *out;
    settings->output_format = token_file_format_named(*output_format, "--output-format");
    settings->chat_template = *chat_template;
    settings->progress = progress_lines();
    const PrepareReport report = prepare_data(*settings);
    settings->progress = nullptr;  // removes its line
    print_fitted("{}, {} training and {} validation tokens, vocabulary {}; {} holds {}\n",
                 counted(report.documents, "document"), report.train_tokens, report.val_tokens,
                 report.vocab_size, *out, fmt::join(report.files, ", "));
    return 0;
  });
}

}  // namespace fp8train
