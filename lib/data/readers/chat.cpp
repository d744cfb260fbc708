// Dialogues as JSON records (data/chat/dialogue.h).

#include "data/chat/dialogue.h"
#include "data/readers/data_format.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

bool is_chat(const FileHead& head) {
  if (!chat_format().has_suffix(head.path)) return false;
  const nlohmann::json first = first_record(head.path);
  return first.is_object() && is_dialogue(first);
}

void visit_dialogues(const std::filesystem::path& path, const RecordRules& rules,
                     const DialogueVisitor& visit) {
  RecordNotes notes(path, rules);
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    const auto dialogue = notes.read([&] {
      return read_dialogue(line, where, [&](const std::string& key) { notes.ignore_key(key); });
    });
    if (dialogue) visit(*dialogue, where);
  });
  notes.finish();
}

/// The messages alone, a line each: what a tokenizer is trained on.
void visit_texts(const std::filesystem::path& path, const RecordRules& rules,
                 const DocumentVisitor& visit) {
  visit_dialogues(path, rules, [&](const Dialogue& dialogue, const std::string& /*where*/) {
    std::string text;
    for (const ChatMessage& message : dialogue) {
      text += (text.empty() ? "" : "\n") + message.content;
    }
    visit(std::move(text));
  });
}

}  // namespace

const DataFormat& chat_format() {
  static constexpr DataFormat kFormat = {.name = "chat",
                                         .suffixes = {".jsonl", ".ndjson", ".json"},
                                         .content = DataContent::dialogues,
                                         .matches = is_chat,
                                         .for_each_document = visit_texts,
                                         .for_each_dialogue = visit_dialogues};
  return kFormat;
}

}  // namespace fp8train
