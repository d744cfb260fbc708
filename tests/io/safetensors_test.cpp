#include "io/safetensors/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "base/error.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using Catch::Contains;
using test::message_of;

std::filesystem::path golden_file(const std::string& name) {
  return std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "io" / name;
}

std::string file_bytes(const std::string& json, const std::string& data) {
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + json + data;
}

/// What the reader says about a header over `data_bytes` of data.
std::string refusal(const std::string& json, uint64_t data_bytes) {
  return message_of<CheckpointError>([&] { parse_safetensors_header(json, data_bytes, "x.st"); });
}

std::string tensor(const std::string& name, const std::string& fields) {
  return "\"" + name + "\":{" + fields + "}";
}

std::string object(const std::string& members) {
  return std::string("{").append(members).append("}");
}

const std::string kEight = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";

TEST_CASE("the golden file of the format reads as 1 and -2") {
  const std::string json = R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  )";
  const test::TempDir dir;
  test::write_file(dir / "w.safetensors",
                   file_bytes(json, std::string("\0\0\x80\x3f\0\0\0\xc0", 8)));
  REQUIRE(std::filesystem::file_size(dir / "w.safetensors") == 72);
  const SafetensorsFile file(dir / "w.safetensors");
  REQUIRE(file.find("w") != nullptr);
  CHECK(file.find("w")->shape == std::vector<int64_t>{2});
  CHECK(file.read_f32(*file.find("w")) == std::vector<float>{1.0F, -2.0F});
  CHECK(file.find("v") == nullptr);
}

TEST_CASE("a file of the reference implementation reads in every dtype") {
  const SafetensorsFile file(golden_file("mixed.safetensors"));
  CHECK(file.header().entries.size() == 9);
  CHECK(file.header().metadata.at("note") == "caf\xC3\xA9 \"q\"");
  for (const char* name : {"f64", "f32", "bf16", "f16"}) {
    const SafetensorsEntry* entry = file.find(name);
    REQUIRE(entry != nullptr);
    const std::vector<float> values = file.read_f32(*entry);
    REQUIRE(static_cast<int64_t>(values.size()) == entry->count());
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(values[i] == static_cast<float>(i) / 8 - 1);
    }
  }
  CHECK(file.find("scalar")->shape.empty());
  CHECK(file.read_f32(*file.find("scalar")) == std::vector<float>{2.5F});
  CHECK(file.find("empty")->shape == std::vector<int64_t>{0, 4});
  CHECK(file.read_f32(*file.find("empty")).empty());
  int64_t numbers[2];
  file.read(*file.find("i64"), numbers);
  CHECK(numbers[0] == -1);
  CHECK(numbers[1] == int64_t{1} << 40);
  CHECK(file.find("e4m3")->type.dtype == DType::e4m3);
  CHECK(file.find("f64")->type.dtype == DType::f64);
  CHECK(file.find("bool")->type.name == "BOOL");
  CHECK_FALSE(file.find("bool")->type.dtype.has_value());
  CHECK_FALSE(safetensors_type("F33").has_value());
  CHECK_FALSE(safetensors_type("").has_value());
  CHECK_THROWS_AS(safetensors_type(DType::f64), InternalError);
  CHECK_THAT(message_of<CheckpointError>([&] { file.read_f32(*file.find("i64")); }),
             Contains("'i64' is I64"));
}

TEST_CASE("the writer's bytes are those of the reference implementation") {
  const float four[] = {-1, -0.875F, -0.75F, -0.625F, -0.5F, -0.375F};
  const uint16_t half[] = {0xBF80, 0xBF60, 0xBF40};
  const SafetensorsFile reference(golden_file("written.safetensors"));
  std::vector<uint8_t> codes(5);
  reference.read(*reference.find("codes"), codes.data());
  const std::vector<TensorBytes> tensors = {{"half", DType::bf16, {3}, half},
                                            {"w.b", DType::f32, {2, 3}, four},
                                            {"codes", DType::e4m3, {5}, codes.data()},
                                            {"w.a", DType::f32, {2}, four}};
  const test::TempDir dir;
  write_safetensors(tensors, {}, dir / "ours.safetensors");
  CHECK(test::read_file(dir / "ours.safetensors") ==
        test::read_file(golden_file("written.safetensors")));
}

