// Where tokens come from.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "config/fields/check_context.h"
#include "config/fields/field_builders.h"
#include "config/fields/field_table.h"
#include "data/chat/chat_template.h"
#include "data/readers/data_format.h"

namespace fp8train {
namespace {

using namespace fields;

constexpr double kMaxPositions = ModelLimits::positions;

/// Whether the path of a source is a command.
bool is_command(const YamlNode& source) {
  for (size_t i = 0; i < source.keys.size(); ++i) {
    if (source.keys[i].text == "format") {
      return lower(source.items[i].text) == kCommandFormat;
    }
  }
  return false;
}

std::optional<DataSource> read_source_map(const FieldValue& value, const std::string& what) {
  constexpr double kMaxWeight = 1e12;
  std::vector<std::string> formats = data_format_names();
  formats.emplace_back(kCommandFormat);
  DataSource source;
  source.format = "auto";
  const bool good = read_keys(
      value, what,
      {{"path",
        [&](const FieldValue& it) {
          return assign(source.path,
                        (is_command(value.node()) ? read_text : read_path)(it, "text"));
        }},
       {"format",
        [&](const FieldValue& it) {
          return assign(source.format, read_choice(it, formats, "one of " + joined(formats)));
        }},
       key_for("weight", source.weight,
               {.range = above_up_to(0, kMaxWeight), .accepts = "a number > 0, at most 1e12"})});
  if (good && source.path.empty()) {
    value.fail("a source needs a path");
  }
  return good && !source.path.empty() ? std::optional(source) : std::nullopt;
}

/// A list of sources, each a path or {path, format, weight}, or one without a list.
std::optional<std::vector<DataSource>> read_sources(const FieldValue& value,
                                                    const std::string& what) {
  const auto read_one = [&](const FieldValue& element) -> std::optional<DataSource> {
    if (element.node().kind == YamlNode::Kind::map) {
      return read_source_map(element, what);
    }
    const auto path = read_path(element, "a source such as {path: corpus.txt}");
    return path ? std::optional(DataSource{*path, "auto", 1.0}) : std::nullopt;
  };
  if (value.node().kind == YamlNode::Kind::map || value.node().kind == YamlNode::Kind::scalar) {
    const auto source = read_one(value);
    return source ? std::optional(std::vector<DataSource>{*source}) : std::nullopt;
  }
  return read_list<DataSource>(value, 0, what, read_one);
}

std::string sources_text(const std::vector<DataSource>& sources) {
  const std::string text = joined(sources, [](const DataSource& source) {
    return fmt::format("{{path: {}, format: {}, weight: {}}}", yaml_text(source.path),
                       source.format.empty() ? "auto" : source.format, number_text(source.weight));
  });
  return text.empty() ? "" : "[" + text + "]";
}

Field sources(std::string key, std::vector<DataSource> DataSettings::*member, std::string doc) {
  return make(std::move(key), "a path or a list of sources", std::move(doc),
              in(&Settings::data, member), read_sources, sources_text);
}

void check_train(const CheckContext& at) {
  constexpr const char* kAdvice = "give at least one source such as [{path: corpus.txt}]";
  if (!at.settings.data.train.empty()) {
    return;
  }
  if (!at.is_given()) {
    at.missing_section(fmt::format("missing; {}", kAdvice));
  } else if (at.usable("data.train")) {
    at.complain(fmt::format("an empty list; {}", kAdvice));
  }
}

void check_val_fraction(const CheckContext& at) {
  if (!at.settings.data.val.empty() && at.settings.data.val_fraction > 0) {
    at.complain("conflicts with data.val; remove one of them");
  }
}

void check_seq_length(const CheckContext& at) {
  const int64_t length = at.settings.step.seq_length;
  const int64_t context = at.settings.model.config.max_position_embeddings;
  if (at.settings.model.from.empty() && at.usable("data.seq_length") && at.usable("model.preset") &&
      at.usable("model.max_position_embeddings") && context > 0 && length > context) {
    at.complain("model.max_position_embeddings",
                fmt::format("data.seq_length {} is longer than model.max_position_embeddings {}",
                            length, context));
  }
}

void check_template(const CheckContext& at) {
  const auto problem = chat_template_problem(at.settings.data.chat_template);
  if (problem) at.complain(*problem);
}

}  // namespace

std::vector<Field> data_fields() {
  const auto data = under(&Settings::data);
  return {
      sources("data.train", &DataSettings::train,
              fmt::format(
                  "Training sources, each a path or {{path, format: {}|command, weight}}. A path "
                  "is a file, a folder or a pattern, and starts at the working directory; with "
                  "format: command it is a command whose output is the data. If a "
                  "weight is not 1, samples are distributed over the sources by weight; "
                  "otherwise the sources follow one another",
                  fmt::join(data_format_names(), "|")))
          .asked({.topic = Topic::data,
                  .text = "Training data: a file, folder or pattern, or a list [a, b]"})
          .checked(check_train),
      sources("data.val", &DataSettings::val,
              "Validation sources; not set: val_fraction of the training sources"),
      field("data.val_fraction", data(&DataSettings::val_fraction), from_up_to(0, 1),
            "Part of the training sources that is held back for validation")
          .asked({.topic = Topic::data,
                  .text = "Part held back for validation",
                  .unless = {"data.val"},
                  .suggest =
                      [](const Settings& s) {
                        return number_text(s.data.val_fraction > 0 ? s.data.val_fraction : 0.05);
                      }})
          .checked(check_val_fraction),
      path("data.tokenizer", data(&DataSettings::tokenizer),
           "byte, char, the path of a tokenizer file or of a folder that has one, or none for "
           "token files from elsewhere; with model.from the default is the tokenizer of its "
           "folder, if it has one and the data are not token files",
           "text")
          .asked({.topic = Topic::tokens, .text = "Tokenizer"}),
      field("data.seq_length", in(&Settings::step, &StepSettings::seq_length),
            between(1, kMaxPositions),
            "Tokens of one sequence; a preset sets its own default, and the context of "
            "model.from limits it")
          .asked({.topic = Topic::tokens, .text = "Sequence length"})
          .checked(check_seq_length),
      field("data.shuffle", data(&DataSettings::shuffle),
            "Windows in random order; false: in the order of the files"),
      text("data.text_key", data(&DataSettings::text_key), "JSONL: the key that holds the text"),
      choice(
          "data.bad_lines", data(&DataSettings::bad_lines), kBadLines,
          "JSONL: records that cannot be read or learned are an error, which counts them, or are "
          "skipped with a warning"),
      path("data.chat_template", data(&DataSettings::chat_template),
           fmt::format("Template that dialogues are rendered with. auto: that of the tokenizer's "
                       "folder; the path of a .jinja file; or one of {}",
                       chat_template_names()),
           "text")
          .checked(check_template),
      choice("data.packing", data(&DataSettings::packing), kPackings,
             "How documents fill a sequence. windows: consecutive text; documents: whole "
             "documents, which do not see each other; none: one document; auto: documents for "
             "dialogues, else windows"),
      field("data.document_mask", data(&DataSettings::document_mask),
            "With windows: attention and positions start again after each end-of-sequence token"),
  };
}

}  // namespace fp8train
