// Files of token ids that other programs wrote (tests/golden/make_token_files.py), and what is said
// of damaged ones.

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/corpus.h"
#include "data/readers/data_format.h"
#include "data/token_file.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

const std::filesystem::path kFolder = std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "data";

/// As make_token_files.py makes them.
std::vector<int32_t> ids(int64_t count, int64_t vocabulary) {
  std::vector<int32_t> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int32_t>(i * 7919 % vocabulary));
  }
  return values;
}

std::vector<int32_t> tokens_of(const TokenStore& store) {
  std::vector<int32_t> tokens(static_cast<size_t>(store.size()));
  store.read(0, store.size(), tokens.data());
  return tokens;
}

/// As `format: auto` reads it.
std::vector<int32_t> tokens_of(const std::filesystem::path& path, const std::string& format,
                               int64_t vocabulary = 128256) {
  CHECK(format_of(path, "auto").name == format);
  return tokens_of(*format_of(path, "auto").open(path, vocabulary, true));
}

std::string refusal(const DataFormat& format, const std::filesystem::path& path,
                    int64_t vocabulary = 128256) {
  const std::string message =
      message_of<DataError>([&] { tokens_of(*format.open(path, vocabulary, true)); });
  CHECK_THAT(message, Contains(path.stem().string()));
  return message;
}

template <typename Value>
void set(std::string& bytes, size_t at, Value value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// A copy of an indexed data set, with the bytes of its index changed.
class IndexedCopy {
 public:
  explicit IndexedCopy(const std::string& name)
      : data_(test::read_file(kFolder / (name + ".bin"))),
        index_(test::read_file(kFolder / (name + ".idx"))) {}

  template <typename Change>
  std::string refused(const Change& change) {
    std::string data = data_;
    std::string index = index_;
    change(data, index);
    test::write_file(folder_ / "x.bin", data);
    test::write_file(folder_ / "x.idx", index);
    return refusal(indexed_format(), folder_ / "x.bin");
  }

  template <typename Change>
  std::vector<int32_t> read(const Change& change) {
    std::string index = index_;
    change(index);
    test::write_file(folder_ / "x.bin", data_);
    test::write_file(folder_ / "x.idx", index);
    return tokens_of(folder_ / "x.bin", "indexed");
  }

 private:
  test::TempDir folder_;
  std::string data_, index_;
};

}  // namespace

TEST_CASE("arrays of NumPy are read in every integer type") {
  CHECK(tokens_of(kFolder / "u16.npy", "npy") == ids(300, 50257));
  CHECK(tokens_of(kFolder / "i32.npy", "npy") == ids(60, 128256));  // row by row
  CHECK(tokens_of(kFolder / "i64.npy", "npy") == ids(40, 128256));
  CHECK(tokens_of(kFolder / "u8.npy", "npy") == ids(40, 200));
  CHECK(tokens_of(kFolder / "version2.npy", "npy") == ids(10, 50257));
}

TEST_CASE("the order of an array with a single extent does not matter") {
  std::string by_columns = test::read_file(kFolder / "u16.npy");
  const size_t order = by_columns.find("False, ");
  REQUIRE(order != std::string::npos);
  by_columns.replace(order, 7, "True,  ");
  const test::TempDir folder;
  test::write_file(folder / "x.npy", by_columns);
  CHECK(tokens_of(folder / "x.npy", "npy") == ids(300, 50257));
}

TEST_CASE("arrays that are no token ids are refused") {
  CHECK_THAT(refusal(npy_format(), kFolder / "by_columns.npy"), Contains("by columns"));
  CHECK_THAT(refusal(npy_format(), kFolder / "big_endian.npy"), Contains("'>u2'"));
  CHECK_THAT(refusal(npy_format(), kFolder / "float.npy"), Contains("'<f4'"));
  CHECK_THAT(refusal(npy_format(), kFolder / "negative.npy"), Contains("token -2 at offset 1"));
  CHECK_THAT(refusal(npy_format(), kFolder / "u16.npy", 5000), Contains("outside the vocabulary"));
}

