#include <catch2/catch.hpp>

#include "nn/head.h"

using namespace fp8train;

namespace {

constexpr size_t kGib = size_t{1} << 30;
constexpr int64_t kLlama3 = 128256;

}  // namespace

TEST_CASE("a chunk of logits takes a share of a GPU's memory") {
  CHECK(head_chunk_rows(139 * kGib, kLlama3, DType::bf16) == 4096);
  CHECK(head_chunk_rows(141 * kGib, kLlama3, DType::bf16) == 4096);
  CHECK(head_chunk_rows(139 * kGib, kLlama3, DType::f32) == 2048);
  CHECK(head_chunk_rows(79 * kGib, kLlama3, DType::bf16) == 2048);
  CHECK(head_chunk_rows(23 * kGib, kLlama3, DType::bf16) == 512);
  for (const size_t memory : {4 * kGib, 16 * kGib, 80 * kGib, 192 * kGib}) {
    for (const int64_t vocabulary : {512, 32000, 50272, 262144}) {
      CAPTURE(memory, vocabulary);
      const int64_t rows = head_chunk_rows(memory, vocabulary, DType::bf16);
      const auto bytes = static_cast<size_t>(rows * vocabulary) * 2;
      CHECK(bytes <= memory / 128);
      CHECK(2 * bytes > memory / 128);  // no power of two that is larger fits
      CHECK((rows & (rows - 1)) == 0);
    }
  }
  CHECK(head_chunk_rows(kGib / 4, 262144, DType::f32) == 16);
}

TEST_CASE("elsewhere a chunk of logits has at most 32 Mi elements") {
  CHECK(head_chunk_rows(0, kLlama3, DType::bf16) == 256);
  CHECK(head_chunk_rows(0, kLlama3, DType::f32) == 256);
  CHECK(head_chunk_rows(0, 50272, DType::bf16) == 656);
  CHECK(head_chunk_rows(0, int64_t{1} << 30, DType::bf16) == 16);
}
