// The formats that decide what saved state means: as JSON, and what is said where they differ.

#include "train/checkpoint/state_formats.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "support/small_llama.h"

namespace fp8train::test::state_formats_test {
namespace {

using Lines = std::vector<std::string>;

StateFormats formats_of(const PlanRequest& request) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  EngineSettings settings = small_llama(request.plan);
  settings.plan = resolve_plan(request);
  Engine engine(*device, settings);
  return state_formats(engine.model());
}

StateFormats formats_of(const std::string& plan) {
  PlanRequest request;
  request.plan = plan;
  return formats_of(request);
}

/// As state.json returns them.
StateFormats saved(const StateFormats& formats) {
  return read_state_formats(nlohmann::json::parse(json_of(formats).dump()));
}

/// All roles are in bf16, and one layer of two has formats of its own.
StateFormats small_formats() {
  const TensorFormat bf16 = plain(DType::bf16);
  const OperandFormats operands = {bf16, bf16, bf16, bf16, bf16, bf16};
  const TensorFormat scaled = parse_format("e4m3 1x128 current");
  return {.operands = operands,
          .weight = bf16,
          .master_weight = bf16,
          .weight_gradient = bf16,
          .gradient_wire = bf16,
          .moment1 = bf16,
          .moment2 = bf16,
          .layers = {{"down", {scaled, bf16, bf16, bf16, bf16, scaled}}, {"up", operands}},
          .scaled_tensors = {"down.x", "down.w"}};
}

void check_operands(const OperandFormats& operands, const char* name) {
  const PrecisionPlan plan = plan_named(name);
  CHECK(operands.fprop_x == plan.fprop.a);
  CHECK(operands.fprop_w == plan.fprop.b);
  CHECK(operands.dgrad_dy == plan.dgrad.a);
  CHECK(operands.dgrad_w == plan.dgrad.b);
  CHECK(operands.wgrad_dy == plan.wgrad.a);
  CHECK(operands.wgrad_x == plan.wgrad.b);
}

TEST_CASE("formats of every plan are read from JSON as they were written") {
  for (const std::string& plan : plan_names()) {
    CAPTURE(plan);
    const StateFormats formats = formats_of(plan);
    CHECK(format_changes(saved(formats), formats).empty());
    CHECK(json_of(saved(formats)) == json_of(formats));
    CHECK(json_of(formats).at("moment2") == describe(plan_named(plan).moment2));
    CHECK(json_of(formats).contains("master_weight") == plan_named(plan).master_weight.has_value());
    CHECK(formats.scaled_tensors.empty() != has_scaled_gemms(plan_named(plan)));
  }
}

TEST_CASE("a layer with a plan of its own has the operands of that plan") {
  PlanRequest request;
  request.plan = "te-current";
  request.layers = {{.pattern = "*.mlp.up", .plan = "te-blockwise"},
                    {.pattern = "*.mlp.down", .plan = "te-delayed"},
                    {.pattern = "layers.1.*", .plan = "bf16"}};
  const StateFormats formats = formats_of(request);
  REQUIRE(formats.layers.size() == 2);
  check_operands(formats.operands, "te-current");
  CHECK(formats.layers[0].name == "layers.0.mlp.up");
  check_operands(formats.layers[0].operands, "te-blockwise");
  CHECK(formats.layers[1].name == "layers.0.mlp.down");
  check_operands(formats.layers[1].operands, "te-delayed");
  CHECK(format_changes(saved(formats), formats).empty());
  CHECK(
      format_changes(saved(formats), formats_of("te-current")) ==
      Lines{"layers with a plan of their own only in the checkpoint: layers.0.mlp.down, "
            "layers.0.mlp.up",
            "scaled tensors only in this run: layers.1.attention.qkv.x, layers.1.attention.qkv.w, "
            "layers.1.attention.qkv.dy and 9 more"});
}

TEST_CASE("a role whose format differs is named with both formats, and no other") {
  const StateFormats before = small_formats();
  const std::pair<const char*, TensorFormat OperandFormats::*> operands[] = {
      {"fprop x", &OperandFormats::fprop_x},   {"fprop w", &OperandFormats::fprop_w},
      {"dgrad dy", &OperandFormats::dgrad_dy}, {"dgrad w", &OperandFormats::dgrad_w},
      {"wgrad dy", &OperandFormats::wgrad_dy}, {"wgrad x", &OperandFormats::wgrad_x}};
  for (const auto& [name, operand] : operands) {
    StateFormats changed = before;
    changed.operands.*operand = parse_format("e5m2 tensor current");
    CHECK(format_changes(saved(before), changed) ==
          Lines{std::string(name) + ": was bf16, is e5m2 tensor current"});
    changed = before;
    changed.layers[1].operands.*operand = parse_format("e5m2 tensor current");
    CHECK(format_changes(saved(changed), before) ==
          Lines{std::string(name) + " of up: was e5m2 tensor current, is bf16"});
  }
  const std::pair<const char*, TensorFormat StateFormats::*> stored[] = {
      {"weight gradient", &StateFormats::weight_gradient},
      {"gradient wire", &StateFormats::gradient_wire},
      {"moment 1", &StateFormats::moment1},
      {"moment 2", &StateFormats::moment2}};
  for (const auto& [name, role] : stored) {
    StateFormats changed = before;
    changed.*role = parse_format("fp16 group(128) current stochastic");
    CHECK(format_changes(saved(before), changed) ==
          Lines{std::string(name) + ": was bf16, is fp16 group(128) current stochastic"});
  }
}

TEST_CASE("a weight counts where it is what the optimizer updates") {
  const StateFormats before = small_formats();
  StateFormats changed = before;
  changed.weight = plain(DType::f32);
  CHECK(format_changes(saved(before), changed).empty());
  changed.master_weight.reset();
  CHECK(format_changes(saved(before), changed) ==
        Lines{"weight: was bf16, is fp32", "master weight: was bf16, is none"});
  changed = before;
  changed.master_weight.reset();
  CHECK(format_changes(saved(before), changed).empty());
}

TEST_CASE("layers that differ alike share a line, and names in another order are the same") {
  const StateFormats before = small_formats();
  StateFormats changed = before;
  std::swap(changed.layers[0], changed.layers[1]);
  std::swap(changed.scaled_tensors[0], changed.scaled_tensors[1]);
  CHECK(format_changes(saved(before), changed).empty());
  for (LayerFormats& layer : changed.layers) {
    layer.operands.dgrad_w = plain(DType::f32);
  }
  CHECK(format_changes(before, changed) == Lines{"dgrad w of up, down: was bf16, is fp32"});
  changed = before;
  changed.layers[0].name = "qkv";
  changed.scaled_tensors = {"down.x", "a", "b", "c", "d", "e"};
  CHECK(format_changes(before, changed) ==
        Lines{"layers with a plan of their own only in the checkpoint: down",
              "layers with a plan of their own only in this run: qkv",
              "scaled tensors only in the checkpoint: down.w",
              "scaled tensors only in this run: a, b, c and 2 more"});
}

TEST_CASE("what is not a format is refused with its text") {
  nlohmann::json json = nlohmann::json::parse(json_of(small_formats()).dump());
  json["moment1"] = "e9m9";
  CHECK_THROWS_WITH(read_state_formats(json), Catch::Contains("e9m9"));
  json["moment1"] = 7;
  CHECK_THROWS_AS(read_state_formats(json), nlohmann::json::exception);
  json.erase("moment1");
  CHECK_THROWS_AS(read_state_formats(json), nlohmann::json::exception);
}

TEST_CASE("the text of an earlier version has the same formats, or is named with today's") {
  const std::string same =
      "bf16 x bf16; bf16 x bf16; bf16 x bf16; "
      "stored bf16; stored bf16; stored bf16; stored bf16; stored bf16; "
      "e4m3 1x128 current x bf16 in down; bf16 x bf16 in down; bf16 x e4m3 1x128 current in down; "
      "bf16 x bf16 in up; bf16 x bf16 in up; bf16 x bf16 in up; down.x down.w ";
  const StateFormats formats = small_formats();
  CHECK(format_changes(same, formats).empty());
  CHECK(format_changes(replaced(same, "stored", "kept"), formats).empty());  // still earlier
  const std::string other = replaced(same, "bf16 x bf16; bf16", "e5m2 x bf16; bf16");
  CHECK(format_changes(other, formats) == Lines{"formats: was " + other + ", is " + same});
  CHECK(format_changes("", formats) == Lines{"formats: was , is " + same});
}

}  // namespace
}  // namespace fp8train::test::state_formats_test