TEST_CASE("damaged arrays are refused with the location") {
  const test::TempDir folder;
  const std::string good = test::read_file(kFolder / "u16.npy");
  const auto refused = [&](const std::string& bytes) {
    test::write_file(folder / "x.npy", bytes);
    return refusal(npy_format(), folder / "x.npy");
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    const size_t at = bytes.find(from);
    REQUIRE(at != std::string::npos);
    return bytes.replace(at, from.size(), to);
  };
  constexpr const char* kNoHeader = "x.npy: the header is damaged: it is not {'descr': ..., 'fort";
  CHECK_THAT(refused(good.substr(0, good.size() - 1)), Contains("300 elements") && Contains("599"));
  CHECK_THAT(refused(good + "xx"), Contains("602 bytes"));
  CHECK_THAT(refused(good + "x"), Contains("601 bytes"));
  const std::string spaces(size_t{2} << 20, ' ');
  CHECK_THAT(refused(std::string("\x93NUMPY\x02\x00\x00\x00\x20\x00", 12) + spaces),
             Contains("damaged: it says that it has 2097152 bytes, and at most 1048576 are"));
  CHECK_THAT(refused(good.substr(0, 60)),
             Contains("is cut off in its header, which ends at byte 128: it has 60 bytes"));
  CHECK_THAT(refused(good.substr(0, 9)),
             Contains("is cut off in its header, which ends after byte 10: it has 9 bytes"));
  CHECK_THAT(refused(good.substr(0, 5)), Contains("5 bytes"));
  CHECK_THAT(refused("\x93NUMPX" + good.substr(6)), Contains("not those of a .npy file"));
  CHECK_THAT(refused(replaced("\x93NUMPY\x01", "\x93NUMPY\x04")), Contains("version 4"));
  CHECK_THAT(refused(replaced("(300,)", "(9999999999999999999,)")), Contains("2^63"));
  CHECK_THAT(refused(replaced("(300,)", "(4611686018427387904,2)")), Contains("2^63"));
  CHECK_THAT(refused(replaced("(300,)", "(-30,)")), Contains("not a whole number"));
  CHECK_THAT(refused(replaced("'descr'", "'detail'")), Contains("its keys are not"));
  CHECK_THAT(refused(replaced("'descr': '<u2',", "               ")), Contains("its keys are not"));
  CHECK_THAT(refused(replaced("'<u2'", "[('a', '<u2')]")), Contains("records"));
  CHECK_THAT(refused(replaced("False", "Maybe")), Contains(kNoHeader));
  CHECK_THAT(refused(replaced("False", "0    ")), Contains("True or False"));
  CHECK_THAT(refused(replaced("(300,), }", "(300,), 'x")), Contains(kNoHeader));
  CHECK_THAT(refused(replaced("(300,), }", "(300,), }}")), Contains(kNoHeader));
}

TEST_CASE("indexed data sets are read in the order of their sequences") {
  CHECK(tokens_of(kFolder / "indexed_u16.bin", "indexed") == ids(250, 50257));
  CHECK(tokens_of(kFolder / "indexed_i32.bin", "indexed") == ids(60, 128256));
  const auto store = indexed_format().open(kFolder / "indexed_i32.bin", 128256, true);
  std::vector<int32_t> middle(30);
  store->read(17, 30, middle.data());
  const std::vector<int32_t> all = ids(60, 128256);
  CHECK(std::equal(middle.begin(), middle.end(), all.begin() + 17));
}

TEST_CASE("sequences of an index may lie anywhere in the data") {
  // Three sequences of 20, 15 and 25 tokens: lengths from byte 34, pointers from byte 46.
  IndexedCopy copy("indexed_i32");
  const std::vector<int32_t> read = copy.read([](std::string& index) {
    set<int32_t>(index, 34, 5);
    set<int64_t>(index, 46, 40);   // tokens 10 to 14
    set<int64_t>(index, 54, 0);    // 0 to 14
    set<int64_t>(index, 62, 140);  // 35 to 59
  });
  const std::vector<int32_t> all = ids(60, 128256);
  std::vector<int32_t> wanted(all.begin() + 10, all.begin() + 15);
  wanted.insert(wanted.end(), all.begin(), all.begin() + 15);
  wanted.insert(wanted.end(), all.begin() + 35, all.end());
  CHECK(read == wanted);
}

