#pragma once
// Dialogues as ids: the template of a chat model is rendered, and what the model learns is found in
// what it wrote.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/chat/dialogue.h"
#include "data/chat/jinja/template.h"
#include "data/tokenizer.h"

namespace fp8train {

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0, end = 0;
};

/// Writes dialogues as ids. Refers to the tokenizer. Its functions may be called from several
/// threads.
class ChatEncoder {
 public:
  /// The ids of a dialogue, and for each whether it is a target.
  struct Encoded {
    std::vector<int32_t> ids;
    std::vector<bool> is_target;  ///< answers and the tokens that end them
  };

  /// `chat_template`: auto for that of the tokenizer's chat_template.jinja or
  /// tokenizer_config.json, a name of named_templates(), or the path of a file ".jinja". Throws
  /// ConfigError, which names `option`, where there is none, it is none, or the tokenizer lacks the
  /// tokens of a named one.
  explicit ChatEncoder(const Tokenizer& tokenizer, const std::string& chat_template = "auto",
                       std::string_view option = "data.chat_template");

  /// Returns the ids of transformers' apply_chat_template, but that special tokens in a message are
  /// text. Targets are what {% generation %} marks in the template; without it, an answer from
  /// behind the text that asks for it to the token that ends it. Throws DataError where the
  /// template refuses the dialogue, leaves an answer out, does not mark it, or writes it twice, and
  /// where it would take more than some minutes.
  Encoded encode(const Dialogue& dialogue) const;

  /// Returns the ids after which a model writes the next answer: those of
  /// add_generation_prompt=True. `thinks` false: of enable_thinking=False. Throws as encode() does,
  /// and ConfigError where a template without thinking is asked to leave it out.
  std::vector<int32_t> prompt(const Dialogue& dialogue, bool thinks = true) const;
  /// Returns the token that ends an answer, or -1.
  int32_t end_of_answer() const { return end_ >= 0 ? end_ : tokenizer_.eos_id(); }
  /// Whether an answer ends with this token, which is not part of it.
  bool ends_answer(int32_t id) const {
    return id >= 0 && (id == end_ || id == tokenizer_.eos_id());
  }

 private:
  /// The inputs of a rendering.
  struct Request {
    size_t messages = 0;  ///< how many of the first
    bool asks = false;    ///< for an answer: add_generation_prompt
    bool thinks = true;   ///< false: enable_thinking is false
  };
  jinja::Rendered render(const Dialogue& dialogue, const Request& request, int64_t& steps) const;
  std::vector<ByteRange> marked_answers(const Dialogue& dialogue,
                                        const jinja::Rendered& whole) const;
  std::vector<ByteRange> answers(const Dialogue& dialogue, const jinja::Rendered& whole,
                                 int64_t& steps) const;
  ByteRange answer(const Dialogue& dialogue, size_t index, const jinja::Text& whole,
                   int64_t& steps) const;
  size_t begin_of_answer(const Dialogue& dialogue, size_t index, std::string_view before,
                         int64_t& steps) const;
  size_t end_of_answer(const Dialogue& dialogue, size_t index, std::string_view after,
                       int64_t& steps) const;
  void warn_of_messages_left_out(const Dialogue& dialogue, const jinja::Text& text) const;
  size_t end_behind(std::string_view text) const;
  int32_t find_end() const;

  const Tokenizer& tokenizer_;
  SpecialTokens tokens_;
  jinja::Template template_;
  jinja::Variables variables_;  ///< the tokens by name
  int32_t end_ = -1;
  mutable std::atomic<bool> has_warned_ = false;
};

}  // namespace fp8train
