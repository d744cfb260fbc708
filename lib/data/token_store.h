#pragma once
// Token ids in a file or in memory.

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/not_copied.h"

namespace fp8train {

/// The facts that a file states about its tokens.
struct TokenFacts {
  std::string_view type = {};             ///< how an id is stored: "u16"
  std::optional<int64_t> documents = {};  ///< set if the format has any
};

/// The documents that the tokens of a store make up, one after the other.
struct DocumentTable {
  std::vector<int64_t> ends;    ///< behind the last token of each
  std::vector<bool> is_target;  ///< for each token, whether the model learns it; empty: all
};

/// A run of token ids that can be read in parts. read() may be called from several threads.
class TokenStore : NotCopied {
 public:
  explicit TokenStore(DocumentTable documents = {}) : documents_(std::move(documents)) {}
  virtual ~TokenStore() = default;

  /// Returns the number of tokens.
  virtual int64_t size() const = 0;
  /// Reads tokens [offset, offset + count) of this store into `to`. A file's store throws DataError
  /// for a range that it does not have, a damaged file and ids outside the vocabulary.
  virtual void read(int64_t offset, int64_t count, int32_t* to) const = 0;

  virtual TokenFacts facts() const { return {}; }
  /// Returns null if the file does not say where documents begin.
  const DocumentTable* documents() const { return documents_.ends.empty() ? nullptr : &documents_; }

 private:
  DocumentTable documents_;
};

}  // namespace fp8train
