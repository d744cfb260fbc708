#include "data/tokenizer.h"

#include <catch2/catch.hpp>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "data/tokenizers/registry.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::string no_text() {
  return {};
}

TEST_CASE("without a tokenizer a text is ids") {
  const auto tokenizer = make_tokenizer("none", no_text);
  CHECK(tokenizer->encode(" 12 7\n401 ") == std::vector<int32_t>{12, 7, 401});
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->decode(std::vector<int32_t>{12, 7, 401}) == "12 7 401");
  CHECK(tokenizer->vocab_size() == 0);
  CHECK(tokenizer->bos_id() == -1);
  for (const char* wrong : {"12 seven", "-1", "3.5", "99999999999"}) {
    CHECK_THAT(message_of<DataError>([&] { tokenizer->encode(wrong); }), Contains("token id"));
  }
  CHECK(tokenizer_from_json(tokenizer->to_json(), "test")->type() == TokenizerType::none);
}

TEST_CASE("the byte tokenizer takes every byte and hides its special ids") {
  const auto tokenizer = make_byte_tokenizer();
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  const auto ids = tokenizer->encode(all);
  REQUIRE(ids.size() == 256);
  CHECK(ids[0] == 0);
  CHECK(ids[255] == 255);
  CHECK(tokenizer->decode(ids) == all);
  CHECK(tokenizer->vocab_size() == 258);
  const std::vector<int32_t> with_special = {256, 'h', 'i', tokenizer->eos_id()};
  CHECK(tokenizer->decode(with_special) == "hi");
  const std::vector<int32_t> negative = {-1};
  CHECK_THROWS_AS(tokenizer->decode(negative), DataError);
}

TEST_CASE("the char tokenizer orders code points and names what it does not know") {
  const auto tokenizer = make_char_tokenizer(
      "b\xC3\xA9"
      "a\nb");
  CHECK(tokenizer->vocab_size() == 4);
  CHECK(tokenizer->encode("\nab\xC3\xA9") == std::vector<int32_t>{0, 1, 2, 3});
  CHECK(tokenizer->decode(tokenizer->encode("b\xC3\xA9")) == "b\xC3\xA9");
  CHECK(tokenizer->bos_id() == -1);
  CHECK(tokenizer->eos_id() == -1);
  CHECK(tokenizer->decode(std::vector<int32_t>{4, 2}) == "b");
  const std::string message = message_of<DataError>([&] { tokenizer->encode("ab\xE2\x82\xAC"); });
  CHECK_THAT(message, Contains("<0xE2><0x82><0xAC>") && Contains("byte 2"));
  CHECK_THAT(message_of<DataError>([&] { tokenizer->encode("aT"); }),
             Contains("the character 'T' at byte 1 is not one of the 4"));
  CHECK_THROWS_AS(make_char_tokenizer(""), DataError);
  CHECK_THROWS_AS(make_char_tokenizer("a\xFF"), DataError);
  CHECK_THROWS_AS(make_char_tokenizer("\xC0\xAF"), DataError);      // overlong
  CHECK_THROWS_AS(make_char_tokenizer("\xED\xA0\x80"), DataError);  // surrogate
}

TEST_CASE("tokenizers survive tokenizer.json") {
  const test::TempDir dir;
  std::vector<std::unique_ptr<Tokenizer>> tokenizers;
  tokenizers.push_back(make_byte_tokenizer());
  tokenizers.push_back(make_char_tokenizer("a \xE2\x82\xAC\"\\"));
  for (const auto& tokenizer : tokenizers) {
    test::write_file(dir / "tokenizer.json", tokenizer->to_json());
    for (const auto& name : {dir.path().string(), (dir / "tokenizer.json").string()}) {
      const auto loaded = make_tokenizer(name, no_text);
      CHECK(loaded->type() == tokenizer->type());
      CHECK(loaded->vocab_size() == tokenizer->vocab_size());
      CHECK(loaded->encode("a a \xE2\x82\xAC") == tokenizer->encode("a a \xE2\x82\xAC"));
      CHECK(loaded->to_json() == tokenizer->to_json());
    }
  }
}

