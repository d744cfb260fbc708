#pragma once
// Parameters and their gradients, each kind in one flat fp32 buffer, so that norms and exchanges
// see one array. The fp32 value is the master weight where the plan stores the weight otherwise,
// and the weight itself where it does not.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "ops/quantize.h"
#include "tensor/tensor.h"

namespace fp8train {

enum class Init : uint8_t { zeros, ones, normal };

struct Parameter {
  std::string name;       ///< "layers.0.attention.qkv.weight"
  Shape shape;            ///< as stored; rows may be padded with zeros
  int64_t used_rows = 0;  ///< rows that the model has; the rest is padding
  bool decay = true;      ///< weight decay applies (not to norms and biases)
  Init init = Init::normal;
  float init_std = 0.0F;
  int64_t offset = 0;  ///< elements from the start of the flat buffers
  View value;          ///< fp32
  View gradient;       ///< fp32
  View copy;  ///< bf16 or fp16 copy that GEMMs read; empty if there is none. Kept by the optimizer
  /// How the optimizer casts the new value for the layer that has asked for it first; empty: not.
  /// With codes, the amax is combined into what is there; alone, it replaces it.
  ops::QuantizeSink cast;
};

class ParameterStore {
 public:
  /// The pointer stays valid for the life of the store.
  Parameter* add(Parameter parameter);

  /// Allocates the flat buffers (values uninitialized, gradients zero). `values` says where the
  /// fp32 values are charged. Without gradients their views stay empty.
  void allocate(Device& device, MemoryCategory values, bool with_gradients = true);

  const std::vector<std::unique_ptr<Parameter>>& all() const { return parameters_; }
  int64_t elements() const {
    return elements_;
  }  ///< with padding and alignment gaps, which stay zero
  View values() const { return values_.view(); }
  View gradients() const { return gradients_.view(); }

  /// Draws every parameter's initial value from Philox keyed by (seed, position in the store,
  /// element): the same on any device.
  void initialize(Device& device, uint64_t seed);

 private:
  std::vector<std::unique_ptr<Parameter>> parameters_;
  int64_t elements_ = 0;
  Tensor values_, gradients_;
};

}  // namespace fp8train
