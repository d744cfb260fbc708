#pragma once
// Turns dialogues into ids on several threads and delivers them in order. Results do not depend on
// the number of threads.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_encoder.h"
#include "data/ordered_tasks.h"

namespace fp8train {

/// Returns the ids of a prompt and a completion without a template, two messages of ChatRole::none:
/// those of both texts together, as of a document of its own, with the end of sequence. Targets are
/// the ids behind as many as the prompt alone has (TRL, SFTTrainer). Throws as Tokenizer::encode()
/// does.
ChatEncoder::Encoded encode_completion(const Tokenizer& tokenizer, const Dialogue& dialogue);

/// Encodes dialogues on several threads and passes them on in their order.
class DialogueEncoder {
 public:
  using Encoded = ChatEncoder::Encoded;
  using Sink = std::function<void(Encoded dialogue)>;

  /// Keeps a reference to `tokenizer`. `threads` 0: one for each processor. `sink` gets each
  /// dialogue, on the thread that calls add() or finish().
  DialogueEncoder(const Tokenizer& tokenizer, std::string chat_template, std::string_view option,
                  int64_t threads, Sink sink);

  /// Adds a dialogue. `where` begins the messages of errors. Throws what encoding a dialogue threw,
  /// this one or an earlier one (DataError), and as ChatEncoder does at the first one with roles.
  void add(Dialogue dialogue, std::string where);
  /// Waits until all that was added has been encoded and passed on. Throws as add() does.
  void finish();

 private:
  struct Located {
    Dialogue dialogue;
    std::string where;
  };
  void start_task();

  const Tokenizer& tokenizer_;
  std::string chat_template_;
  std::string option_;
  std::optional<ChatEncoder> chat_;  ///< once a dialogue has roles
  std::vector<Located> gathered_;
  size_t gathered_bytes_ = 0;
  OrderedTasks<std::vector<Encoded>> tasks_;
};

}  // namespace fp8train
