// A text file, which may be compressed: one document, which is held in memory (TextBudget).

#include "data/byte_stream.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"

namespace fp8train {
namespace {

void visit_whole(const std::filesystem::path& path, const RecordRules& /*rules*/,
                 const DocumentVisitor& visit) {
  constexpr size_t kTextReadBytes = 1U << 20;
  ByteStream file(path);
  TextBudget budget;
  std::string text;
  text.reserve(std::filesystem::file_size(path));
  while (file.append_to(text, kTextReadBytes)) {
    budget.add(kTextReadBytes, path.string(), file.file_bytes_read());
  }
  visit(std::move(text));
}

}  // namespace

const DataFormat& text_format() {
  static constexpr DataFormat kFormat = {
      .name = "text",
      .suffixes = {".txt"},
      .content = DataContent::text,
      .matches =
          [](const FileHead& head) { return head.bytes.find('\0') == std::string_view::npos; },
      .for_each_document = visit_whole};
  return kFormat;
}

}  // namespace fp8train