TEST_CASE("what is written is read back, for every dtype") {
  const test::TempDir dir;
  std::string bytes(64, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 5);
  std::vector<TensorBytes> tensors;
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2, DType::e8m0, DType::i8,
        DType::u8, DType::u16, DType::i32, DType::i64}) {
    tensors.push_back({std::string(name_of(dtype)), dtype, {2, 1, 3}, bytes.data()});
  }
  tensors.push_back({"none", DType::f32, {0}, nullptr});
  tensors.push_back({"one \"quoted\" \xC3\xA9", DType::f32, {}, bytes.data()});
  write_safetensors(tensors, {{"step", "7"}}, dir / "all.safetensors");
  const SafetensorsFile file(dir / "all.safetensors");
  CHECK(file.header().metadata ==
        std::map<std::string, std::string>{{"format", "pt"}, {"step", "7"}});
  for (const TensorBytes& written : tensors) {
    const SafetensorsEntry* entry = file.find(written.name);
    REQUIRE(entry != nullptr);
    CHECK(entry->shape == written.shape);
    CHECK(entry->type.dtype == written.dtype);
    std::string read(entry->bytes(), '\0');
    file.read(*entry, read.data());
    CHECK(read ==
          bytes.substr(0, safetensors_entry(written.name, written.dtype, written.shape).bytes()));
  }
  tensors.push_back(tensors.front());
  CHECK_THROWS_AS(write_safetensors(tensors, {}, dir / "twice.safetensors"), CheckpointError);
  CHECK_FALSE(std::filesystem::exists(dir / "twice.safetensors"));
}

TEST_CASE("the header length is checked against the file before anything is allocated") {
  const test::TempDir dir;
  const auto path = dir / "x.safetensors";
  const auto opening = [&](const std::string& bytes) {
    test::write_file(path, bytes);
    return message_of<CheckpointError>([&] { SafetensorsFile{path}; });
  };
  CHECK_THAT(opening(""), Contains("0 bytes"));
  CHECK_THAT(opening("1234567"), Contains("7 bytes"));
  const std::string good = file_bytes(object(tensor("w", kEight)), "12345678");
  test::write_file(path, good);
  CHECK_NOTHROW(SafetensorsFile(path));
  std::string huge = good;
  std::memset(huge.data(), 0xFF, 8);
  CHECK_THAT(opening(huge), Contains("18446744073709551615"));
  CHECK_THAT(opening(good.substr(0, 20)), Contains("header of 54 bytes"));
  CHECK_THAT(opening(good.substr(0, good.size() - 1)), Contains("7 bytes of data"));
  CHECK_THAT(opening(good + "9"), Contains("9 bytes of data"));
  CHECK_THROWS_AS(SafetensorsFile(dir / "none.safetensors"), CheckpointError);
  CHECK_THROWS_AS(SafetensorsFile(dir.path()), CheckpointError);
}

TEST_CASE("a file cut after opening is an error, not a crash") {
  const test::TempDir dir;
  const auto path = dir / "x.safetensors";
  test::write_file(path, file_bytes(object(tensor("w", kEight)), "12345678"));
  const SafetensorsFile file(path);
  std::filesystem::resize_file(path, 66);
  CHECK_THROWS_AS(file.read_f32(*file.find("w")), CheckpointError);
}

TEST_CASE("valid headers of unusual form are accepted") {
  const auto count = [](const std::string& json, uint64_t bytes) {
    return parse_safetensors_header(json, bytes, "x").entries.size();
  };
  CHECK(count("{}", 0) == 0);
  CHECK(count("{}     ", 0) == 0);
  CHECK(count(R"({"__metadata__":{}})", 0) == 0);
  // Out of order, fields in another order, a zero-size tensor at a boundary.
  CHECK(count(object(tensor("b", R"("shape":[1],"data_offsets":[4,8],"dtype":"I32")") + "," +
                     tensor("e", R"("dtype":"F32","shape":[0],"data_offsets":[4,4])") + "," +
                     tensor("a", R"("dtype":"F32","shape":[],"data_offsets":[0,4])")),
              8) == 3);
  CHECK(count(object(tensor("s", R"("dtype":"F4","shape":[3,2],"data_offsets":[0,3])")), 3) == 1);
}

