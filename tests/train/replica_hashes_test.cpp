// The hashes of what ranks hold alike: a value that one of them has changed is named.

#include <catch2/catch.hpp>

#include "train/checkpoint/replicas.h"
#include "train/layout_results.h"

using namespace fp8train;
using namespace fp8train::test;

namespace {

/// The errors of ranks that compare after a step, and of which those that `is_wrong` chooses have
/// another first element of `parameter`, in the part that they update.
template <typename IsWrong>
std::vector<std::string> compare(const EngineSettings& settings, int ranks,
                                 const std::string& parameter, const IsWrong& is_wrong) {
  return run_ranks(Topology::blocks(ranks, ranks), [&](Communicator& comm) {
    const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
    Engine engine(*device, settings, &comm);
    engine.reserve(dry_run_step(settings, {}, comm.topology(), comm.rank()).plan);
    engine.model().initialize(3);
    engine.weights_changed();
    engine.step([&] { return batch_of(settings, 0); }, 0, 1e-3, false);
    for (const auto& one : engine.model().parameters().all()) {
      if (one->name == parameter && is_wrong(engine.mesh()) && one->updated.count() > 0) {
        one->updated.value.codes.as<float>()[0] += 1.0F;
      }
    }
    engine.weights_changed();
    compare_replicas(engine.mesh(), hash_replicas(engine), 70);
  });
}

void check_named(const std::vector<std::string>& errors, const std::string& name) {
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("bits of " + name + ": rank "));
  }
}

}  // namespace

TEST_CASE("values that no axis cuts are compared among the ranks that share layers", "[replicas]") {
  const int stage = GENERATE(0, 1, 2, 3);
  const std::string plan = GENERATE("fp32", "te-delayed", "fp8-lm");
  CAPTURE(stage, plan);
  EngineSettings settings = small_llama(plan);
  settings.model.num_attention_heads = settings.model.num_key_value_heads = 4;
  settings.strategy.layout.tensor = 2;
  settings.strategy.zero_stage = stage;
  const auto of_tensor_rank = [](const Mesh& mesh) { return mesh.index(Axis::tensor) == 1; };
  const std::string norm = "layers.1.mlp_norm.weight";
  CHECK(compare(settings, 4, norm, [](const Mesh&) { return false; }) ==
        std::vector<std::string>(4));
  check_named(compare(settings, 4, norm, of_tensor_rank), norm);
}

TEST_CASE("the tables of the first and the last stage are compared", "[replicas]") {
  const int stage = GENERATE(0, 1, 3);
  CAPTURE(stage);
  EngineSettings settings = small_llama("fp32");
  settings.model.tie_word_embeddings = true;
  settings.strategy.layout.pipeline = 2;
  settings.strategy.zero_stage = stage;
  const auto is_last = [](const Mesh& mesh) { return mesh.index(Axis::pipeline) == 1; };
  CHECK(compare(settings, 4, "embedding.weight", [](const Mesh&) { return false; }) ==
        std::vector<std::string>(4));
  check_named(compare(settings, 4, "embedding.weight", is_last), "the tied embeddings");
}
