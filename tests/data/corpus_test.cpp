#include "data/corpus.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/readers/data_format.h"
#include "data/text_source.h"
#include "data/token_file.h"
#include "support/files.h"
#include "support/temp_dir.h"
#include "support/token_shard.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::vector<int32_t> tokens_of(const Corpus& corpus) {
  std::vector<int32_t> tokens(static_cast<size_t>(corpus.size()));
  corpus.read(0, corpus.size(), tokens.data());
  return tokens;
}

DataSettings one_source(const std::string& path, const std::string& format = "auto") {
  DataSettings settings;
  settings.train = {{path, format, 1.0}};
  return settings;
}

TEST_CASE("tiny Shakespeare splits into 1,003,854 and 111,540 characters") {
  const auto path = test::shared_data("tinyshakespeare.txt");
  if (path.empty()) return;
  DataSettings settings = one_source(path.string());
  settings.val_fraction = 0.1;
  settings.tokenizer = "char";
  const auto tokenizer = make_tokenizer(settings);
  CHECK(tokenizer->vocab_size() == 65);
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 65);
  CHECK(splits.train.size() == 1003854);
  CHECK(splits.val.size() == 111540);
  std::vector<int32_t> head(13);
  splits.train.read(0, 13, head.data());
  CHECK(tokenizer->decode(head) == "First Citizen");
  const auto bytes = make_byte_tokenizer();
  CHECK(open_corpora(settings, *bytes, 258).train.size() == 1003854);
}

TEST_CASE("text splits count characters or bytes, and never cut a code point of a subword text") {
  const test::TempDir dir;
  // 10 characters, 14 bytes.
  test::write_file(dir / "t.txt",
                   "ab\xC3\xA9"
                   "cd\xE2\x82\xAC"
                   "ef\xC3\xA9g");
  DataSettings settings = one_source(dir / "t.txt");
  settings.val_fraction = 0.3;
  settings.tokenizer = "char";
  const auto characters = make_tokenizer(settings);
  const CorpusSplits by_character = open_corpora(settings, *characters, 100);
  CHECK(by_character.train.size() == 7);
  CHECK(characters->decode(tokens_of(by_character.val)) == "f\xC3\xA9g");
  const auto bytes = make_byte_tokenizer();
  const CorpusSplits by_byte = open_corpora(settings, *bytes, 258);
  CHECK(by_byte.train.size() == 9);
  CHECK(by_byte.val.size() == 5);
}

TEST_CASE("several text files are documents; the split falls on their total") {
  const test::TempDir dir;
  test::write_file(dir / "b.txt", "567890");
  test::write_file(dir / "a.txt", "1234");
  DataSettings settings = one_source((dir.path() / "*.txt").string());
  settings.val_fraction = 0.2;
  const auto tokenizer = make_byte_tokenizer();
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 258);
  CHECK(tokens_of(splits.train) ==
        std::vector<int32_t>{'1', '2', '3', '4', 257, '5', '6', '7', '8', 257});
  CHECK(tokens_of(splits.val) == std::vector<int32_t>{'9', '0', 257});
}

TEST_CASE("JSON lines: one document per line, followed by EOS; split by documents") {
  const test::TempDir dir;
  test::write_file(dir / "d.jsonl",
                   "{\"text\":\"ab\"}\n\n{\"id\":1,\"text\":\"\\u00e9\"}\r\n{\"text\":\"c\"}");
  DataSettings settings = one_source(dir / "d.jsonl");
  const auto tokenizer = make_byte_tokenizer();
  CHECK(tokens_of(open_corpora(settings, *tokenizer, 258).train) ==
        std::vector<int32_t>{'a', 'b', 257, 0xC3, 0xA9, 257, 'c', 257});
  settings.val_fraction = 0.34;
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 258);
  CHECK(tokens_of(splits.train) == std::vector<int32_t>{'a', 'b', 257});
  CHECK(splits.val.size() == 5);
}

