#pragma once
// Parameters and their gradients, each kept in the format that the precision plan says. The value
// is what the optimizer updates: the master weight where the plan has one beside the weight, and
// the weight itself where it has not.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/quantize.h"
#include "ops/storage.h"
#include "precision/plan.h"
#include "tensor/stored_pool.h"

namespace fp8train {

enum class Init : uint8_t { zeros, ones, normal };

struct Parameter {
  std::string name;       ///< "layers.0.attention.qkv.weight"
  Shape shape;            ///< as stored; rows may be padded with zeros
  int64_t used_rows = 0;  ///< rows that the model has; the rest is padding
  bool decay = true;      ///< weight decay applies (not to norms and biases)
  Init init = Init::normal;
  float init_std = 0.0F;
  ParameterFormats formats;  ///< fp32 unless a layer of the plan's own formats owns it
  StoredTensor stored_value, stored_gradient;
  View value;                           ///< stored_value where that is fp32, else empty
  View gradient;                        ///< stored_gradient where that is fp32, else empty
  ops::AutoScale* automatic = nullptr;  ///< of the gradient, where its wire scales itself
  View copy;  ///< bf16 or fp16 copy that GEMMs read; empty if there is none. Kept by the optimizer
  /// How the optimizer casts the new value for the layer that has asked for it first; empty: not.
  /// With codes, the amax is combined into what is there; alone, it replaces it.
  ops::QuantizeSink cast;
};

class ParameterStore {
 public:
  /// The pointer stays valid for the life of the store.
  Parameter* add(Parameter parameter);

  /// Allocates values and gradients, zero. Without gradients their views stay empty.
  void allocate(Device& device, bool with_gradients = true);

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  const StoredPool& values() const { return values_; }
  /// Lane i has the gradients that cross the wire as wires()[i].
  const StoredPool& gradients() const { return gradients_; }
  const std::vector<TensorFormat>& wires() const { return wires_; }

  /// Draws every parameter's initial value from Philox keyed by (seed, position in the store,
  /// element): the same on any device.
  void initialize(Device& device, uint64_t seed);

 private:
  void allocate_automatic(Device& device, int64_t count);
  int lane_of(const TensorFormat& wire);

  std::vector<std::unique_ptr<Parameter>> parameters_;
  StoredPool values_, gradients_;
  std::vector<TensorFormat> wires_;
  Tensor automatic_;
};

/// A parameter's value from and to the host, in row-major order; cast to its format, to nearest.
void set_value(Device& device, const Parameter& parameter, const float* values);
std::vector<float> value_on_host(Device& device, const Parameter& parameter);

}  // namespace fp8train
