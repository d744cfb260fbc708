#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/text.h"
#include "data/byte_stream.h"
#include "data/chat/chat_template.h"
#include "data/chat/dialogue_encoder.h"
#include "data/document_encoder.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/text_source.h"
#include "data/token_file_writer.h"
#include "data/tokenizer.h"
#include "data/utf8.h"

namespace fp8train {
namespace {

constexpr size_t kReadAtATime = 1U << 20;
constexpr int64_t kMaxShardTokens = (1LL << 31) - 1;

/// Writes the tokens of one split, a shard after the other.
class ShardWriter {
 public:
  ShardWriter(const PrepareSettings& settings, std::string split, int64_t vocab_size)
      : settings_(settings), split_(std::move(split)), vocab_size_(vocab_size) {}

  /// A document that does not fit into the shard continues as one of the next shard.
  void append(const EncodedText& text) {
    const std::span<const int32_t> ids = text.ids;
    size_t begin = 0;
    for (const size_t end : text.ends) {
      append(ids.subspan(begin, end - begin));
      if (shard_) shard_->end_document();
      begin = end;
    }
    append(ids.subspan(begin));
  }

  void append(std::span<const int32_t> tokens) {
    while (!tokens.empty()) {
      begin_shard();
      const auto free = static_cast<size_t>(settings_.shard_tokens - shard_->count());
      const size_t part = std::min(tokens.size(), free);
      shard_->append(tokens.first(part));
      tokens = tokens.subspan(part);
      if (part == free) {
        shard_->end_document();
        flush();
      }
    }
  }

  /// A document stays in one shard.
  void append_document(const ChatEncoder::Encoded& document) {
    const auto size = static_cast<int64_t>(document.ids.size());
    if (shard_ && shard_->count() + size > settings_.shard_tokens) {
      flush();
    }
    begin_shard();
    shard_->append_document(document.ids, document.is_target);
  }

  void flush() {
    if (!shard_) {
      return;
    }
    shard_->commit();
    files_.push_back({{"file", name_}, {"tokens", shard_->count()}});
    names_.push_back(name_);
    for (const auto& index : document_index_of(settings_.out / name_)) {
      names_.push_back(index.filename().string());
    }
    total_ += shard_->count();
    shard_.reset();
  }

  int64_t total() const { return total_; }
  const nlohmann::ordered_json& files() const { return files_; }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void begin_shard() {
    if (!shard_) {
      name_ =
          fmt::format("{}_{:06}{}", split_, files_.size(), extension_of(settings_.output_format));
      shard_ = std::make_unique<TokenFileWriter>(settings_.out / name_, vocab_size_,
                                                 settings_.output_format);
    }
  }

  const PrepareSettings& settings_;
  std::string split_;
  int64_t vocab_size_;
  std::string name_;
  std::unique_ptr<TokenFileWriter> shard_;
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
      inputs.push_back({path, &text_format_of(path, settings.format, "are prepared")});
    }
  }
  return inputs;
}

void check_contents(const std::vector<Input>& inputs, const PrepareSettings& settings) {
  for (const Input& input : inputs) {
    const bool has_dialogues = input.format->content == DataContent::dialogues;
    if (has_dialogues != (inputs.front().format->content == DataContent::dialogues)) {
      throw DataError(fmt::format("{}: dialogues and other documents are prepared apart; {} is {}",
                                  input.path.string(), inputs.front().path.string(),
                                  inputs.front().format->name));
    }
    if (has_dialogues && settings.output_format != TokenFileFormat::llmc) {
      throw ConfigError(
          fmt::format("{}: dialogues are written as llmc only, which stores their "
                      "targets, not as {}",
                      input.path.string(), name_of(settings.output_format)));
    }
  }
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
  create_folder(settings.out);
  const auto is_shard = [](const std::filesystem::path& path) {
    return std::any_of(data_formats().begin(), data_formats().end(), [&](const DataFormat* format) {
      return format->has_tokens() && format->has_suffix(path);
    });
  };
  for (const auto& entry : std::filesystem::directory_iterator(settings.out)) {
    if (is_shard(entry.path())) {
      throw ConfigError(
          fmt::format("{} already holds {}; choose an empty folder, or remove the old "
                      "shards",
                      settings.out.string(), entry.path().filename().string()));
    }
  }
}

