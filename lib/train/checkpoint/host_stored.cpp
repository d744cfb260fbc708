#include "train/checkpoint/host_stored.h"

#include <algorithm>

#include "comm/communicator.h"
#include "ops/storage/storage.h"
#include "tensor/tensor.h"

namespace fp8train {

HostStored::HostStored(const TensorFormat& format, int64_t count)
    : codes(static_cast<size_t>(count) * size_of(format.dtype)),
      scales(static_cast<size_t>(stored_scales(format, count))),
      tensor({codes.data(), format.dtype, {count}}, format,
             {scales.data(), DType::f32, {static_cast<int64_t>(scales.size())}}) {
  tensor.format.rounding = Rounding::nearest_even;
  if (scales.empty()) {
    tensor.scales = {};
  }
}

std::vector<float> values_of(const HostStored& stored) {
  std::vector<float> values(static_cast<size_t>(stored.tensor.count()));
  ops::read_stored(Communicator::host_stream(), stored.tensor,
                   {values.data(), DType::f32, {stored.tensor.count()}});
  return values;
}

HostStored stored_in(const TensorFormat& format, const std::vector<float>& values) {
  HostStored stored(format, static_cast<int64_t>(values.size()));
  const ConstView x = {values.data(), DType::f32, {stored.tensor.count()}};
  ops::store(Communicator::host_stream(), {.x = x, .to = stored.tensor});
  return stored;
}

void upload(Device& device, const HostStored& from, const Encoded& to) {
  copy_from_host(device, to.codes, from.codes.data());
  if (!to.scales.empty()) {
    copy_from_host(device, to.scales, from.scales.data());
  }
}

void decode_to_host(Device& device, const Encoded& tensor, float* to) {
  if (tensor.format == TensorFormat{}) {
    copy_to_host(device, to, tensor.codes);
    return;
  }
  HostStored host(tensor.format, tensor.count());
  copy_to_host(device, host.codes.data(), tensor.codes);
  if (!tensor.scales.empty()) {
    copy_to_host(device, host.scales.data(), tensor.scales);
  }
  ops::read_stored(Communicator::host_stream(), host.tensor, {to, DType::f32, {tensor.count()}});
}

void floor_second_moment(const std::vector<float>& first, HostStored& second) {
  const size_t size = size_of(second.tensor.format.dtype);
  for (size_t i = 0; i < first.size(); ++i) {
    uint8_t* code = second.codes.data() + i * size;
    if (first[i] != 0.0F &&
        std::all_of(code, code + size, [](uint8_t byte) { return byte == 0; })) {
      code[0] = 1;
    }
  }
}

}  // namespace fp8train
