#include "data/prepare.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace fp8train {
namespace {

constexpr int64_t kMaxShardTokens = (1LL << 31) - 1;

/// Collects the tokens of one split and writes a shard whenever one is full.
class ShardWriter {
 public:
  ShardWriter(const PrepareSettings& settings, std::string split, int64_t vocab_size)
      : settings_(settings), split_(std::move(split)), vocab_size_(vocab_size) {}

  void append(const std::vector<int32_t>& tokens) {
    const auto capacity = static_cast<size_t>(settings_.shard_tokens);
    for (size_t done = 0; done < tokens.size();) {
      const size_t part = std::min(tokens.size() - done, capacity - pending_.size());
      const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(done);
      pending_.insert(pending_.end(), begin, begin + static_cast<std::ptrdiff_t>(part));
      done += part;
      if (pending_.size() == capacity) {
        flush();
      }
    }
  }

  void flush() {
    if (pending_.empty()) {
      return;
    }
    const std::string name = fmt::format("{}_{:06}.bin", split_, files_.size());
    write_token_file(settings_.out / name, pending_, vocab_size_);
    files_.push_back({{"file", name}, {"tokens", pending_.size()}});
    names_.push_back(name);
    total_ += static_cast<int64_t>(pending_.size());
    pending_.clear();
  }

  int64_t total() const { return total_; }
  const nlohmann::ordered_json& files() const { return files_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  const PrepareSettings& settings_;
  std::string split_;
  int64_t vocab_size_;
  std::vector<int32_t> pending_;
  nlohmann::ordered_json files_ = nlohmann::ordered_json::array();
  std::vector<std::string> names_;
  int64_t total_ = 0;
};

struct Input {
  std::filesystem::path path;
  const DataFormat* format;
};

std::vector<Input> find_inputs(const PrepareSettings& settings) {
  std::vector<Input> inputs;
  for (const std::string& pattern : settings.inputs) {
    for (const auto& path : expand_path(pattern)) {
      const DataFormat& format = format_of(path, settings.format);
      if (format.has_tokens()) {
        throw DataError(
            fmt::format("{}: is {}, which holds tokens already; only text and jsonl "
                        "files are prepared",
                        path.string(), format.name));
      }
      inputs.push_back({path, &format});
    }
  }
  return inputs;
}

void check_settings(const PrepareSettings& settings) {
  if (settings.inputs.empty()) {
    throw ConfigError("no input files are named");
  }
  if (settings.shard_tokens < 1 || settings.shard_tokens > kMaxShardTokens) {
    throw ConfigError(fmt::format("shard_tokens is {}; it must be in [1, {}]",
                                  settings.shard_tokens, kMaxShardTokens));
  }
  if (!(settings.val_fraction >= 0.0 && settings.val_fraction < 1.0)) {
    throw ConfigError(
        fmt::format("val_fraction is {}; it must be in [0, 1)", settings.val_fraction));
  }
  std::error_code failure;
  std::filesystem::create_directories(settings.out, failure);
  if (failure) {
    throw DeviceError(
        fmt::format("cannot create {}: {}", settings.out.string(), failure.message()));
  }
  for (const auto& entry : std::filesystem::directory_iterator(settings.out)) {
    if (entry.path().extension() == ".bin") {
      throw ConfigError(
          fmt::format("{} already holds {}; choose an empty folder, or remove the old "
                      "shards",
                      settings.out.string(), entry.path().filename().string()));
    }
  }
}

class Preparation {
 public:
  Preparation(const PrepareSettings& settings, const Tokenizer& tokenizer)
      : settings_(settings),
        tokenizer_(tokenizer),
        train_(settings, "train", tokenizer.vocab_size()),
        val_(settings, "val", tokenizer.vocab_size()) {}

