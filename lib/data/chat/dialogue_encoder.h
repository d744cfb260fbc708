#pragma once
// Turns dialogues into ids on several threads and delivers them in order. Results do not depend on
// the number of threads.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "data/chat/chat_encoder.h"
#include "data/readers/data_format.h"

namespace fp8train {

/// Returns the ids of a prompt and a completion without a template, two messages of ChatRole::none:
/// those of both texts together, as of a document of its own, with the end of sequence. Targets are
/// the ids behind as many as the prompt alone has (TRL, SFTTrainer). Throws as Tokenizer::encode()
/// does.
ChatEncoder::Encoded encode_completion(const Tokenizer& tokenizer, const Dialogue& dialogue);

/// Gets the ids of a dialogue.
using EncodedDialogueSink = std::function<void(ChatEncoder::Encoded dialogue)>;

/// Encodes the dialogues that `read` gives its visitor, on `threads` threads (0: one for each
/// processor), and passes them on in their order, on the thread that calls. `option`: what sets the
/// template, for messages. Throws what encoding a dialogue threw (DataError, which begins with its
/// `where`), and as ChatEncoder does at the first one with roles.
void for_each_encoded_dialogue(const Tokenizer& tokenizer, const std::string& chat_template,
                               std::string_view option, int64_t threads,
                               const std::function<void(const DialogueVisitor&)>& read,
                               const EncodedDialogueSink& sink);

}  // namespace fp8train