TEST_CASE("damaged indexed data sets are refused with file and location") {
  IndexedCopy copy("indexed_i32");
  const auto index_with = [&](size_t at, auto value) {
    return copy.refused([&](std::string&, std::string& index) { set(index, at, value); });
  };
  CHECK_THAT(index_with(0, 'X'), Contains("x.idx") && Contains("its format is raw_u16"));
  CHECK_THAT(index_with(9, uint64_t{2}), Contains("version 2"));
  CHECK_THAT(index_with(17, uint8_t{7}), Contains("byte 17") && Contains("type 7"));
  CHECK_THAT(index_with(18, uint64_t{4}), Contains("4 sequences"));
  CHECK_THAT(index_with(18, ~uint64_t{0}), Contains("sequences"));
  CHECK_THAT(index_with(26, uint64_t{1} << 61), Contains("boundaries"));
  CHECK_THAT(index_with(34, int32_t{-1}), Contains("sequence 0 has -1 tokens"));
  CHECK_THAT(index_with(42, int32_t{26}), Contains("sequence 2 has 26 tokens"));
  CHECK_THAT(index_with(42, int32_t{24}), Contains("end at byte 236") && Contains("240 bytes"));
  CHECK_THAT(index_with(46, int64_t{-4}), Contains("from byte -4"));
  CHECK_THAT(index_with(46, int64_t{2}), Contains("from byte 2"));
  CHECK_THAT(index_with(62, int64_t{1} << 62), Contains("sequence 2"));
  CHECK_THAT(index_with(70, int64_t{1}), Contains("byte 70: document 0 begins at sequence 1"));
  CHECK_THAT(index_with(78, int64_t{4}), Contains("document 2 begins at sequence 3, after 4"));
  CHECK_THAT(index_with(86, int64_t{2}), Contains("end at sequence 2 of 3"));
  CHECK_THAT(copy.refused([](std::string& data, std::string&) { data.resize(200); }),
             Contains("200 bytes"));
  CHECK_THAT(copy.refused([](std::string& data, std::string&) { data += "1234"; }),
             Contains("240") && Contains("244 bytes"));
  CHECK_THAT(copy.refused([](std::string&, std::string& index) { index.resize(33); }),
             Contains("33 bytes"));
  CHECK_THAT(copy.refused([](std::string&, std::string& index) { index.pop_back(); }),
             Contains("x.idx"));
  CHECK_THAT(copy.refused([](std::string& data, std::string&) { set<int32_t>(data, 8, -5); }),
             Contains("token -5 at offset 2 (byte 8)"));
  CHECK_THAT(refusal(indexed_format(), kFolder / "indexed_modes.bin"), Contains("only text"));
  CHECK_THAT(refusal(indexed_format(), kFolder / "indexed_i32.idx"), Contains("name the .bin"));
  CHECK_THAT(refusal(indexed_format(), kFolder / "u16.npy"), Contains("u16.idx"));
}

TEST_CASE("a corpus notes the index of an indexed data set among its files") {
  DataSettings settings;
  settings.tokenizer = "none";
  settings.train = {{(kFolder / "indexed_u16.bin").string(), "auto", 1.0}};
  settings.val_fraction = 0.1;
  const auto tokenizer = make_tokenizer(settings);
  const CorpusSplits splits = open_corpora(settings, *tokenizer, 50257);
  CHECK(splits.train.size() == 225);
  CHECK(splits.val.size() == 25);
  REQUIRE(splits.train.files().size() == 2);
  CHECK(splits.train.files()[1].path == (kFolder / "indexed_u16.idx").string());
}

}  // namespace fp8train
