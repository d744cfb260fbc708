// The input is a tokenizer, as its first byte says tokenizer.json (Hugging Face's or this
// program's) or a file of llama2.c, and a text behind the last zero byte. What is accepted is saved
// and read again as it was; ids are inside the vocabulary; byte and character tokenizers give the
// text back, pairs are merged as run.c of llama2.c does it, step by step, and a text may be cut
// where a tokenizer allows it.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer.h"
#include "plain_message.h"
#include "scratch_file.h"

namespace {

constexpr size_t kLongestText = 200;  // the merges below take cubic time

using Ids = std::vector<int32_t>;

void check(bool holds) {
  if (!holds) {
    std::abort();
  }
}

std::unique_ptr<fp8train::Tokenizer> read(bool is_json, const std::string& bytes) {
  if (is_json) {
    return fp8train::tokenizer_from_json(bytes, "input");
  }
  write_scratch(scratch_path(), bytes);
  return fp8train::read_llama2c_tokenizer(scratch_path());
}

/// karpathy/llama2.c, run.c, encode(): the best pair first, of equal ones the first.
Ids merged_one_by_one(const nlohmann::json& pieces, Ids ids) {
  const auto text_of = [&](int32_t id) {
    return pieces[static_cast<size_t>(id)][0].get<std::string>();
  };
  const auto find = [&](const std::string& text) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i][0].get_ref<const std::string&>() == text) {
        return static_cast<int32_t>(i);
      }
    }
    return -1;
  };
  while (true) {
    float best_score = -1e10F;
    int32_t best_id = -1;
    size_t best_index = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const int32_t id = find(text_of(ids[i]) + text_of(ids[i + 1]));
      const float score = id < 0 ? 0.0F : pieces[static_cast<size_t>(id)][1].get<float>();
      if (id >= 0 && score > best_score) {
        best_score = score;
        best_id = id;
        best_index = i;
      }
    }
    if (best_id < 0) {
      return ids;
    }
    ids[best_index] = best_id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_index) + 1);
  }
}

/// Every piece has one id: what run.c finds among equal ones depends on its sort.
bool is_unambiguous(const nlohmann::json& pieces) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (pieces[i][0] == pieces[j][0]) {
        return false;
      }
    }
  }
  return true;
}

/// The parts of a text that is cut where the tokenizer says have the ids of the whole.
void check_cut(const fp8train::Tokenizer& tokenizer, const std::string& text, const Ids& ids) {
  const size_t cut = tokenizer.last_cut(text);
  if (cut == 0) {
    return;
  }
  Ids parts = tokenizer.encode(text.substr(0, cut));
  const Ids rest = tokenizer.encode_rest(text.substr(cut));
  parts.insert(parts.end(), rest.begin(), rest.end());
  check(parts == ids);
}

void check_text(const fp8train::Tokenizer& tokenizer, const std::string& text) {
  Ids ids;
  try {
    ids = tokenizer.encode(text);
  } catch (const fp8train::DataError& error) {
    require_plain(error);
    return;
  }
  for (const int32_t id : ids) {
    check(id >= 0 && (tokenizer.vocab_size() == 0 || id < tokenizer.vocab_size()));
  }
  if (tokenizer.type() == fp8train::TokenizerType::byte ||
      tokenizer.type() == fp8train::TokenizerType::character) {
    check(tokenizer.decode(ids) == text);
  } else if (tokenizer.type() == fp8train::TokenizerType::none) {
    check(tokenizer.encode(tokenizer.decode(ids)) == ids);
  } else if (tokenizer.type() == fp8train::TokenizerType::llama2c) {
    const nlohmann::json pieces = nlohmann::json::parse(tokenizer.to_json()).at("pieces");
    const bool is_small = pieces.size() < 300 && text.size() < 40;
    if (is_small && is_unambiguous(pieces)) {
      // No pair of what is left could be merged, and merging again changes nothing.
      check(merged_one_by_one(pieces, ids) == ids);
    }
    tokenizer.decode(ids);
  } else {
    tokenizer.decode(ids);
    check_cut(tokenizer, text, ids);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) {
    return 0;
  }
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool is_json = data[0] % 2 == 0;
  const size_t zero = bytes.rfind('\0');
  const std::string text = zero == std::string::npos ? bytes : bytes.substr(zero + 1, kLongestText);
  try {
    const auto tokenizer =
        read(is_json, is_json ? bytes.substr(0, std::min(zero, bytes.size())) : bytes);
    const std::string saved = tokenizer->to_json();
    const auto again = fp8train::tokenizer_from_json(saved, "saved");
    check(again->to_json() == saved && again->vocab_size() == tokenizer->vocab_size());
    check_text(*again, text);
    check_text(*tokenizer, text);
  } catch (const fp8train::DataError& error) {
    require_plain(error);
  }
  try {
    const auto characters = fp8train::make_char_tokenizer(text);
    check_text(*characters, text);
  } catch (const fp8train::DataError& error) {  // not UTF-8, or empty
    require_plain(error);
  }
  check_text(*fp8train::make_byte_tokenizer(), text);
  check_text(*fp8train::make_id_tokenizer(), text);
  return 0;
}
