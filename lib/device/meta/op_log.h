#pragma once
// A log of the operations of a step, call by call, with their cost on the GPU that a meta device
// plans for.

#include <cstdint>
#include <string>
#include <vector>

#include "device/fp8_products.h"

namespace fp8train {

/// The units that do an operation's FLOPs.
enum class Arithmetic : unsigned char {
  none,
  f32,       ///< products of fp32 operands
  bits16,    ///< bf16 and fp16 operands, fp32 sums
  fp8,       ///< FP8 operands, partial sums promoted to fp32
  fp8_fast,  ///< FP8 operands with fast accumulation
  attention_forward,
  attention_backward,
  attention_forward_fp8,
  attention_backward_fp8,
};

/// The product of a GEMM, c[m, n] with k contracted. Operands of 16 or 32 bits have `type.scales`
/// tensor.
struct OpProduct {
  int64_t m = 0, n = 0, k = 0;
  Fp8Product type;
  bool adds = false;  ///< to what c has
};

/// Returns "e4m3 1x128 x e4m3 128x128", or "e5m2 x e4m3" if each tensor has one scale.
std::string operands_text(const Fp8Product& product);

/// Bytes that are read and written, with those of them that are in memory of the host.
struct OpBytes {
  double all = 0, on_host = 0;

  OpBytes(double of_device = 0) : all(of_device) {}  // NOLINT(google-explicit-constructor)
  OpBytes(double bytes, double of_host) : all(bytes), on_host(of_host) {}

  friend OpBytes operator*(double factor, const OpBytes& bytes) {
    return {factor * bytes.all, factor * bytes.on_host};
  }
  friend OpBytes operator*(const OpBytes& bytes, double factor) { return factor * bytes; }
  friend OpBytes operator/(const OpBytes& bytes, double divisor) { return 1 / divisor * bytes; }
  friend OpBytes operator+(const OpBytes& a, const OpBytes& b) {
    return {a.all + b.all, a.on_host + b.on_host};
  }
  friend OpBytes operator-(const OpBytes& a, const OpBytes& b) { return a + -1 * b; }
  OpBytes& operator+=(const OpBytes& other) { return *this = *this + other; }
  OpBytes& operator-=(const OpBytes& other) { return *this = *this - other; }
};

/// The work of one call.
struct OpWork {
  OpBytes bytes;
  int launches = 1;  ///< kernels, fills and copies that the CUDA backend starts
  double flops = 0;  ///< operations of GEMMs and attention
  Arithmetic arithmetic = Arithmetic::none;
  const char* kernel = nullptr;  ///< its row in the table of kernels, if it has one
  double elements = 0;           ///< elements that this kernel handles
  OpProduct product = {};        ///< of a GEMM
};

/// The name of a copy between the device and the host in a stream of its own.
inline constexpr const char* kSideCopy = "copy_to_or_from_host";

/// One call in the log.
struct OpCall {
  const char* part;  ///< part of a step: the outermost open span; empty: none
  const char* name;  ///< name of the operation: the innermost open span
  OpWork work;
  int64_t times = 1;  ///< how often a step makes this call
};

using OpLog = std::vector<OpCall>;

}  // namespace fp8train