TEST_CASE("every rule of the header is enforced") {
  CHECK_THAT(refusal("", 0), Contains("'{'"));
  CHECK_THAT(refusal(" {}", 0), Contains("'{'"));
  CHECK_THAT(refusal("[]", 0), Contains("'{'"));
  CHECK_THAT(refusal("{", 0), Contains("not JSON"));
  CHECK_THAT(refusal("{} x", 0), Contains("not JSON"));
  CHECK_THAT(refusal(std::string("{}\0garbage", 10), 0), Contains("NUL"));
  CHECK_THAT(refusal("{\"\xFF\":1}", 0), Contains("not JSON"));
  CHECK_THAT(refusal(R"({"w":1})", 0), Contains("does not belong"));
  CHECK_THAT(refusal(R"({"w":null})", 0), Contains("null"));
  CHECK_THAT(refusal(R"({"w":[]})", 0), Contains("array"));
  CHECK_THAT(refusal(R"({"w":true})", 0), Contains("boolean"));
  CHECK_THAT(refusal(object(tensor("w", kEight) + "," + tensor("w", kEight)), 8),
             Contains("'w' appears twice"));
  CHECK_THAT(refusal(R"({"__metadata__":{"a":"1","a":"2"}})", 0), Contains("'a' appears twice"));
  CHECK_THAT(refusal(R"({"__metadata__":{},"__metadata__":{}})", 0), Contains("twice"));
  CHECK_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), Contains("the number 1"));
  CHECK_THAT(refusal(R"({"__metadata__":{"a":{}}})", 0), Contains("object"));
  CHECK_THAT(refusal(R"({"__metadata__":"a"})", 0), Contains("string"));

  const auto one = [](const std::string& fields, uint64_t bytes = 8) {
    return refusal(object(tensor("w", fields)), bytes);
  };
  CHECK_THAT(one(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"),
             Contains("tensor 'w'") && Contains("unknown dtype 'F31'"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2])"), Contains("'data_offsets' is missing"));
  CHECK_THAT(one(R"("dtype":"F32","data_offsets":[0,8])"), Contains("'shape' is missing"));
  CHECK_THAT(one(R"("shape":[2],"data_offsets":[0,8])"), Contains("'dtype' is missing"));
  CHECK_THAT(one(kEight + R"(,"shape":[2])"), Contains("twice"));
  CHECK_THAT(one(kEight + R"(,"extra":1)"), Contains("unknown field 'extra'"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), Contains("-2"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), Contains("2.0"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), Contains("array"));
  CHECK_THAT(one(R"("dtype":"F32","shape":2,"data_offsets":[0,8])"), Contains("number 2"));
  CHECK_THAT(one(R"("dtype":["F32"],"shape":[2],"data_offsets":[0,8])"), Contains("array"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), Contains("two numbers"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), Contains("number 9"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), Contains("[8, 0)"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), Contains("96 bits"));
  CHECK_THAT(one(R"("dtype":"F4","shape":[15],"data_offsets":[0,8])"), Contains("60 bits"));
  CHECK_THAT(one(R"("dtype":"F4","shape":[15],"data_offsets":[0,7])"), Contains("60 bits"));
  CHECK_THAT(
      one(R"("dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8])"),
      Contains("overflows"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"),
             Contains("too large"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,8])"),
             Contains("99999999999999999999"));
  CHECK_THAT(one(R"("dtype":"F32","shape":[2],"data_offsets":[1,9])", 9), Contains("hole"));
  CHECK_THAT(one(kEight, 9), Contains("9 bytes of data"));
  CHECK_THAT(refusal(object(tensor("a", kEight) + "," +
                            tensor("b", R"("dtype":"F32","shape":[2],"data_offsets":[4,12])")),
                     12),
             Contains("overlap"));
  CHECK_THAT(refusal(object(tensor("a", kEight) + "," +
                            tensor("b", R"("dtype":"F32","shape":[1],"data_offsets":[12,16])")),
                     16),
             Contains("hole"));
  CHECK_THAT(refusal(object(tensor(std::string(5000, 'n'), kEight)), 8), Contains("5000 bytes"));
  std::string ranks = "1";
  for (int i = 0; i < 64; ++i) ranks += ",1";
  CHECK_THAT(one(R"("dtype":"F32","shape":[)" + ranks + R"(],"data_offsets":[0,4])", 4),
             Contains("dimensions"));
}

}  // namespace
}  // namespace fp8train
