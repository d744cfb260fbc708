#include "device/meta/meta_device.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/attention/attention_flops.h"
#include "ops/dispatch/op_table.h"
#include "ops/gemm/gemm_support.h"
#include "tensor/tensor.h"

using namespace fp8train;

namespace {

Tensor make(MetaDevice& device, DType dtype, const Shape& shape) {
  return {device, dtype, shape, MemoryCategory::workspace};
}

}  // namespace

TEST_CASE("meta counts a GEMM as 2 M N K and the bytes of its operands", "[ops]") {
  MetaDevice device;
  Tensor a = make(device, DType::e4m3, {300, 200});  // stored [K, M]
  Tensor b = make(device, DType::e4m3, {300, 100});
  Tensor c = make(device, DType::f32, {200, 100});
  ops::Gemm call;
  call.a = {a.view(), true};
  call.b = b.view();
  call.c = c;
  ops::op_table(device.stream()).gemm(device.stream(), call);
  CHECK(device.counters().gemm_flops == 2.0 * 200 * 100 * 300);
  CHECK(device.counters().bytes == 60000 + 30000 + 80000);
  call.beta = 1.0F;
  ops::op_table(device.stream()).gemm(device.stream(), call);
  CHECK(device.counters().bytes == 2 * (60000 + 30000 + 80000) + 80000);
  CHECK(device.counters().operations == 2);
}

TEST_CASE("meta counts the codes that a norm writes, and y where it is written", "[ops]") {
  MetaDevice device;
  Tensor x = make(device, DType::bf16, {64, 32});
  Tensor weight = make(device, DType::f32, {32});
  Tensor rstd = make(device, DType::f32, {64});
  Tensor codes = make(device, DType::e4m3, {64, 32});
  ops::QuantizeSink cast;
  cast.out.rowwise.codes = codes;
  const double before = 2.0 * 64 * 32 + 4.0 * 32 + 4.0 * 64;
  const ops::OpTable& table = ops::op_table(device.stream());
  table.norm_forward(device.stream(), {.x = x,
                                       .weight = weight,
                                       .eps = 1e-5F,
                                       .y = {nullptr, DType::bf16, {64, 32}},
                                       .rstd = rstd,
                                       .cast = cast});
  const double cast_bytes = before + 64 * 32;
  CHECK(device.counters().bytes == cast_bytes);
  table.norm_forward(device.stream(),
                     {.x = x, .weight = weight, .eps = 1e-5F, .y = x, .rstd = rstd});
  CHECK(device.counters().bytes == cast_bytes + before + 2.0 * 64 * 32);
}

TEST_CASE("meta logs a second kernel for codes that a norm does not write in its pass", "[ops]") {
  const auto logged = [](int64_t rows, int64_t n, bool columnwise) {
    MetaDevice device;
    OpLog log;
    device.set_log(&log);
    const Tensor x = make(device, DType::bf16, {rows, n});
    const Tensor weight = make(device, DType::f32, {n});
    const Tensor rstd = make(device, DType::f32, {rows});
    const Tensor codes = make(device, DType::e4m3, {rows, n});
    const Tensor transposed = make(device, DType::e4m3, {n, rows});
    ops::QuantizeSink cast;
    cast.out.rowwise.codes = codes;
    cast.out.columnwise.codes = columnwise ? transposed.view() : View{};
    ops::op_table(device.stream())
        .norm_forward(device.stream(), {.x = x,
                                        .weight = weight,
                                        .eps = 1e-5F,
                                        .y = {nullptr, DType::bf16, {rows, n}},
                                        .rstd = rstd,
                                        .cast = cast});
    const double codes_of = columnwise ? 2 : 1;
    const double once =
        (2.0 + codes_of) * static_cast<double>(rows * n) + 4.0 * static_cast<double>(n + rows);
    return std::pair<int64_t, double>(log.at(0).work.launches, log.at(0).work.bytes.all - once);
  };
  CHECK(logged(64, 4096, true) == std::pair<int64_t, double>(1, 0));
  CHECK(logged(72, 8192, false) == std::pair<int64_t, double>(1, 0));
  CHECK(logged(72, 4096, true) == std::pair<int64_t, double>(2, 2.0 * 72 * 4096 + 4 * 72));
  CHECK(logged(64, 8192, true) == std::pair<int64_t, double>(2, 2.0 * 64 * 8192 + 4 * 64));
}

