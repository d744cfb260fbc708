// The formats that decide what saved state means: as JSON, and what is said where they differ.

#include "train/checkpoint/state_formats.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "support/small_llama.h"

namespace fp8train::test::state_formats_test {
namespace {

using Lines = std::vector<std::string>;

using OrderedJson = nlohmann::ordered_json;

OrderedJson formats_of(const PlanRequest& request) {
  const std::unique_ptr<Device> device = make_device(DeviceKind::cpu);
  EngineSettings settings = small_llama(request.plan);
  settings.plan = resolve_plan(request);
  Engine engine(*device, settings);
  return state_formats(engine.model());
}

OrderedJson formats_of(const std::string& plan) {
  PlanRequest request;
  request.plan = plan;
  return formats_of(request);
}

/// As state.json returns them.
nlohmann::json saved(const OrderedJson& formats) {
  return nlohmann::json::parse(formats.dump());
}

/// All roles are in bf16, and one layer of two has formats of its own.
OrderedJson small_formats() {
  return OrderedJson::parse(R"({
    "fprop_x": "bf16", "fprop_w": "bf16", "dgrad_dy": "bf16", "dgrad_w": "bf16",
    "wgrad_dy": "bf16", "wgrad_x": "bf16", "weight": "bf16", "master_weight": "bf16",
    "weight_gradient": "bf16", "gradient_wire": "bf16", "moment1": "bf16", "moment2": "bf16",
    "layers": {
      "down": {"fprop_x": "e4m3 1x128 current", "fprop_w": "bf16", "dgrad_dy": "bf16",
               "dgrad_w": "bf16", "wgrad_dy": "bf16", "wgrad_x": "e4m3 1x128 current"},
      "up": {"fprop_x": "bf16", "fprop_w": "bf16", "dgrad_dy": "bf16", "dgrad_w": "bf16",
             "wgrad_dy": "bf16", "wgrad_x": "bf16"}},
    "scaled_tensors": ["down.x", "down.w"]})");
}

void check_operands(const OrderedJson& operands, const char* name) {
  const PrecisionPlan plan = plan_named(name);
  CHECK(operands.at("fprop_x") == describe(plan.fprop.a));
  CHECK(operands.at("fprop_w") == describe(plan.fprop.b));
  CHECK(operands.at("dgrad_dy") == describe(plan.dgrad.a));
  CHECK(operands.at("dgrad_w") == describe(plan.dgrad.b));
  CHECK(operands.at("wgrad_dy") == describe(plan.wgrad.a));
  CHECK(operands.at("wgrad_x") == describe(plan.wgrad.b));
}

TEST_CASE("formats of every plan are read from JSON as they were written") {
  for (const std::string& plan : plan_names()) {
    CAPTURE(plan);
    const OrderedJson formats = formats_of(plan);
    const PrecisionPlan expected = plan_named(plan);
    CHECK(format_changes(saved(formats), formats).empty());
    CHECK(read_state_formats(saved(formats)) == saved(formats));
    check_operands(formats, plan.c_str());
    CHECK(formats.at("weight") == describe(expected.weight));
    CHECK(formats.at("weight_gradient") == describe(expected.weight_gradient));
    CHECK(formats.at("gradient_wire") == describe(expected.gradient_wire));
    CHECK(formats.at("moment1") == describe(expected.moment1));
    CHECK(formats.at("moment2") == describe(expected.moment2));
    CHECK(formats.contains("master_weight") == expected.master_weight.has_value());
    CHECK(formats.at("scaled_tensors").empty() != has_scaled_gemms(expected));
  }
}

TEST_CASE("a layer with a plan of its own has the operands of that plan") {
  PlanRequest request;
  request.plan = "te-current";
  request.layers = {{.pattern = "*.mlp.up", .plan = "te-blockwise"},
                    {.pattern = "*.mlp.down", .plan = "te-delayed"},
                    {.pattern = "layers.1.*", .plan = "bf16"}};
  const OrderedJson formats = formats_of(request);
  REQUIRE(formats.at("layers").size() == 2);
  check_operands(formats, "te-current");
  check_operands(formats.at("layers").at("layers.0.mlp.up"), "te-blockwise");
  check_operands(formats.at("layers").at("layers.0.mlp.down"), "te-delayed");
  CHECK(format_changes(saved(formats), formats).empty());
  CHECK(
      format_changes(saved(formats), formats_of("te-current")) ==
      Lines{"layers with a plan of their own only in the checkpoint: layers.0.mlp.down, "
            "layers.0.mlp.up",
            "scaled tensors only in this run: layers.1.attention.qkv.x, layers.1.attention.qkv.w, "
            "layers.1.attention.qkv.dy, and 9 more"});
}

TEST_CASE("a role whose format differs is named with both formats, and no other") {
  const OrderedJson before = small_formats();
  const std::pair<const char*, const char*> operands[] = {
      {"fprop x", "fprop_x"}, {"fprop w", "fprop_w"},   {"dgrad dy", "dgrad_dy"},
      {"dgrad w", "dgrad_w"}, {"wgrad dy", "wgrad_dy"}, {"wgrad x", "wgrad_x"}};
  for (const auto& [name, operand] : operands) {
    OrderedJson changed = before;
    changed[operand] = "e5m2 tensor current";
    CHECK(format_changes(saved(before), changed) ==
          Lines{std::string(name) + ": was bf16, is e5m2 tensor current"});
    changed = before;
    changed["layers"]["up"][operand] = "e5m2 tensor current";
    CHECK(format_changes(saved(changed), before) ==
          Lines{std::string(name) + " of up: was e5m2 tensor current, is bf16"});
  }
  const std::pair<const char*, const char*> stored[] = {{"weight gradient", "weight_gradient"},
                                                        {"gradient wire", "gradient_wire"},
                                                        {"moment 1", "moment1"},
                                                        {"moment 2", "moment2"}};
  for (const auto& [name, role] : stored) {
    OrderedJson changed = before;
    changed[role] = "fp16 group(128) current stochastic";
    CHECK(format_changes(saved(before), changed) ==
          Lines{std::string(name) + ": was bf16, is fp16 group(128) current stochastic"});
  }
}

TEST_CASE("scaled tensors that are no list of texts are refused") {
  for (const char* wrong : {"null", "\"a\"", R"({"k": "a"})", "[1]"}) {
    CAPTURE(wrong);
    nlohmann::json formats = saved(small_formats());
    formats["scaled_tensors"] = nlohmann::json::parse(wrong);
    CHECK_THROWS_AS(read_state_formats(formats), nlohmann::json::exception);
  }
}

TEST_CASE("a weight counts where it is what the optimizer updates") {
  const OrderedJson before = small_formats();
  OrderedJson changed = before;
  changed["weight"] = "fp32";
  CHECK(format_changes(saved(before), changed).empty());
  changed.erase("master_weight");
  CHECK(format_changes(saved(before), changed) ==
        Lines{"weight: was bf16, is fp32", "master weight: was bf16, is none"});
  changed = before;
  changed.erase("master_weight");
  CHECK(format_changes(saved(before), changed).empty());
}

TEST_CASE("layers that differ alike share a line, and names in another order are the same") {
  const OrderedJson before = small_formats();
  OrderedJson changed = before;
  const OrderedJson layers = before.at("layers");
  changed["layers"] = {{"up", layers.at("up")}, {"down", layers.at("down")}};
  changed["scaled_tensors"] = {"down.w", "down.x"};
  CHECK(format_changes(saved(before), changed).empty());
  for (OrderedJson& layer : changed["layers"]) {
    layer["dgrad_w"] = "fp32";
  }
  CHECK(format_changes(saved(before), changed) == Lines{"dgrad w of up, down: was bf16, is fp32"});
  changed = before;
  changed["layers"] = {{"qkv", layers.at("down")}, {"up", layers.at("up")}};
  changed["scaled_tensors"] = {"down.x", "a", "b", "c", "d", "e"};
  CHECK(format_changes(saved(before), changed) ==
        Lines{"layers with a plan of their own only in the checkpoint: down",
              "layers with a plan of their own only in this run: qkv",
              "scaled tensors only in the checkpoint: down.w",
              "scaled tensors only in this run: a, b, c, and 2 more"});
}

TEST_CASE("what is not a format is refused with its text") {
  nlohmann::json json = saved(small_formats());
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
  const OrderedJson formats = small_formats();
  CHECK(format_changes(same, formats).empty());
  CHECK(format_changes(replaced(same, "stored", "kept"), formats).empty());  // still earlier
  const std::string other = replaced(same, "bf16 x bf16; bf16", "e5m2 x bf16; bf16");
  CHECK(format_changes(other, formats) == Lines{"formats: was " + other + ", is " + same});
  CHECK(format_changes("", formats) == Lines{"formats: was , is " + same});
}

}  // namespace
}  // namespace fp8train::test::state_formats_test