  void add(const Input& input) {
    int64_t count = 0;
    if (settings_.val_fraction > 0 && input.format->content == DataContent::documents) {
      input.format->for_each_document(input.path, settings_.text_key,
                                      [&](const std::string&) { ++count; });
    }
    const int64_t train_documents = split_point(count, settings_.val_fraction);
    int64_t index = 0;
    input.format->for_each_document(
        input.path, settings_.text_key, [&](const std::string& document) {
          ++documents_;
          if (settings_.val_fraction > 0 && input.format->content == DataContent::text) {
            const int64_t units = count_units(document, tokenizer_);
            const size_t cut =
                byte_of_unit(document, split_point(units, settings_.val_fraction), tokenizer_);
            add_document(document.substr(0, cut), input, train_);
            add_document(document.substr(cut), input, val_);
          } else {
            const bool held_back = settings_.val_fraction > 0 && index >= train_documents;
            add_document(document, input, held_back ? val_ : train_);
          }
          ++index;
        });
  }

  PrepareReport finish(const std::vector<Input>& inputs) {
    train_.flush();
    val_.flush();
    PrepareReport report;
    report.documents = documents_;
    report.train_tokens = train_.total();
    report.val_tokens = val_.total();
    report.vocab_size = tokenizer_.vocab_size();
    if (report.train_tokens == 0) {
      throw DataError(fmt::format("{}: no tokens to train on", inputs.front().path.string()));
    }
    write_file_atomically(settings_.out / "tokenizer.json", tokenizer_.to_json());
    write_file_atomically(settings_.out / "dataset.json", manifest(inputs));
    report.files = train_.names();
    report.files.insert(report.files.end(), val_.names().begin(), val_.names().end());
    report.files.insert(report.files.end(), {"tokenizer.json", "dataset.json"});
    return report;
  }

 private:
  void add_document(const std::string& document, const Input& input, ShardWriter& to) const {
    try {
      std::vector<int32_t> tokens = tokenizer_.encode(document);
      if (settings_.append_eos && tokenizer_.eos_id() >= 0) {
        tokens.push_back(tokenizer_.eos_id());
      }
      to.append(tokens);
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}", input.path.string(), error.what()));
    }
  }

  std::string manifest(const std::vector<Input>& inputs) const {
    nlohmann::ordered_json sources = nlohmann::ordered_json::array();
    for (const Input& input : inputs) {
      sources.push_back({{"file", input.path.filename().string()},
                         {"format", input.format->name},
                         {"bytes", std::filesystem::file_size(input.path)}});
    }
    const nlohmann::ordered_json document = {{"format", "fp8train-dataset"},
                                             {"version", 1},
                                             {"tokenizer",
                                              {{"type", tokenizer_.type()},
                                               {"vocab_size", tokenizer_.vocab_size()},
                                               {"eos_token_id", tokenizer_.eos_id()}}},
                                             {"settings",
                                              {{"val_fraction", settings_.val_fraction},
                                               {"shard_tokens", settings_.shard_tokens},
                                               {"append_eos", settings_.append_eos},
                                               {"text_key", settings_.text_key}}},
                                             {"inputs", sources},
                                             {"documents", documents_},
                                             {"train", train_.files()},
                                             {"val", val_.files()}};
    return document.dump(2) + "\n";
  }

  const PrepareSettings& settings_;
  const Tokenizer& tokenizer_;
  ShardWriter train_;
  ShardWriter val_;
  int64_t documents_ = 0;
};

}  // namespace

PrepareReport prepare_data(const PrepareSettings& settings) {
  check_settings(settings);
  const std::vector<Input> inputs = find_inputs(settings);
  const auto tokenizer = make_tokenizer(settings.tokenizer, [&] {
    std::vector<DataSource> sources;
    for (const Input& input : inputs) {
      sources.push_back({input.path.string(), std::string(input.format->name), 1.0});
    }
    return all_text(sources, settings.text_key);
  });
  if (tokenizer->type() == "none") {
    throw ConfigError("preparing data needs a tokenizer other than none");
  }
  Preparation preparation(settings, *tokenizer);
  for (const Input& input : inputs) {
    preparation.add(input);
  }
  return preparation.finish(inputs);
}

}  // namespace fp8train