TEST_CASE("a malformed JSON line names file and line") {
  const test::TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  const auto refusal = [&](const std::string& text) {
    test::write_file(dir / "d.jsonl", text);
    return message_of<DataError>(
        [&] { open_corpora(one_source(dir / "d.jsonl"), *tokenizer, 258); });
  };
  CHECK_THAT(refusal("{\"text\":\"a\"}\n{\"text\":\n"),
             Contains("d.jsonl:2:1: not JSON: this { is not closed"));
  CHECK_THAT(refusal("\n\n[1]\n"),
             Contains("d.jsonl:3: the line is not a JSON object but a number"));
  CHECK_THAT(refusal("{\"body\":\"a\"}"), Contains("d.jsonl:1: no key 'text' (keys here: body)"));
  CHECK_THAT(refusal("{\"text\":3}"), Contains("not a string but a number"));
  CHECK_THAT(refusal("{\"text\":\"\xE9\"}"),
             Contains("d.jsonl:1:10: byte 0xE9 is not UTF-8; if the file is Latin-1: iconv"));
  CHECK_THAT(refusal(R"({"text": "a \ud83d b"})"),
             Contains("d.jsonl:1:13: not JSON: half of a surrogate pair, \\ud83d"));
  CHECK_THAT(refusal(""), Contains("no tokens"));
  for (const auto& [array, message] :
       {std::pair{"[{\"text\": \"a\"},\n{\"text\": 1}]", "d.jsonl:2: 'text' is not a string"},
        {"[{\"text\": \"a\"},\n,{\"text\": \"b\"}]", "d.jsonl:2: nothing before , in the array"},
        {"[{\"text\": \"a\"}\n", "the array is not closed before the file ends"},
        {"[{\"text\": \"a\"}]\n{}", "d.jsonl:2: more text after the end of the array"}}) {
    CHECK_THAT(refusal(array), Contains(message));
  }
}

TEST_CASE("records are lines or elements of an array, whatever marks the bytes begin with") {
  const test::TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  const std::vector<int32_t> expected = {'[', '"', ',', 257, 'b', 257};
  for (const char* text :
       {"{\"text\": \"[\\\",\"}\n{\"text\": \"b\"}\n",
        "\xEF\xBB\xBF{\"text\": \"[\\\",\"}\r\n\r\n{\"text\": \"b\", \"score\": NaN}",
        " [ {\"text\": \"[\\\",\"},\n {\n\"text\":\n \"b\", \"more\": [{}, -Infinity]}\n]\n",
        "[{\"text\": \"[\\\",\"}, {\"text\": \"b\"}]"}) {
    CAPTURE(text);
    for (const char* name : {"d.jsonl", "d.json"}) {
      test::write_file(dir / name, text);
      CHECK(tokens_of(open_corpora(one_source(dir / name), *tokenizer, 258).train) == expected);
    }
  }
}

TEST_CASE("bad records are counted, and left out where that is asked for") {
  const test::TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  test::write_file(dir / "d.jsonl", "{\"text\": \"a\"}\n{\"text\": null}\n{\n{\"id\": 1}\n");
  DataSettings settings = one_source(dir / "d.jsonl");
  const auto open = [&] { return open_corpora(settings, *tokenizer, 258); };
  CHECK_THAT(message_of<DataError>(open),
             Contains("d.jsonl:2: 'text' is not a string but null; 2 more records of the file are "
                      "bad, the next one is") &&
                 Contains("d.jsonl:3:1: not JSON") && Contains("data.bad_lines: skip"));
  settings.bad_lines = BadLines::skip;
  CHECK(tokens_of(open().train) == std::vector<int32_t>{'a', 257});
}