TEST_CASE("damaged or foreign tokenizer.json files are refused with a reason") {
  const auto refusal = [](std::string_view text) {
    return message_of<DataError>([&] { tokenizer_from_json(text, "there.json"); });
  };
  CHECK_THAT(refusal(R"({"model":{"type":"BPE"}})"), Contains("there.json.model: 'vocab'"));
  CHECK_THAT(refusal("{"), Contains("there.json"));
  CHECK_THAT(refusal("[]"), Contains("not a tokenizer.json"));
  const std::string head = R"({"format":"fp8train-tokenizer","version":1,"type":)";
  CHECK_THAT(refusal(head + R"("nothing"})"), Contains("unknown tokenizer type 'nothing'"));
  CHECK_THAT(refusal(head + R"("huggingface"})"), Contains("unknown tokenizer type 'huggingface'"));
  CHECK_THAT(refusal(head + R"("char"})"), Contains("characters"));
  CHECK_THAT(refusal(head + R"("char","characters":["a","a"]})"), Contains("twice"));
  CHECK_THAT(refusal(head + R"("char","characters":["ab"]})"), Contains("not one UTF-8"));
  CHECK_THAT(refusal(R"({"format":"fp8train-tokenizer","version":9,"type":"byte"})"),
             Contains("version 9"));
  CHECK_THAT(
      message_of<ConfigError>([] { make_tokenizer("bytes", no_text); }),
      Contains(
          "data.tokenizer: Unknown tokenizer 'bytes' (expected byte, char, none, or the path") &&
          Contains("did you mean 'byte'?"));
}

TEST_CASE("parts of a tokenizer.json that are nested too deeply are refused by location") {
  const auto nested = [](const std::string& key, const std::string& list, int depth) {
    std::string file =
        R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, ")" + key + "\": ";
    for (int i = 0; i < depth; ++i) file += R"({"type": "Sequence", ")" + list + "\": [";
    file += key == "normalizer" ? R"({"type": "NFC"})" : R"({"type": "ByteLevel"})";
    for (int i = 0; i < depth; ++i) file += "]}";
    return file + "}";
  };
  for (const auto& [key, list] :
       {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
        std::pair("decoder", "decoders"), std::pair("post_processor", "processors")}) {
    CHECK_NOTHROW(tokenizer_from_json(nested(key, list, 16), "x.json"));
    const auto refusal = [&](int depth) {
      return message_of<DataError>(
          [&] { tokenizer_from_json(nested(key, list, depth), "x.json"); });
    };
    CHECK_THAT(refusal(17), Contains(std::string("x.json.") + key + "." + list + "[0]") &&
                                Contains("is nested more than 16 deep"));
    CHECK(refusal(24000) == "x.json: nested deeper than 64 levels");
  }
}

TEST_CASE("the post-processor decides about a BOS, not add_bos_token, as in transformers 5.24") {
  const test::TempDir dir;
  const std::string model =
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []},
          "added_tokens": [{"id": 1, "content": "<s>", "special": true}])";
  const std::string with_bos = R"(, "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})";
  for (const bool in_post_processor : {false, true}) {
    for (const bool in_config : {false, true}) {
      CAPTURE(in_post_processor, in_config);
      test::write_file(dir / "tokenizer.json", model + (in_post_processor ? with_bos : "") + "}");
      test::write_file(dir / "tokenizer_config.json",
                       std::string(R"({"bos_token": "<s>", "add_bos_token": )") +
                           (in_config ? "true}" : "false}"));
      const SequenceFrame frame = open_tokenizer(dir.path())->frame();
      const auto expected = in_post_processor ? std::vector<int32_t>{1} : std::vector<int32_t>{};
      CHECK(frame.before_document == expected);
      CHECK(frame.before_prompt == expected);
    }
  }
}

TEST_CASE("files of a tokenizer that give a key twice, or name no tokens, are refused") {
  const test::TempDir dir;
  const std::string model =
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1}, "merges": []})";
  const auto refusal = [&](const std::string& tokenizer, const std::string& config) {
    test::write_file(dir / "tokenizer.json", tokenizer);
    test::write_file(dir / "tokenizer_config.json", config);
    return message_of<DataError>([&] { open_tokenizer(dir.path()); });
  };
  CHECK_THAT(refusal(model + "}", R"(["<s>"])"),
             Contains("tokenizer_config.json: expected an object, and this is an array"));
  for (const char* broken : {"{", "", "[]"}) {  // next to our own file, which it does not change
    CHECK_THAT(refusal(make_byte_tokenizer()->to_json(), broken),
               Contains((dir / "tokenizer_config.json").string()));
  }
  CHECK_THAT(refusal(model + "}", R"({"eos_token": "a", "eos_token": "<s>"})"),
             Contains("tokenizer_config.json") && Contains("eos_token"));
  CHECK_THAT(
      refusal(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})", "{}"),
      Contains("tokenizer.json") && Contains("'a'"));
}

