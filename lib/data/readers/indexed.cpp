// Indexed data sets (data/readers/sequence_index.h): NAME.bin has token ids, NAME.idx says where
// its sequences are. They are read in the order of the index.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "data/readers/data_format.h"
#include "data/readers/sequence_index.h"
#include "data/token_file.h"

namespace fp8train {
namespace {

class IndexedTokens final : public TokenStore {
 public:
  IndexedTokens(TokenFile file, SequenceIndex index, int64_t vocab_size)
      : file_(std::move(file)), index_(std::move(index)), vocab_size_(vocab_size) {}

  int64_t size() const override { return index_.tokens; }
  TokenFacts facts() const override {
    return {.type = name_of(index_.type), .documents = index_.documents};
  }

  const DocumentTable* documents() const override {
    return index_.table.ends.empty() ? nullptr : &index_.table;
  }

  void read(int64_t offset, int64_t count, int32_t* to) const override {
    auto next = std::upper_bound(
        index_.runs.begin(), index_.runs.end(), offset,
        [](int64_t token, const SequenceRun& run) { return token < run.first_token; });
    while (count > 0) {
      const SequenceRun& run = *(next - 1);
      const int64_t end = next == index_.runs.end() ? index_.tokens : next->first_token;
      const int64_t part = std::min(count, end - offset);
      file_.read(run.token_in_file + offset - run.first_token, part, vocab_size_, to);
      offset += part;
      count -= part;
      to += part;
      ++next;
    }
  }

 private:
  TokenFile file_;  ///< all of NAME.bin
  SequenceIndex index_;
  int64_t vocab_size_;
};

bool is_indexed(const FileHead& head) {
  std::error_code unseen;
  if (head.path == index_path(head.path)) return !document_index_of(head.path).empty();
  return indexed_format().has_suffix(head.path) &&
         std::filesystem::exists(index_path(head.path), unseen);
}

std::shared_ptr<const TokenStore> indexed_tokens(const std::filesystem::path& path,
                                                 int64_t vocab_size, bool with_documents) {
  if (path == index_path(path)) {
    throw DataError(
        fmt::format("{}: is an index; name the .bin or .npy file next to it", path.string()));
  }
  InputFile file(path);
  const uint64_t bytes = file.size();
  SequenceIndex index = read_sequence_index(path, bytes, with_documents);
  const auto count = static_cast<int64_t>(bytes / static_cast<uint64_t>(size_of(index.type)));
  TokenFile tokens(std::move(file), index.type, 0, count);
  return std::make_shared<IndexedTokens>(std::move(tokens), std::move(index), vocab_size);
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