TEST_CASE("tables, records under another name and other files are not learned as text") {
  const test::TempDir dir;
  const auto tokenizer = make_byte_tokenizer();
  const std::pair<const char*, std::pair<std::string, const char*>> cases[] = {
      {"t.csv", {"a,b\n1,2\n", "tables are not read"}},
      {"t.tsv", {"a\tb\n", "tables are not read"}},
      {"t.CSV", {"a,b\n1,2\n", "tables are not read"}},
      {"table.txt",
       {"a,b\n1,2\n3,4\n",
        "looks like a table, and tables are not read; write JSON lines of it, for example "
        "with DuckDB: duckdb -c \"COPY (FROM read_csv('"}},
      {"t.txt", {"{\"text\": \"a\"}\n", "set format: jsonl"}},
      {"t", {" [{\"messages\": []}]", "set format: chat"}},
      {"pretty.txt", {"[\n  {\n    \"text\": \"a\"\n  }\n]\n", "set format: jsonl"}},
      {"object.txt",
       {"{\n  \"data\": []\n}\n", "a JSON object over several lines; write a record"}},
      {"texts.md", {"[\n \"a\",\n \"b\"]\n", "a JSON array without objects; write a record"}},
      {"u.txt",
       {std::string("\xFF\xFE"
                    "a\0",
                    4),
        "UTF-16 with a byte order mark"}},
      {"x.xlsx", {"PK\3\4", "zip or Excel files are not read"}},
      {"paper.txt",
       {"%PDF-1.7\n",
        "PDF files are not read; write its text to another file, for example: "
        "pdftotext"}},
      {"x.txt.bz2", {"BZh91AY", "bzip2 files are not read; unpack it: bunzip2 -k"}}};
  for (const auto& [name, content] : cases) {
    CAPTURE(name);
    test::write_file(dir / name, content.first);
    DataSettings settings = one_source(dir / name);
    CHECK_THAT(message_of<DataError>([&] { open_corpora(settings, *tokenizer, 258); }),
               Contains(content.second));
    settings.train.front().format = "text";
    CHECK_NOTHROW(open_corpora(settings, *tokenizer, 258));
  }
  const std::string long_line((64U << 20U) + 2, 'a');  // longer than a line of records may be
  for (const std::string& text : {std::string("{ this is no JSON }"), std::string("[ ] a task"),
                                  std::string("[Music] a"), std::string("[ open"), long_line}) {
    test::write_file(dir / "code.txt", text);
    CHECK(format_of(dir / "code.txt", "auto").name == "text");
  }
}

TEST_CASE("an object over several lines is no file of records") {
  const test::TempDir dir;
  for (const char* name : {"d.json", "d.jsonl"}) {
    test::write_file(dir / name, "{\n  \"version\": 1,\n  \"data\": [{\n\"text\": \"a\"}]\n}\n");
    CHECK_THAT(message_of<DataError>([&] { format_of(dir / name, "auto"); }),
               Contains("a JSON object over several lines") && Contains("jq -c") &&
                   !Contains("format: text"));
  }
  test::write_file(dir / "b.jsonl", "{\"text\": \"a\n{\"text\": \"b\n");  // for its reader
  CHECK(format_of(dir / "b.jsonl", "auto").name == "jsonl");
}

TEST_CASE("names end in any case") {
  const test::TempDir dir;
  test::write_file(dir / "A.JSONL", "{\"text\": \"a\"}\n");
  test::write_file(dir / "B.Txt", "b");
  test::write_file(dir / "C.BIN", "ab\x01\x02");
  CHECK(format_of(dir / "A.JSONL", "auto").name == "jsonl");
  CHECK(format_of(dir / "C.BIN", "auto").name == "raw_u16");
  CHECK(expand_path(dir.path().string()).size() == 3);
}

TEST_CASE("a bad first record does not decide the format") {
  const test::TempDir dir;
  test::write_file(dir / "d.jsonl", "{\"messages\": [\n{\"messages\": []}\n");
  CHECK(format_of(dir / "d.jsonl", "auto").name == "chat");
}

TEST_CASE("long JSON lines cross read boundaries intact") {
  const test::TempDir dir;
  std::string text;
  std::vector<int32_t> expected;
  for (int i = 0; i < 5; ++i) {
    const std::string document(500000 + i, static_cast<char>('a' + i));
    text += "{\"text\":\"" + document + "\"}\n";
    expected.insert(expected.end(), document.size(), 'a' + i);
    expected.push_back(257);
  }
  test::write_file(dir / "d.jsonl", text);
  const auto tokenizer = make_byte_tokenizer();
  CHECK(tokens_of(open_corpora(one_source(dir / "d.jsonl"), *tokenizer, 258).train) == expected);
}

