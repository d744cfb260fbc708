// Dialogues as JSON lines (data/chat/dialogue.h).

#include "data/chat/dialogue.h"
#include "data/readers/data_format.h"
#include "data/readers/json_lines.h"

namespace fp8train {
namespace {

bool is_chat(const FileHead& head) {
  return chat_format().has_suffix(head.path) && looks_like_dialogue(head.bytes);
}

void visit_dialogues(const std::filesystem::path& path, const DialogueVisitor& visit) {
  for_each_json_line(path, [&](std::string_view line, const std::string& where) {
    visit(read_dialogue(line, where), where);
  });
}

/// The messages alone, a line each: what a tokenizer is trained on.
void visit_texts(const std::filesystem::path& path, const TextKey& /*text_key*/,
                 const DocumentVisitor& visit) {
  visit_dialogues(path, [&](const Dialogue& dialogue, const std::string& /*where*/) {
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
                                         .suffixes = {".jsonl", ".ndjson"},
                                         .content = DataContent::dialogues,
                                         .matches = is_chat,
                                         .for_each_document = visit_texts,
                                         .for_each_dialogue = visit_dialogues};
  return kFormat;
}

}  // namespace fp8train
