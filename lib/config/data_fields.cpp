// Where tokens come from.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "config/field_builders.h"
#include "config/field_table.h"
#include "data/readers/data_format.h"
#include "data/tokenizers/registry.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr double kMostPositions = ModelLimits::positions;

template <class Member>
auto data(Member member) {
  return in(&Settings::data, member);
}

Field sources(std::string key, std::vector<DataSource> DataSettings::*member, std::string doc) {
  return make(std::move(key), "a list of {path, format, weight}", std::move(doc), data(member),
              read_sources, [](const std::vector<DataSource>& values) {
                return values.empty() ? "" : sources_text(values);
              });
}

// What the wizard offers where the default of the field is no good start.

std::string offered_validation(const Settings& settings) {
  return number_text(settings.data.val_fraction > 0 ? settings.data.val_fraction : 0.05);
}

/// That of the folder a model comes from.
std::string offered_tokenizer(const Settings& settings) {
  const std::filesystem::path folder = settings.model.from;
  const bool has_one = !folder.empty() && tokenizers::has_tokenizer(folder);
  return has_one && settings.data.tokenizer == DataSettings().tokenizer ? folder.string()
                                                                        : settings.data.tokenizer;
}

/// No more than the model of a folder is made for.
std::string offered_length(const Settings& settings) {
  int64_t length = settings.data.seq_length;
  std::ifstream file(std::filesystem::path(settings.model.from) / "config.json");
  if (!settings.model.from.empty() && file) {
    const auto config = nlohmann::json::parse(file, nullptr, false);
    for (const char* key : {"max_position_embeddings", "n_positions"}) {
      if (config.is_object() && config.contains(key) && config[key].is_number_integer()) {
        length = std::min(length, std::max<int64_t>(1, config[key].get<int64_t>()));
      }
    }
  }
  return std::to_string(length);
}

}  // namespace

std::vector<Field> data_fields() {
  return {
      sources("data.train", &DataSettings::train,
              fmt::format("Training sources: {{path, format: {}, weight}}. A path is a file, a "
                          "folder or a pattern, and starts at the working directory. Where a "
                          "weight is not 1, samples are dealt out to the sources by weight; else "
                          "sources follow one another",
                          fmt::join(data_format_names(), "|")))
          .asked({.topic = Topic::data, .text = "Training data: a file, or [file, file]"}),
      sources("data.val", &DataSettings::val,
              "Validation sources; not set: val_fraction of the training sources"),
      number("data.val_fraction", data(&DataSettings::val_fraction), from_up_to(0, 1),
             "Part of the training sources that is held back for validation")
          .asked({.topic = Topic::data,
                  .text = "Part held back for validation",
                  .unless = {"data.val"},
                  .suggest = offered_validation}),
      path(
          "data.tokenizer", data(&DataSettings::tokenizer),
          "byte, char, the path of a tokenizer file or of a folder that has one, or none for token "
          "files made elsewhere",
          "text")
          .asked({.topic = Topic::data,
                  .text = "Tokenizer",
                  .suggest = offered_tokenizer,
                  .changes_memory = true}),
      integer("data.seq_length", data(&DataSettings::seq_length), between(1, kMostPositions),
              "Tokens of one sequence; a preset brings its own default")
          .asked({.topic = Topic::data,
                  .text = "Sequence length",
                  .suggest = offered_length,
                  .changes_memory = true}),
      flag("data.shuffle", data(&DataSettings::shuffle),
           "Windows in random order; false: in the order of the files"),
      text("data.text_key", data(&DataSettings::text_key), "JSONL: the key that holds the text"),
      choice("data.chat_template", data(&DataSettings::chat_template), kChatTemplates,
             "Dialogues: the template that they are written in; auto: that of the tokenizer's "
             "folder"),
      choice("data.packing", data(&DataSettings::packing), kPackings,
             "What a sequence holds: windows of the running text; whole documents, which do not "
             "see each other; none: one document. auto: documents for dialogues, else windows"),
      flag("data.document_mask", data(&DataSettings::document_mask),
           "Windows: attention and positions begin anew behind each end-of-sequence token"),
  };
}

}  // namespace fp8train
