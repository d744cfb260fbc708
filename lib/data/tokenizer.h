#pragma once
// Text to token ids and back. A tokenizer is immutable once made, so that all its functions may be
// called from several threads. It is saved next to a checkpoint as files that transformers opens.
// The kinds of tokenizers are files of data/tokenizers/.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/names.h"
#include "base/not_copied.h"

namespace fp8train {

/// The unit in which a text is counted when a fraction of it is held back for validation.
enum class TextUnit : uint8_t { byte, code_point };

/// The kind of a tokenizer, also of one that is saved.
enum class TokenizerType : uint8_t { none, byte, character, huggingface, sentencepiece };
inline constexpr std::pair<TokenizerType, std::string_view> kTokenizerTypes[] = {
    {TokenizerType::none, "none"},
    {TokenizerType::byte, "byte"},
    {TokenizerType::character, "char"},
    {TokenizerType::huggingface, "huggingface"},
    {TokenizerType::sentencepiece, "sentencepiece"}};
constexpr std::string_view name_of(TokenizerType type) {
  return name_in(kTokenizerTypes, type);
}

/// A file of a tokenizer as it is written into a model folder.
struct TokenizerFile {
  std::string name;
  std::string text;
};

/// The ids around a text.
struct SequenceFrame {
  std::vector<int32_t> before_prompt;    ///< ids before a prompt of generation
  std::vector<int32_t> before_document;  ///< ids before a document of training data
  std::vector<int32_t> after_document;
};

/// Whether white space next to a token belongs to it.
struct TokenStrips {
  bool before = false, after = false;
};

/// A tokenizer: text to ids and back.
class Tokenizer : NotCopied {
 public:
  virtual ~Tokenizer() = default;

  virtual TokenizerType type() const = 0;

  /// Returns the number of ids; the model's vocabulary is at least this large. Not padded: a model
  /// may round it up.
  virtual int64_t vocab_size() const = 0;

  /// Returns the ids of the text alone, without beginning- or end-of-sequence ids. Throws
  /// DataError, which names the text that cannot be encoded.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// An added token.
  struct Added {
    std::string text;
    int32_t id = -1;
    bool is_special = false;  ///< encode_ordinary() does not find it
  };
  virtual std::vector<Added> added_tokens() const { return {}; }
  /// Returns whether white space next to an added token belongs to it.
  virtual TokenStrips strips(int32_t /*id*/) const { return {}; }
  /// Returns the ids of a text in which no special token is looked for. `at_start`: no ids are in
  /// front of it. Throws as encode() does.
  virtual std::vector<int32_t> encode_ordinary(std::string_view text, bool at_start) const {
    return at_start ? encode(text) : encode_rest(text);
  }

  /// Returns the text of the ids; beginning- and end-of-sequence ids give nothing. Throws DataError
  /// for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Returns the id of the beginning-of-sequence token, or -1 if there is none. eos_id() does the
  /// same for the end-of-sequence token.
  virtual int32_t bos_id() const { return -1; }
  virtual int32_t eos_id() const { return -1; }

  /// Returns the ids around texts: BOS in front of a prompt and EOS behind a document, unless the
  /// tokenizer says otherwise.
  virtual SequenceFrame frame() const;

  /// The number of bytes, on both sides of a cut together, at which last_cut() looks.
  static constexpr size_t kCutBytes = 16;
  /// Returns the last byte of `text` in front of which it may be cut, so that encode() of the first
  /// part and encode_rest() of the second give the ids of the whole, or 0 if there is none. Looks
  /// at no more than kCutBytes around it, so that `text` may begin anywhere.
  virtual size_t last_cut(std::string_view /*text*/) const { return 0; }
  /// Returns the ids of a text that continues another one behind a cut. Throws as encode() does.
  virtual std::vector<int32_t> encode_rest(std::string_view text) const { return encode(text); }

  /// Returns the unit in which texts are counted.
  virtual TextUnit unit() const { return TextUnit::byte; }

  /// Returns the content of tokenizer.json, which tokenizer_from_json() reads back, or of
  /// sentencepiece's tokenizer.model. Two tokenizers with the same content encode alike.
  virtual std::string to_json() const = 0;

  /// Returns the files of a model folder from which open_tokenizer() makes the same tokenizer
  /// again: tokenizer.json and tokenizer_config.json, or those of another format; and those of the
  /// folder that it was opened from, as they were there (data/folder_files.h).
  std::vector<TokenizerFile> files() const;
  /// Adds a file to files(), or replaces it; the first one, which is the tokenizer, stays. Before
  /// several threads use the tokenizer.
  void set_file(TokenizerFile file);

 protected:
  /// Returns the files without which there is no such tokenizer, the one that is opened first.
  virtual std::vector<TokenizerFile> own_files() const;

 private:
  std::vector<TokenizerFile> more_files_;
};

/// Makes a tokenizer of 256 byte values as they are, 256 (reserved, never in data) and EOS 257:
/// vocab_size 258. Encodes anything, needs no training text.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// Makes a tokenizer for data tokenized elsewhere (token files): a token's text is its id, "12 7
/// 401". No vocabulary of its own (vocab_size 0), no BOS, no EOS. encode() throws DataError for
/// anything but ids.
std::unique_ptr<Tokenizer> make_id_tokenizer();

/// Makes a tokenizer with one id per distinct UTF-8 code point of the text, in code point order
/// (nanoGPT's character data sets). No BOS, no EOS. encode() throws DataError naming a character
/// that the text did not hold. Throws DataError when the text is not UTF-8 or empty.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view training_text);

/// Reads tokenizer.json of Hugging Face's tokenizers, or what to_json() wrote, also in earlier
/// versions of this program but for tokenizers of llama2.c; `where` names the source in messages.
/// Beginning and end of sequence are those of the post-processor and of tokens with usual names.
/// Throws DataError.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where);

/// Opens a tokenizer file, or a folder that holds one, of a kind in the table of
/// data/tokenizers/registry.h. `pattern` names the pattern of a tiktoken file whose name does not
/// say it; empty otherwise, files of other kinds refuse it. Throws DataError.
std::unique_ptr<Tokenizer> open_tokenizer(const std::filesystem::path& path,
                                          const std::string& pattern = {});

/// Makes the tokenizer that `name_or_path` names: "none", "byte", "char", or a path as
/// open_tokenizer() takes it, with a pattern as FILE#PATTERN. `training_text` is called for "char"
/// only. Throws ConfigError, which names `option`, for an unknown name, and DataError as the
/// functions above do.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name_or_path,
                                          const std::function<std::string()>& training_text,
                                          std::string_view option = "data.tokenizer");

/// Returns the ids of a prompt for generation, with the ids that belong in front of it. Throws as
/// Tokenizer::encode() does.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

}  // namespace fp8train
