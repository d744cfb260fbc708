#pragma once
// Turns documents into ids on several threads and delivers them in order. A long document is cut
// where its tokenizer allows it, so that memory depends neither on the length of a document nor on
// the number of them; one that cannot be cut is held whole, in half of the
// memory at most. Results do not depend on
// the number of threads.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/ordered_tasks.h"
#include "data/tokenizer.h"

namespace fp8train {

/// The ids of a part of the documents.
struct EncodedText {
  std::vector<int32_t> ids;
  std::vector<size_t> ends;  ///< behind each id with which a document ends
};

/// Encodes documents on several threads and passes their ids on in order.
class DocumentEncoder {
 public:
  using Sink = std::function<void(const EncodedText& text)>;

  /// Keeps a reference to `tokenizer`. `threads` 0: one for each processor. `frame` has the ids
  /// around each document. `sink` gets the ids in order, on the thread that calls add(), add_part()
  /// or finish().
  DocumentEncoder(const Tokenizer& tokenizer, int64_t threads, SequenceFrame frame, Sink sink);

  /// Adds a whole document. Throws as add_part() does.
  void add(std::string document);

  /// Adds a piece, of any size, of a document; `last` ends the document. Throws what encoding a
  /// part threw, this one or an earlier one (DataError), and DataError for a document that can
  /// neither be cut nor held in memory.
  void add_part(std::string_view text, bool last);

  /// Waits until all that was added has been encoded and passed on. Throws as add_part() does.
  void finish();

 private:
  struct Part {
    std::string text;
    bool begins;
    bool ends;
  };
  using Task = std::vector<Part>;

  EncodedText encode(const Task& task) const;
  void put(Part part);
  void start_task();

  const Tokenizer& tokenizer_;
  SequenceFrame frame_;
  std::string pending_;     ///< rest of a document in pieces, behind its last cut
  size_t searched_ = 0;     ///< bytes of it that have no cut
  bool is_within_ = false;  ///< a part of that document has been cut off
  Task task_;               ///< gathers small documents
  size_t task_bytes_ = 0;
  OrderedTasks<EncodedText> tasks_;
};

}  // namespace fp8train
