#pragma once
// Turns dialogues into ids on several threads and delivers them in order. Results do not depend on
// the number of threads.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/ordered_tasks.h"

namespace fp8train {

/// Encodes dialogues on several threads and passes them on in their order.
class DialogueEncoder {
 public:
  using Encoded = ChatEncoder::Encoded;
  using Sink = std::function<void(Encoded dialogue)>;

  /// Keeps a reference to `encoder`. `threads` 0: one for each processor. `sink` gets each
  /// dialogue, on the thread that calls add() or finish().
  DialogueEncoder(const ChatEncoder& encoder, int64_t threads, Sink sink);

  /// Adds a dialogue. `where` begins the messages of errors. Throws what encoding a dialogue threw,
  /// this one or an earlier one (DataError).
  void add(Dialogue dialogue, std::string where);
  /// Waits until all that was added has been encoded and passed on. Throws as add() does.
  void finish();

 private:
  struct Located {
    Dialogue dialogue;
    std::string where;
  };
  void start_task();

  const ChatEncoder& encoder_;
  std::vector<Located> gathered_;
  size_t gathered_bytes_ = 0;
  OrderedTasks<std::vector<Encoded>> tasks_;
};

}  // namespace fp8train
