// A text file: one document.

#include "data/readers/data_format.h"

namespace fp8train {
namespace {

bool may_be_text(const FileHead& head) {
  return head.bytes.find('\0') == std::string_view::npos;
}

void visit_whole(const std::filesystem::path& path, const std::string& /*text_key*/,
                 const DocumentVisitor& visit) {
  const InputFile file(path);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size());
  visit(std::move(text));
}

}  // namespace

const DataFormat& text_format() {
  static constexpr DataFormat kFormat = {.name = "text",
                                         .content = DataContent::text,
                                         .matches = may_be_text,
                                         .for_each_document = visit_whole};
  return kFormat;
}

}  // namespace fp8train
