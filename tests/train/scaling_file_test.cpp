// The files of scales that a run does not continue from.

#include "train/checkpoint/scaling_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>

#include "engine/engine.h"
#include "support/small_llama.h"
#include "support/temp_dir.h"

namespace fp8train::test {
namespace {

TEST_CASE("scales of other shapes are those of another plan, and the file and both are named") {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  Engine engine(*device, small_llama("te-delayed"));
  ScalingState& scaling = engine.model().scaling();
  const ScalingState::SavedTensor tensor = scaling.save().front();
  const int64_t count = tensor.shape.front();
  const std::vector<float> values(static_cast<size_t>(2 * count), 1.0F);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2, count}, {count - 1}}) {
    const TempDir dir;
    const std::string name = scaling_file_of(Mesh({}, 0, nullptr));
    write_checkpoint_file(
        dir.path(),
        {.name = name, .tensors = {{tensor.name, DType::f32, shape, values.data()}}, .text = {}});
    CHECK_THROWS_AS(load_scaling(dir.path(), scaling), OtherScales);
    CHECK_THROWS_WITH(
        load_scaling(dir.path(), scaling),
        Catch::Contains((dir / name).string() + ": tensor '" + tensor.name + "' has shape [" +
                        fmt::format("{}], expected [{}]", fmt::join(shape, ", "), count)));
  }
}

}  // namespace
}  // namespace fp8train::test