SequenceFrame frame_of(const Tokenizer& tokenizer, const PrepareSettings& settings) {
  SequenceFrame frame = tokenizer.frame();
  if (!settings.append_eos) frame.after_document.clear();
  return frame;
}

class Preparation {
 public:
  Preparation(const PrepareSettings& settings, const Tokenizer& tokenizer)
      : settings_(settings),
        tokenizer_(tokenizer),
        train_(settings, "train", tokenizer.vocab_size()),
        val_(settings, "val", tokenizer.vocab_size()),
        train_encoder_(tokenizer, settings.threads, frame_of(tokenizer, settings),
                       [this](const EncodedText& text) { train_.append(text); }),
        val_encoder_(tokenizer, settings.threads, frame_of(tokenizer, settings),
                     [this](const EncodedText& text) { val_.append(text); }) {}

  void add(const Input& input) {
    try {
      if (input.format->content == DataContent::dialogues) {
        add_dialogues(input);
      } else if (input.format->content == DataContent::documents) {
        add_lines(input);
      } else {
        add_text(input);
      }
      train_encoder_.finish();
      val_encoder_.finish();
    } catch (const DataError& error) {
      const std::string path = input.path.string();
      const bool is_named = std::string_view(error.what()).starts_with(path);
      throw DataError(is_named ? error.what() : fmt::format("{}: {}", path, error.what()));
    }
    bytes_before_ += std::filesystem::file_size(input.path);
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
    const std::vector<TokenizerFile> tokenizer_files = tokenizer_.files();
    for (const TokenizerFile& file : tokenizer_files) {
      create_folder((settings_.out / file.name).parent_path());
      write_file_atomically(settings_.out / file.name, file.text);
    }
    write_file_atomically(settings_.out / kDatasetFile, manifest(inputs));
    report.files = train_.names();
    report.files.insert(report.files.end(), val_.names().begin(), val_.names().end());
    for (const TokenizerFile& file : tokenizer_files) report.files.push_back(file.name);
    report.files.emplace_back(kDatasetFile);
    return report;
  }

 private:
  void add_dialogues(const Input& input) {
    int64_t count = 0;
    if (settings_.val_fraction > 0) {
      input.format->for_each_dialogue(input.path, settings_.rules,
                                      [&](const Dialogue&, const std::string&) { ++count; });
    }
    const int64_t of_training =
        settings_.val_fraction > 0 ? split_point(count, settings_.val_fraction) : INT64_MAX;
    int64_t index = 0;
    for_each_encoded_dialogue(
        tokenizer_, settings_.chat_template, "--chat-template", settings_.threads,
        [&](const DialogueVisitor& visit) {
          input.format->for_each_dialogue(input.path, settings_.rules, visit);
        },
        [&](const ChatEncoder::Encoded& dialogue) {
          (index++ < of_training ? train_ : val_).append_document(dialogue);
        });
    documents_ += index;
  }

  void add_lines(const Input& input) {
    int64_t count = 0;
    if (settings_.val_fraction > 0) {
      input.format->for_each_document(input.path, settings_.rules,
                                      [&](const std::string&) { ++count; });
    }
    const int64_t train_documents =
        settings_.val_fraction > 0 ? split_point(count, settings_.val_fraction) : INT64_MAX;
    int64_t index = 0;
    uint64_t bytes = 0;
    input.format->for_each_document(input.path, settings_.rules, [&](std::string document) {
      ++documents_;
      bytes += document.size();
      (index++ < train_documents ? train_encoder_ : val_encoder_).add(std::move(document));
      report_progress(bytes);
    });
  }

