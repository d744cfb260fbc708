#pragma once
// The chat templates of dialogues: the text before and after each message, and the parts that the
// model learns. Each is the template of a published tokenizer as code.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/chat/dialogue.h"
#include "data/tokenizer.h"

namespace fp8train {

/// A chat template, by the model that it comes from.
enum class ChatTemplate : uint8_t {
  automatic,  ///< the one of tokenizer_config.json or chat_template.jinja
  llama3,     ///< Meta-Llama-3-Instruct
  llama31,    ///< Llama-3.1-Instruct: a system message with dates, of which today's is 26 Jul 2024
  llama2,     ///< Llama-2-chat: [INST], <<SYS>>
  mistral,    ///< Mistral-7B-Instruct-v0.3: [INST] and [/INST] are tokens
  mistral1,   ///< Mistral-7B-Instruct-v0.1 and v0.2, as their repositories have it since 2024
  qwen,       ///< Qwen2.5-Instruct: ChatML with a system message of its own
  qwen3,      ///< Qwen3: ChatML; thoughts come before the last answer alone
  chatml,
};

inline constexpr std::pair<ChatTemplate, std::string_view> kChatTemplates[] = {
    {ChatTemplate::automatic, "auto"},   {ChatTemplate::llama3, "llama3"},
    {ChatTemplate::llama31, "llama3.1"}, {ChatTemplate::llama2, "llama2"},
    {ChatTemplate::mistral, "mistral"},  {ChatTemplate::mistral1, "mistral-v1"},
    {ChatTemplate::qwen, "qwen"},        {ChatTemplate::qwen3, "qwen3"},
    {ChatTemplate::chatml, "chatml"},
};

std::string_view name_of(ChatTemplate chat_template);
/// Returns all names but auto: "llama3, llama3.1, ...".
std::string chat_template_names();
/// Returns the template of this name, or automatic for "auto". Throws ConfigError, which names
/// `option`, for another name.
ChatTemplate chat_template_named(std::string_view name, std::string_view option);

/// A template, and the system message that it puts before dialogues without one.
struct ChatForm {
  ChatTemplate chat_template = ChatTemplate::chatml;
  std::string default_system;

  bool operator==(const ChatForm&) const = default;
};

/// Returns the form that the text of a template (Jinja) describes, by the marks that it contains.
/// Throws ConfigError for one that is not known; `where` names its file, `option` what a template
/// is named with.
ChatForm recognize_chat_template(std::string_view jinja, const std::string& where,
                                 std::string_view option = "data.chat_template");

/// A part of a dialogue as it is written: a text, or a token where `id` is not negative.
struct ChatPart {
  std::string text;
  int32_t id = -1;
  bool is_target = false;
};

/// Writes dialogues as ids. Refers to the tokenizer. Immutable, so that it may be used from several
/// threads.
class ChatEncoder {
 public:
  /// The ids of a dialogue, and for each whether it is a target.
  struct Encoded {
    std::vector<int32_t> ids;
    std::vector<bool> is_target;  ///< answers and the tokens that end them
  };

  /// Throws ConfigError, which names `option`, where the template is not known or the tokenizer
  /// lacks its tokens.
  ChatEncoder(const Tokenizer& tokenizer, ChatTemplate chat_template,
              std::string_view option = "data.chat_template");

  /// Returns the ids of transformers' apply_chat_template, but that special tokens in a message are
  /// text. Throws DataError where the template does not take the roles in this order.
  Encoded encode(const Dialogue& dialogue) const;

  /// Returns the ids after which a model writes the next answer: those of
  /// add_generation_prompt=True. `thinks` false: of enable_thinking=False. Throws as encode() does,
  /// and ConfigError where a template without thinking is asked to leave it out.
  std::vector<int32_t> prompt(const Dialogue& dialogue, bool thinks = true) const;
  /// Returns the token that ends an answer, or -1.
  int32_t end_of_answer() const { return end_ >= 0 ? end_ : eos_; }
  /// Whether an answer ends with this token, which is not part of it.
  bool ends_answer(int32_t id) const { return id >= 0 && (id == end_ || id == eos_); }

  const ChatForm& form() const { return form_; }

 private:
  using Parts = std::vector<ChatPart>;
  int32_t require(std::string_view token) const;
  Parts render(const Dialogue& dialogue) const;
  void add_header(ChatRole role, Parts& parts) const;
  void add_headed(const Dialogue& dialogue, Parts& parts) const;
  void add_chatml(const Dialogue& dialogue, Parts& parts) const;
  void add_thoughts(std::string_view reasoning, bool is_target, Parts& parts) const;
  void add_qwen3_answer(const Dialogue& dialogue, size_t index, Parts& parts) const;
  struct Instructions;
  void add_instructions(const Dialogue& dialogue, const Instructions& form, Parts& parts) const;
  void add_mark(std::string_view mark, bool is_target, Parts& parts) const;
  void add_text(std::string_view text, bool is_target, Parts& parts) const;
  Encoded ids_of(const Parts& parts) const;

  const Tokenizer& tokenizer_;
  std::string_view option_;
  ChatForm form_;
  int32_t bos_ = -1, eos_ = -1;
  int32_t begin_ = -1, end_of_header_ = -1, end_ = -1;  ///< of messages with headers
};

}  // namespace fp8train
