// JSON records with a document under one of their keys.

#include <fmt/format.h>

#include "data/readers/data_format.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

void visit_records(const std::filesystem::path& path, const RecordRules& rules,
                   const DocumentVisitor& visit) {
  const std::string advice = fmt::format("set {}", rules.text_key_option);
  RecordNotes notes(path, rules);
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    std::optional<std::string> text = notes.read([&] {
      const JsonRecord record(line, where);
      std::string value = record.text(record.at({rules.text_key}, advice), rules.text_key);
      notes.ignore_keys(record.value(), {rules.text_key});
      return value;
    });
    if (text) visit(*std::move(text));
  });
  notes.finish();
}

}  // namespace

const DataFormat& jsonl_format() {
  static constexpr DataFormat kFormat = {
      .name = "jsonl",
      .suffixes = {".jsonl", ".ndjson", ".json"},
      .content = DataContent::documents,
      .matches = [](const FileHead& head) { return jsonl_format().has_suffix(head.path); },
      .for_each_document = visit_records};
  return kFormat;
}

}  // namespace fp8train