TEST_CASE("meta counts the addition in front of a norm", "[ops]") {
  MetaDevice device;
  Tensor x = make(device, DType::bf16, {64, 32});
  Tensor weight = make(device, DType::f32, {32});
  Tensor statistics = make(device, DType::f32, {64});
  const ops::ResidualAdd residual = {.delta = x, .sum = x};
  const double added = 2 * 2.0 * 64 * 32;
  const double norm = 2 * 2.0 * 64 * 32 + 4.0 * 32 + 4.0 * 64;
  const ops::OpTable& table = ops::op_table(device.stream());
  table.norm_forward(
      device.stream(),
      {.x = x, .weight = weight, .eps = 1e-5F, .y = x, .rstd = statistics, .residual = residual});
  CHECK(device.counters().bytes == norm + added);
  table.norm_forward(device.stream(), {.x = x,
                                       .weight = weight,
                                       .bias = View(),
                                       .eps = 1e-5F,
                                       .y = x,
                                       .mean = statistics,
                                       .rstd = statistics,
                                       .residual = residual});
  CHECK(device.counters().bytes == 2 * (norm + added) + 4.0 * 64);
}

TEST_CASE("meta counts the unmasked half of attention", "[ops]") {
  MetaDevice device;
  ops::AttentionShape shape;
  shape.batch = 2;
  shape.query_length = 128;
  shape.key_length = 128;
  shape.heads = 8;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  const ops::HeadsView heads{nullptr, DType::bf16, 512, 128};
  Tensor lse = make(device, DType::f32, {2, 8, 128});
  const ops::OpTable& table = ops::op_table(device.stream());
  table.attention_forward(
      device.stream(),
      {.shape = shape, .q = heads, .k = heads, .v = heads, .out = heads, .log_sum_exp = lse});
  const double forward = 4.0 * 2 * 8 * 64 * 128 * 128 / 2;
  CHECK(device.counters().attention_flops == forward);
  const double query_bytes = 2.0 * 128 * 8 * 64 * 2;
  CHECK(device.counters().bytes == 2 * query_bytes + 2 * query_bytes / 4 + 2 * 8 * 128 * 4);
  table.attention_backward(device.stream(), {.shape = shape,
                                             .q = heads,
                                             .k = heads,
                                             .v = heads,
                                             .out = heads,
                                             .log_sum_exp = lse,
                                             .dout = heads,
                                             .dq = heads,
                                             .dk = heads,
                                             .dv = heads,
                                             .scratch = View()});
  CHECK(device.counters().attention_flops == 3.5 * forward);

  shape.query_length = 1;  // a decoding step sees every key
  CHECK(ops::meta::attention_forward_flops(shape) == 4.0 * 2 * 8 * 64 * 127.5);
}

TEST_CASE("operations on meta tensors count bytes and touch no memory", "[ops]") {
  MetaDevice device;
  const Stream stream = device.stream();
  Tensor x = make(device, DType::bf16, {1000, 768});
  Tensor codes = make(device, DType::e4m3, {1000, 768});
  Tensor scale = make(device, DType::f32, {1});
  Encoded q = codes.view();
  q.cast_scales = scale.view().as<float>();
  ops::quantize(stream, x, {q}, q.cast_scales, nullptr);
  CHECK(device.counters().bytes == 768000 * 3);

  Tensor w = make(device, DType::f32, {5000});
  Tensor copy = make(device, DType::bf16, {5000});
  const auto* control = static_cast<const ops::StepControl*>(scale.view().data);
  ops::adamw(stream, {w.view(), w.view(), w.view(), w.view(), copy, 0.9, 0.95, 1e-8, 0.1}, control);
  CHECK(device.counters().bytes == 768000 * 3 + 5000 * 30);

  Tensor tokens = make(device, DType::i32, {64});
  Tensor table = make(device, DType::f32, {50000, 768});
  Tensor y = make(device, DType::bf16, {64, 768});
  const double before = device.counters().bytes;
  Tensor sorting = make(device, DType::i32, {128});
  ops::embedding_backward(stream, {.tokens = tokens,
                                   .dy = y,
                                   .table_grad = table,
                                   .position_grad = View(),
                                   .sequence_length = 64,
                                   .scratch = sorting});
  CHECK(device.counters().bytes - before == 64 * 4 + 64 * 768 * 2 + 64 * 768 * 4 * 2);

  Tensor logits = make(device, DType::f32, {64, 50000});
  Tensor losses = make(device, DType::f32, {64});
  ops::CrossEntropy call;
  call.logits = logits;
  call.targets = tokens;
  call.losses = losses;
  ops::cross_entropy(stream, call);
  CHECK(device.counters().operations == 4);
  CHECK(device.counters().gemm_flops == 0.0);

  Tensor statistics = make(device, DType::f32, {4, 64, 3});
  const double whole = device.counters().bytes;
  ops::vocabulary_statistics(stream, {.logits = logits,
                                      .targets = tokens,
                                      .vocabulary = 200000,
                                      .statistics = rows_of(statistics.view(), 0, 64)});
  CHECK(device.counters().bytes - whole == 64 * 50000 * 4 + 64 * 4 + 64 * 12);
  call.statistics = statistics;
  call.vocabulary = 200000;
  ops::cross_entropy(stream, call);
  CHECK(device.counters().bytes - whole == 3 * 64 * 50000 * 4 + 3 * 64 * 4 + 5 * 64 * 12);
}