TEST_CASE("token files make one array across shards, in sorted order") {
  const test::TempDir dir;
  test::write_shard(dir / "train_001.bin", std::vector<int32_t>{5, 6, 7}, 50257);
  test::write_shard(dir / "train_000.bin", std::vector<int32_t>{1, 2, 3, 4}, 50257);
  DataSettings settings = one_source((dir.path() / "train_*.bin").string());
  const auto tokenizer = make_byte_tokenizer();
  const CorpusSplits whole = open_corpora(settings, *tokenizer, 50257);
  CHECK(tokens_of(whole.train) == std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7});
  CHECK(whole.val.size() == 0);
  int32_t part[3];
  whole.train.read(3, 3, part);
  CHECK(std::vector<int32_t>(part, part + 3) == std::vector<int32_t>{4, 5, 6});
  CHECK_THROWS_AS(whole.train.read(5, 3, part), InternalError);
  settings.val_fraction = 0.5;
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 50257);
  CHECK(tokens_of(splits.train) == std::vector<int32_t>{1, 2, 3});
  CHECK(tokens_of(splits.val) == std::vector<int32_t>{4, 5, 6, 7});
  settings.val = {{(dir / "train_001.bin").string(), "llmc", 1.0}};
  const CorpusSplits named = open_corpora(settings, *tokenizer, 50257);
  CHECK(named.train.size() == 7);
  CHECK(named.val.size() == 3);
}

TEST_CASE("the format is detected from content and name") {
  const test::TempDir dir;
  test::write_shard(dir / "a", std::vector<int32_t>{1}, 10);
  test::write_file(dir / "b.bin", "ab\x01\x02");
  test::write_file(dir / "c.txt", "hello");
  test::write_file(dir / "d.jsonl", "{}");
  test::write_file(dir / "e.npy", std::string("\x93NUMPY\1\0", 8));
  test::write_file(dir / "f", std::string("a\0b", 3));
  CHECK(format_of(dir / "a", "auto").name == "llmc");
  CHECK(format_of(dir / "b.bin", "auto").name == "raw_u16");
  CHECK(format_of(dir / "c.txt", "").name == "text");
  CHECK(format_of(dir / "d.jsonl", "auto").name == "jsonl");
  CHECK(format_of(dir / "d.jsonl", "text").name == "text");
  CHECK(format_of(dir / "e.npy", "auto").name == "npy");
  CHECK_THAT(message_of<DataError>([&] { format_of(dir / "f", "auto"); }), Contains("cannot tell"));
  CHECK_THROWS_AS(format_of(dir / "f", "parquet"), ConfigError);
  CHECK_THAT(message_of<DataError>([&] { expand_path((dir.path() / "z*").string()); }),
             Contains("no file matches"));
}

std::string bytes_of(const std::vector<uint16_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(uint16_t)};
}