TEST_CASE("files of a tokenizer that are links to nothing are not passed over") {
  namespace fs = std::filesystem;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const test::TempDir dir;
    test::write_file(dir / "tokenizer.json", make_byte_tokenizer()->to_json());
    fs::remove(dir / name);
    fs::create_symlink("../blobs/0", dir / name);
    CAPTURE(name);
    CHECK(tokenizers::has_tokenizer(dir.path()));
    CHECK_THAT(message_of<DataError>([&] { open_tokenizer(dir.path()); }),
               Contains((dir / name).string() + ": it is a link to ../blobs/0"));
  }
}

TEST_CASE("a pattern that forbids machine code is interpreted") {
  const auto tokenizer = tokenizer_from_json(
      R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
          "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(*NO_JIT)b"},
                            "behavior": "Isolated", "invert": false}})",
      "x.json");
  CHECK(tokenizer->encode("aba") == std::vector<int32_t>{0, 1, 0});
}

TEST_CASE("parts of a tokenizer.json that are not supported are refused by location and name") {
  const auto refusal = [](const std::string& key, const std::string& value) {
    const std::string file = R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, ")" +
                             key + "\": " + value + "}";
    return message_of<DataError>([&] { tokenizer_from_json(file, "x.json"); });
  };
  CHECK_THAT(refusal("normalizer", R"({"type": "Precompiled"})"),
             Contains("x.json.normalizer: normalizers of type 'Precompiled' are not supported"));
  CHECK_THAT(
      refusal("pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Odd"}]})"),
      Contains("x.json.pre_tokenizer.pretokenizers[0]: pre-tokenizers of type 'Odd'"));
  CHECK_THAT(refusal("pre_tokenizer", R"({"type": "Digits", "base": 16})"),
             Contains("x.json.pre_tokenizer: 'base' is not supported"));
  CHECK_THAT(refusal("pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}})"),
             Contains("the pattern '(a' is not understood"));
  CHECK_THAT(refusal("decoder", R"({"type": "CTC"})"), Contains("decoders of type 'CTC'"));
  CHECK_THAT(refusal("post_processor", R"({"type": "Other"})"),
             Contains("post-processors of type"));
  CHECK_THAT(refusal("extra", "1"), Contains("x.json: 'extra' is not supported"));
  CHECK_THAT(refusal("added_tokens", R"([{"id": 0, "content": "b"}])"),
             Contains("added token 'b' has the id 0 of the token 'a'"));
  const auto refusal_of_unk_id = [](const std::string& id) {
    const std::string unigram =
        R"({"model": {"type": "Unigram", "vocab": [["a", -1], ["b", -2]], "unk_id": )" + id + "}}";
    return message_of<DataError>([&] { tokenizer_from_json(unigram, "x.json"); });
  };
  for (const std::string id : {"9223372036854775807", "4294967296", "2", "-2"}) {
    CHECK_THAT(refusal_of_unk_id(id), Contains("unk_id " + id + " is outside the vocabulary of 2"));
  }
  // As signed numbers they would be -2^63 and -1, which is the id of a model without an unknown
  // token.
  for (const char* id : {"9223372036854775808", "18446744073709551615"}) {
    CHECK_THAT(refusal_of_unk_id(id), Contains("x.json.model.unk_id: is too large"));
  }
}

TEST_CASE("the files of byte and char tokenizers are Hugging Face's, and stay what they are") {
  for (const auto& tokenizer : {make_byte_tokenizer(), make_char_tokenizer("ab c")}) {
    const std::string text = tokenizer->to_json();
    CHECK_THAT(text, Contains("\"version\": \"1.0\"") && Contains("\"added_tokens\""));
    CHECK(tokenizer_from_json(text, "test")->type() == tokenizer->type());
  }
  // Those of earlier versions.
  const std::string head = R"({"format":"fp8train-tokenizer","version":1,"type":)";
  CHECK(tokenizer_from_json(head + R"("byte"})", "old")->type() == TokenizerType::byte);
  CHECK(tokenizer_from_json(head + R"("char","characters":["b","a"]})", "old")->encode("ab") ==
        std::vector<int32_t>{1, 0});
}

TEST_CASE("the tokenizer of stories260K has the ids of run.c") {
  const auto tokenizer =
      open_tokenizer(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "run/stories260K");
  REQUIRE(tokenizer->vocab_size() == 512);
  CHECK(tokenizer->encode("Once upon a time, there was a little dog named Max") ==
        std::vector<int32_t>{403, 407, 261, 378, 432, 383, 286, 261, 376, 400, 428, 395, 392, 412,
                             444});
  const std::string text = "Once upon a time, there was a girl named Zo\xC3\xAB.\nShe ran!  ";
  const auto ids = tokenizer->encode(text);
  CHECK(tokenizer->decode(ids) == text);
  CHECK(ids.size() < text.size() / 2 + 10);
}

}  // namespace
}  // namespace fp8train