TEST_CASE("meta counts the bytes of packets", "[ops]") {
  MetaDevice device;
  Tensor x = make(device, DType::f32, {1024});
  const TensorFormat wire = {
      .dtype = DType::e4m3, .block = per::group(128), .policy = ScalePolicy::current};
  Tensor packets = make(device, DType::e4m3, {4 * 512});
  ops::pack_wire(
      device.stream(),
      {.x = x.view(), .format = wire, .chunk = 256, .chunks = 4, .packets = packets.view().data});
  CHECK(device.counters().bytes == 4096 + 4 * 272);
  ops::sum_wire(device.stream(), {.packets = packets.view().data,
                                  .format = wire,
                                  .contributions = 4,
                                  .chunk = 256,
                                  .y = {x.view().data, DType::f32, {256}}});
  CHECK(device.counters().bytes == 4096 + 8 * 272 + 1024);
}

TEST_CASE("meta counts codes and scales of both orientations", "[ops]") {
  MetaDevice device;
  Tensor x = make(device, DType::bf16, {256, 512});
  TensorFormat format = plain(DType::e4m3);
  format.block = per::block_1x128;
  format.policy = ScalePolicy::current;
  Tensor codes = make(device, DType::e4m3, {256, 512});
  Tensor scales = make(device, DType::f32, {256, 4});
  QuantizedTensor out = {{codes, format, scales}};
  ops::quantize(device.stream(), x, out, nullptr, nullptr);
  Tensor columnwise = make(device, DType::e4m3, {512, 256});
  Tensor columnwise_scales = make(device, DType::f32, {512, 2});
  const double rowwise = 256 * 512 * (2 + 1) + 256 * 4 * sizeof(float);
  CHECK(device.counters().bytes == rowwise);
  out.columnwise = {columnwise, format, columnwise_scales};
  out.columnwise.cast_scales = columnwise_scales.view().as<float>();
  ops::quantize(device.stream(), x, out, nullptr, nullptr);
  CHECK(device.counters().bytes == 2 * rowwise + 256 * 512 + 512 * 2 * 2 * sizeof(float));
  ops::dequantize(device.stream(), out.rowwise, x);
  CHECK(device.counters().bytes == 3 * rowwise + 256 * 512 + 512 * 2 * 2 * sizeof(float));
  CHECK(device.counters().operations == 3);
}

TEST_CASE("meta logs the launches and passes of casts with a scale for each row or column",
          "[ops]") {
  MetaDevice device;
  OpLog log;
  device.set_log(&log);
  Tensor x = make(device, DType::bf16, {256, 512});
  Tensor codes = make(device, DType::e4m3, {256, 512});
  Tensor columnwise = make(device, DType::e4m3, {512, 256});
  Tensor scales = make(device, DType::f32, {512});
  TensorFormat format = plain(DType::e4m3);
  format.block = per::row;
  format.policy = ScalePolicy::current;
  QuantizedTensor out = {{codes, format, {scales.view().data, DType::f32, {256}}},
                         {columnwise, format, scales}};
  out.set(&Encoded::cast_scales, scales.view().as<float>());
  ops::quantize(device.stream(), x, out, nullptr, nullptr);
  REQUIRE(log.size() == 1);
  CHECK(log[0].work.launches == 5);  // rows; a fill, maxima, scales and codes of columns
  CHECK(log[0].work.bytes.all == 256 * 512 * (3 * 2 + 2) + 2 * 4.0 * (256 + 512));
  device.fill_zero(x.view().data, 100);
  device.copy_from_host(x.view().data, nullptr, 8);
  device.set_log(nullptr);
  device.fill_zero(x.view().data, 100);
  REQUIRE(log.size() == 3);
  CHECK(std::string(log[1].name) == "fill_zero");
  CHECK(log[1].work.bytes.all == 100);
  CHECK(std::string(log[2].name) == "copy_from_host");
}