TEST_CASE("a .bin file without a header that does not look like 16-bit ids is refused") {
  const test::TempDir dir;
  std::vector<uint16_t> ids;
  std::vector<uint16_t> wide;   // 32-bit ids below 65536
  std::vector<uint16_t> wider;  // 32-bit ids below 131072
  for (uint32_t i = 0; i < 20000; ++i) {
    const uint32_t id = i * 7919U % 128256U;
    ids.push_back(static_cast<uint16_t>(id % 50257));
    wide.insert(wide.end(), {static_cast<uint16_t>(id % 50257), 0});
    wider.insert(wider.end(), {static_cast<uint16_t>(id), static_cast<uint16_t>(id >> 16)});
  }
  test::write_file(dir / "ids.bin", bytes_of(ids));
  CHECK(format_of(dir / "ids.bin", "auto").name == "raw_u16");
  std::vector<uint16_t> characters;  // of a small vocabulary, as nanoGPT's prepare.py writes them
  for (uint32_t i = 0; i < 20000; ++i) {
    characters.push_back(static_cast<uint16_t>(i * 7919U % 65U));
  }
  test::write_file(dir / "characters.bin", bytes_of(characters));
  CHECK(format_of(dir / "characters.bin", "auto").name == "raw_u16");
  std::vector<uint16_t> uneven;  // a few small ids at every second position, of a small vocabulary
  std::vector<uint16_t> late;    // nothing but 0 at odd positions, until the file's middle
  for (uint32_t i = 0; i < 20000; ++i) {
    uneven.push_back(static_cast<uint16_t>(i % 2 == 0 ? i % 255U : i % 4U));
    late.push_back(static_cast<uint16_t>(i % 2 == 0 || i > 9000 ? i : 0));
  }
  test::write_file(dir / "uneven.bin", bytes_of(uneven));
  CHECK(format_of(dir / "uneven.bin", "auto").name == "raw_u16");
  test::write_file(dir / "late.bin", bytes_of(late));
  CHECK(format_of(dir / "late.bin", "auto").name == "raw_u16");
  test::write_file(dir / "few.bin", bytes_of({1, 0, 2, 0}));
  CHECK(format_of(dir / "few.bin", "auto").name == "raw_u16");
  test::write_file(dir / "none.bin", "");
  CHECK(format_of(dir / "none.bin", "auto").name == "raw_u16");

  test::write_file(dir / "wide.bin", bytes_of(wide));
  test::write_file(dir / "wider.bin", bytes_of(wider));
  std::string text;
  while (text.size() < 10000) {
    text += "a \xE2\x82\xAC and more of it\n";
  }
  test::write_file(dir / "text.bin", text);
  test::write_file(dir / "megatron.bin", bytes_of(ids));
  test::write_file(dir / "megatron.idx", "MMIDIDX");
  const auto refusal = [&](const char* name) {
    CHECK(format_of(dir / name, "raw_u16").name == "raw_u16");
    return message_of<DataError>([&] { format_of(dir / name, "auto"); });
  };
  CHECK_THAT(refusal("wide.bin"),
             Contains("wide.bin") && Contains("32-bit") && Contains("set format: raw_u16"));
  CHECK_THAT(refusal("wider.bin"), Contains("32-bit"));
  std::vector<uint16_t> upper_first;  // 32-bit ids, the upper half first
  for (const uint16_t id : ids) {
    upper_first.insert(upper_first.end(), {0, id});
  }
  test::write_file(dir / "upper_first.bin", bytes_of(upper_first));
  CHECK_THAT(refusal("upper_first.bin"), Contains("32-bit"));
  CHECK_THAT(refusal("text.bin"),
             Contains("its content is text; set format: " + alternatives(text_format_names())));
  CHECK(format_of(dir / "megatron.bin", "auto").name == "indexed");
}

TEST_CASE("settings that cannot be honoured are refused") {
  const test::TempDir dir;
  test::write_file(dir / "t.txt", "hello");
  const auto tokenizer = make_byte_tokenizer();
  DataSettings settings = one_source(dir / "t.txt");
  settings.val_fraction = 1.0;
  CHECK_THROWS_AS(open_corpora(settings, *tokenizer, 258), ConfigError);
  settings.val_fraction = 0.0;
  CHECK_THAT(message_of<ConfigError>([&] { open_corpora(settings, *tokenizer, 256); }),
             Contains("258 ids") && Contains("vocab_size is 256"));
  settings.train.clear();
  CHECK_THROWS_AS(open_corpora(settings, *tokenizer, 258), ConfigError);
}

TEST_CASE("the fingerprint follows the content") {
  std::vector<int32_t> tokens(100000, 3);
  const auto fingerprint = [&] {
    Corpus corpus;
    corpus.append(memory_store(tokens), 0, static_cast<int64_t>(tokens.size()));
    return corpus.fingerprint();
  };
  const std::string before = fingerprint();
  CHECK(before.size() == 16);
  CHECK(fingerprint() == before);
  tokens.back() = 4;
  CHECK(fingerprint() != before);
  tokens.back() = 3;
  tokens.push_back(3);
  CHECK(fingerprint() != before);
}

TEST_CASE("a memory store keeps ids above 16 bits") {
  Corpus corpus;
  corpus.append(memory_store({1, 65536, 128000}), 0, 3);
  CHECK(tokens_of(corpus) == std::vector<int32_t>{1, 65536, 128000});
}

}  // namespace
}  // namespace fp8train