  /// One document, or two where a part is held back.
  void add_text(const Input& input) {
    ++documents_;
    int64_t left = INT64_MAX;  // units of the training part that are still to come
    if (settings_.val_fraction > 0) left = split_point(units_of(input), settings_.val_fraction);
    ByteStream file(input.path);
    bool is_training = true;
    std::string text;
    for (bool more = true; more;) {
      more = file.append_to(text, kReadAtATime);
      report_progress(file.file_bytes_read());
      const std::string_view whole = more ? without_cut_end(text) : text;
      size_t done = 0;
      if (is_training) {
        const int64_t units = count_units(whole, tokenizer_);
        if (left < units || (!more && settings_.val_fraction > 0)) {
          done = byte_of_unit(whole, std::min(left, units), tokenizer_);
          train_encoder_.add_part(whole.substr(0, done), true);
          is_training = false;
        } else {
          left -= units;
        }
      }
      DocumentEncoder& encoder = is_training ? train_encoder_ : val_encoder_;
      encoder.add_part(whole.substr(done), !more);
      text.erase(0, whole.size());
    }
  }

  int64_t units_of(const Input& input) const {
    ByteStream file(input.path);
    int64_t units = 0;
    for (std::string text; file.append_to(text, kReadAtATime); text.clear()) {
      units += count_units(text, tokenizer_);
    }
    return units;
  }

  void report_progress(uint64_t bytes_of_input) const {
    if (settings_.progress) settings_.progress(bytes_before_ + bytes_of_input);
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
                                              {{"type", name_of(tokenizer_.type())},
                                               {"vocab_size", tokenizer_.vocab_size()},
                                               {"eos_token_id", tokenizer_.eos_id()}}},
                                             {"settings",
                                              {{"val_fraction", settings_.val_fraction},
                                               {"shard_tokens", settings_.shard_tokens},
                                               {"append_eos", settings_.append_eos},
                                               {"output_format", name_of(settings_.output_format)},
                                               {"text_key", settings_.rules.text_key}}},
                                             {"inputs", sources},
                                             {"documents", documents_},
                                             {"train", train_.files()},
                                             {"val", val_.files()}};
    return json_text(document, 2) + "\n";
  }

  const PrepareSettings& settings_;
  const Tokenizer& tokenizer_;
  ShardWriter train_;
  ShardWriter val_;
  DocumentEncoder train_encoder_;
  DocumentEncoder val_encoder_;
  int64_t documents_ = 0;
  uint64_t bytes_before_ = 0;  ///< of the inputs that are done
};

/// Leaves out files without content. Throws DataError if all are.
void remove_empty(std::vector<Input>& inputs) {
  std::vector<std::string> empty;
  std::erase_if(inputs, [&](const Input& input) {
    std::string text;
    ByteStream(input.path).append_to(text, 1);
    if (text.empty()) empty.push_back(input.path.string());
    return text.empty();
  });
  if (inputs.empty()) {
    throw DataError(fmt::format("{}: {} empty: there is no text to train on",
                                joined(shortened(empty, 3)), empty.size() == 1 ? "is" : "are"));
  }
  if (!empty.empty()) {
    log_info(fmt::format("{}: {} empty, and left out", joined(shortened(empty, 3)),
                         empty.size() == 1 ? "is" : "are"));
  }
}

}  // namespace

PrepareReport prepare_data(const PrepareSettings& settings) {
  check_settings(settings);
  std::vector<Input> inputs = find_inputs(settings);
  remove_empty(inputs);
  check_contents(inputs, settings);
  const auto training_text = [&] {
    std::vector<DataSource> sources;
    for (const Input& input : inputs) {
      sources.push_back({input.path.string(), std::string(input.format->name), 1.0});
    }
    return all_text(sources, settings.rules);
  };
  const auto tokenizer = make_tokenizer(settings.tokenizer, training_text, "--tokenizer");
  if (tokenizer->type() == TokenizerType::none) {
    throw ConfigError("preparing data needs a tokenizer other than none");
  }
  add_chat_template(*tokenizer, settings.chat_template);
  Preparation preparation(settings, *tokenizer);
  for (const Input& input : inputs) {
    preparation.add(input);
  }
  return preparation.finish(inputs);
}

}  // namespace fp8train