TEST_CASE("meta counts what a product takes in addition to its operands", "[ops]") {
  MetaDevice device;
  OpLog log;
  device.set_log(&log);
  Tensor a = make(device, DType::e4m3, {64, 32});
  Tensor b = make(device, DType::e4m3, {16, 32});
  Tensor bias = make(device, DType::f32, {16});
  Tensor narrow = make(device, DType::bf16, {64, 16});
  Tensor wide = make(device, DType::f32, {64, 16});
  const double operands = 64 * 32 + 16 * 32;
  for (const Tensor* c : {&narrow, &wide}) {
    ops::gemm(device.stream(), {.a = {a.view()},
                                .b = {b.view(), true},
                                .c = *c,
                                .bias = bias,
                                .fast_accumulate = c == &narrow});
  }
  REQUIRE(log.size() == 2);
  CHECK(log[0].work.launches == 2);  // the bias is cast
  CHECK(log[0].work.bytes.all == operands + 2 * 64 * 16 + 16 * (4 + 2));
  CHECK(log[1].work.launches == 2);  // the bias is added afterwards
  CHECK(log[1].work.bytes.all == operands + 3 * 4 * 64 * 16 + 16 * 4);
  CHECK(log[0].work.arithmetic == Arithmetic::fp8_fast);
  CHECK(log[1].work.arithmetic == Arithmetic::fp8);
}

TEST_CASE("meta logs the launches of gradients that share scales", "[ops]") {
  MetaDevice device;
  OpLog log;
  device.set_log(&log);
  Tensor values = make(device, DType::e4m3, {256});
  Tensor own_scales = make(device, DType::f32, {1, 2});
  Tensor tensors = make(device, DType::i32, {2});
  Tensor amax = make(device, DType::f32, {1});
  Tensor codes = make(device, DType::e4m3, {1, 256});
  Tensor scales = make(device, DType::f32, {1});
  const ops::SharedBucket bucket = {values.view(), own_scales.view(), tensors.view()};
  ops::shared_amax(device.stream(), bucket, amax.view());
  ops::read_shared(device.stream(), codes.view(), scales.view(), 1.0F, bucket);
  Tensor wide = make(device, DType::bf16, {256});
  ops::read_shared(device.stream(), codes.view(), scales.view(), 1.0F,
                   {wide.view(), {}, tensors.view()});
  REQUIRE(log.size() == 3);
  CHECK(log[0].work.launches == 2);  // a fill, and the maxima
  CHECK(log[1].work.launches == 2);  // codes, and their scales
  CHECK(log[2].work.launches == 1);
}

TEST_CASE("meta checks shapes as every device does", "[ops]") {
  MetaDevice device;
  Tensor four = make(device, DType::f32, {4});
  Tensor five = make(device, DType::f32, {5});
  CHECK_THROWS_AS(ops::add(device.stream(), four, five, four), InternalError);
  CHECK(device.counters().operations == 0);
}

TEST_CASE("a padded product is counted with its copies", "[ops]") {
  MetaDevice device(cuda_traits(90));
  const auto operand = [&](const Tensor& codes, bool transposed) {
    return ops::GemmOperand{codes.view(), transposed};
  };
  const Tensor a = make(device, DType::e4m3, {32, 40});
  const Tensor b = make(device, DType::e4m3, {48, 40});
  const Tensor c = make(device, DType::f32, {32, 48});
  ops::Gemm call = {.a = operand(a, false), .b = operand(b, true), .c = c.view()};
  const size_t bytes = ops::gemm_scratch_bytes(device.traits(), call);
  CHECK(bytes == 32 * 48 + 48 * 48);
  const Tensor scratch = make(device, DType::u8, {static_cast<int64_t>(bytes)});
  call.scratch = scratch.view();
  ops::gemm(device.stream(), call);
  const double flops = 2.0 * 32 * 48 * 40;
  CHECK(device.counters().gemm_flops == flops);
  CHECK(device.counters().gemm_flops_8bit == flops);
  CHECK(device.counters().bytes == 3.0 * (32 + 48) * 40 + 4.0 * 32 * 48);
}

TEST_CASE("every entry of every table is filled", "[ops]") {
  MetaDevice device;
  const auto filled = [](const ops::OpTable& table) {
    // The table is nothing but function pointers.
    using Entry = void (*)();
    static_assert(sizeof(ops::OpTable) % sizeof(Entry) == 0);
    Entry entries[sizeof(ops::OpTable) / sizeof(Entry)];
    std::memcpy(entries, &table, sizeof(table));
    for (const Entry entry : entries) {
      if (entry == nullptr) {
        return false;
      }
    }
    return true;
  };
  CHECK(filled(ops::op_table(device.stream())));
  CHECK(filled(ops::op_table(Stream(DeviceKind::cpu, nullptr, nullptr))));
  const Stream cuda(DeviceKind::cuda, nullptr, nullptr);
  if (std::string(FP8TRAIN_CUDA_FORM) == "OFF") {
    CHECK_THROWS_AS(ops::op_table(cuda), DeviceError);
  } else {
    CHECK(filled(ops::op_table(cuda)));
  }
}
