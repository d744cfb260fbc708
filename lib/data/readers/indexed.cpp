// Indexed data sets (data/readers/sequence_index.h): NAME.bin has token ids, NAME.idx says where
// its sequences are. They are read in the order of the index.

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/input_file.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

bool is_indexed(const FileHead& head) {
  if (head.path == index_path(head.path)) return !document_index_of(head.path).empty();
  return indexed_format().has_suffix(head.path) && has_file(index_path(head.path));
}

std::shared_ptr<const TokenStore> indexed_tokens(const std::filesystem::path& path,
                                                 int64_t vocab_size, bool with_documents) {
  if (path == index_path(path)) {
    throw DataError(
        fmt::format("{}: is an index; name the .bin or .npy file next to it", path.string()));
  }
  InputFile file(path);
  SequenceIndex index = read_sequence_index(path, file.size(), with_documents);
  TokenFile tokens = {std::move(file),       index.type,     0, index.tokens,
                      std::move(index.runs), index.documents};
  return std::make_shared<FileTokens>(std::move(tokens), vocab_size, std::move(index.table));
}

}  // namespace

const DataFormat& indexed_format() {
  static constexpr DataFormat kFormat = {.name = "indexed",
                                         .suffixes = {".bin"},
                                         .content = DataContent::tokens,
                                         .matches = is_indexed,
                                         .open = indexed_tokens,
                                         .companions = [](const std::filesystem::path& path, bool) {
                                           return std::vector{index_path(path)};
                                         }};
  return kFormat;
}

}  // namespace fp8train
