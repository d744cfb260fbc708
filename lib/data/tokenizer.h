#pragma once
// Text to token ids and back. A tokenizer is immutable once made, so that all its functions may be
// called from several threads. It is saved next to a checkpoint as tokenizer.json in this program's
// own format ("format": "fp8train-tokenizer").

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fp8train {

/// What a text is cut in when a fraction of it is held back for validation.
enum class TextUnit : uint8_t { byte, code_point };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// "none", "byte", "char" or "llama2c-bpe".
  virtual std::string_view type() const = 0;

  /// Number of ids; the model's vocabulary is at least this large. Not padded: a model may round it
  /// up.
  virtual int64_t vocab_size() const = 0;

  /// Ids of the text alone, without beginning- or end-of-sequence ids. Throws DataError naming what
  /// cannot be encoded.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;

  /// The text; beginning- and end-of-sequence ids give nothing. Throws DataError for an id outside
  /// the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;

  /// Id of the beginning- or end-of-sequence token, or -1 where there is none.
  virtual int32_t bos_id() const { return -1; }
  virtual int32_t eos_id() const { return -1; }

  virtual TextUnit unit() const { return TextUnit::byte; }

  /// Contents of tokenizer.json; tokenizer_from_json() reads it back.
  virtual std::string to_json() const = 0;

 protected:
  Tokenizer() = default;
};

/// 256 byte values as they are, 256 (reserved, never in data) and EOS 257: vocab_size 258. Encodes
/// anything, needs no training text.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// For data tokenized elsewhere (token files): a token's text is its id, "12 7 401". No vocabulary
/// of its own (vocab_size 0), no BOS, no EOS. encode() throws DataError for anything but ids.
std::unique_ptr<Tokenizer> make_id_tokenizer();

/// One id per distinct UTF-8 code point of the text, in code point order (nanoGPT's character data
/// sets). No BOS, no EOS. encode() throws DataError naming a character that the text did not hold.
/// Throws DataError when the text is not UTF-8 or empty.
std::unique_ptr<Tokenizer> make_char_tokenizer(std::string_view training_text);

/// llama2.c tokNNN.bin (karpathy/llama2.c: tokenizer.py writes, run.c reads): u32 maximum length,
/// then per token f32 score, u32 length, bytes, to the end of the file. Ids 3..258 are the bytes
/// <0x00>..<0xFF>, BOS 1, EOS 2. encode() adds the dummy space prefix and merges by score as run.c
/// does; decode() drops the first space after a BOS. Throws DataError when the file is damaged.
std::unique_ptr<Tokenizer> read_llama2c_tokenizer(const std::filesystem::path& path);

/// Reads what to_json() wrote; `where` names the source in messages. Throws DataError.
std::unique_ptr<Tokenizer> tokenizer_from_json(std::string_view text, const std::string& where);

/// `name_or_path`: "none", "byte", "char", a tokenizer.json of this program, a folder that holds
/// one, or a llama2.c tokNNN.bin. `training_text` is called for "char" only.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name_or_path,
                                          const std::function<std::string()>& training_text);

}  // namespace fp8train
