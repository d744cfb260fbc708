// What `explain` and `check` say about runs.

#include <nlohmann/json.hpp>
#include <sstream>

#include "program.h"

namespace fp8train::test {
namespace {

using Json = nlohmann::json;

Json explain(const Words& sets) {
  const TempDir where;
  Words words = {"explain", "--json", "data.train=[{path: absent.txt}]", "training.max_steps=10"};
  words.insert(words.end(), sets.begin(), sets.end());
  return Json::parse(expect_code(0, where.path(), words).out);
}

const Json& linear(const Json& explained, const std::string& name) {
  for (const Json& one : explained.at("linears")) {
    if (one.at("name") == name) {
      return one;
    }
  }
  FAIL(name << " is not among the linear layers of " << explained.dump(1));
  return explained;
}

std::string operand(const Json& one, const char* gemm, const char* side) {
  return one.at(gemm).at(side);
}

TEST_CASE("explain: te-delayed in hybrid format") {
  const Json json = explain({"model.preset=toy", "mixed_precision=fp8", "fp8.recipe=delayed",
                             "fp8.amax_history_len=16", "fp8.margin=1"});
  CHECK(json.at("plan") == "te-delayed");
  size_t scaled = 0;
  for (const Json& one : json.at("linears")) {
    if (!one.at("scaled").get<bool>()) {
      CHECK(one.at("exempt_reason") == "output head");
      CHECK(operand(one, "fprop", "a") == "bf16");
      continue;
    }
    ++scaled;
    INFO(one.dump());
    CHECK(one.at("exempt_reason") == "");
    const std::string forward = "e4m3 tensor delayed(16, max, margin 1)";
    const std::string gradient = "e5m2 tensor delayed(16, max, margin 1)";
    CHECK(operand(one, "fprop", "a") == forward);
    CHECK(operand(one, "fprop", "b") == forward);
    CHECK(operand(one, "dgrad", "a") == gradient);
    CHECK(operand(one, "dgrad", "b") == forward);
    CHECK(operand(one, "wgrad", "a") == gradient);
    CHECK(operand(one, "wgrad", "b") == forward);
  }
  CHECK(scaled == 2 * 4);  // qkv, output, up (with gate), down
}

TEST_CASE("explain: attention in FP8") {
  const Json json =
      explain({"model.preset=toy", "precision.plan=te-current", "fp8.attention=true"});
  CHECK(json.at("roles").at("attention") ==
        "q, k and v e4m3 tensor current; probabilities e4m3 tensor delayed(1, most_recent); output "
        "bf16; dout e5m2 tensor current; gradients of scores e5m2 tensor delayed(1, most_recent); "
        "dq, dk and dv bf16");
  CHECK(json.at("outside").get<std::string>().find("attention") == std::string::npos);
  CHECK(explain({"model.preset=toy", "precision.plan=te-current"}).at("roles").at("attention") ==
        "bf16");
  const TempDir where;
  CHECK_THAT(expect_code(2, where.path(),
                         {"explain", "model.preset=toy", "precision.plan=te-delayed",
                          "fp8.attention=forward", "parallelism.context=2", "--world-size", "2"})
                 .err,
             Catch::Contains("parallelism.context: attention in FP8 takes 1"));
}

TEST_CASE("explain needs a model only") {
  const TempDir where;
  write_file(where / "two.yaml", "model: {preset: llama-8b}\nprecision: {plan: te-current}\n");
  const Json json =
      Json::parse(expect_code(0, where.path(), {"explain", "two.yaml", "--json"}).out);
  CHECK(json.at("plan") == "te-current");
  CHECK(json.at("linears").size() == 32 * 4 + 1);
  CHECK_THAT(expect_code(2, where.path(), {"explain", "precision.plan=te-current"}).err,
             Catch::Contains("model"));
  CHECK_THAT(expect_code(2, where.path(),
                         {"explain", "two.yaml",
                          "precision.schedule=[{until: 0.5, plan: bf16}, {plan: te-current}]"})
                 .err,
             Catch::Contains("precision.schedule: its stages need the length of the run"));
  write_file(
      where.path() / "stages.yaml",
      "model: {preset: toy}\n"
      "precision: {plan: te-current, schedule: [{until: 0.5, plan: bf16}, {plan: te-current}]}\n");
  CHECK_THAT(expect_code(2, where.path(), {"explain", "stages.yaml"}).err,
             Catch::Contains("stages.yaml:2:31: precision.schedule: its stages need"));
}

TEST_CASE("explain: GEMMs left in high precision, and exempt layers") {
  const Json json =
      explain({"model.preset=toy", "mixed_precision=fp8", "fp8.recipe=current",
               "fp8.override_linear_precision=[false, true, false]", "fp8.format=e4m3",
               "fp8.exempt=['*.mlp.down*']", "fp8.first_linears=1"});
  size_t exempt = 0;
  for (const Json& one : json.at("linears")) {
    INFO(one.dump());
    exempt += one.at("scaled").get<bool>() ? 0 : 1;
    if (one.at("scaled").get<bool>()) {
      CHECK(operand(one, "fprop", "a") == "e4m3 tensor current");
      CHECK(operand(one, "dgrad", "a") == "bf16");
      CHECK(operand(one, "dgrad", "b") == "bf16");
      CHECK(operand(one, "wgrad", "a") == "e4m3 tensor current");
    }
  }
  CHECK(exempt == 4);
  CHECK_THAT(expect_code(0, ".",
                         {"explain", "model.preset=toy", "data.train=[{path: absent.txt}]",
                          "training.max_steps=10", "precision.plan=te-current",
                          "fp8.override_linear_precision=[true, true, true]"})
                 .err,
             Catch::Contains("no GEMM runs in the formats of plan te-current: ") &&
                 Catch::Contains("fp8.override_linear_precision"));
  CHECK(json.at("linears")[0].at("exempt_reason") == "the first linear");
  CHECK(linear(json, "layers.1.mlp.down").at("exempt_reason") ==
        "matches exempt pattern '*.mlp.down*'");
}

TEST_CASE("explain: a frozen layer has no wgrad") {
  const std::string frozen = "training.frozen=[layers.1.*, embedding.weight]";
  const Json json = explain(
      {"model.preset=toy", "model.tie_word_embeddings=true", "precision.plan=te-current", frozen});
  for (const Json& one : json.at("linears")) {
    CAPTURE(one.dump());
    CHECK(one.at("frozen") == !one.at("name").get<std::string>().starts_with("layers.0."));
  }
  const TempDir where;
  const std::string text =
      expect_code(0, where.path(),
                  {"explain", "model.preset=toy", "precision.plan=te-current", frozen})
          .out;
  CHECK_THAT(text, Catch::Contains("| none   frozen"));
}

TEST_CASE("explain: rows with a scale for each block") {
  const Json json = explain({"model.preset=toy", "mixed_precision=fp8", "fp8.backend=torchao",
                             "fp8.recipe=rowwise_with_gw_hp", "device=cpu"});
  CHECK(json.at("plan") == "torchao-rowwise-gw-hp");
  const Json& one = linear(json, "layers.0.mlp.up");
  CHECK(operand(one, "fprop", "a") == "e4m3 row current pow2 epsilon 1e-12");
  CHECK(operand(one, "dgrad", "b") == "e4m3 tensor current pow2 epsilon 1e-12");
  CHECK(operand(one, "wgrad", "a") == "bf16");
  CHECK(operand(one, "fprop", "dequantized").empty());  // the cpu has all products
}

TEST_CASE("explain: where first windows may begin again") {
  const auto says = [](const Words& more) {
    const TempDir where;
    Words words = {"explain", "model.preset=toy", "data.train=[{path: absent.txt}]",
                   "training.max_steps=10"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string text = expect_code(0, where.path(), words).out;
    return text.find("In the first 16 steps, and in the 16 after an overflow") != std::string::npos;
  };
  CHECK(says({"precision.plan=msamp-o1"}));
  CHECK(says({"precision.plan=te-current", "precision.layers={'*.mlp.down': msamp-o1}"}));
  CHECK_FALSE(says({"precision.plan=te-delayed"}));
}

TEST_CASE("explain: a model has the positions of its family") {
  const TempDir where;
  const auto text = [&](const char* preset) {
    return expect_code(0, where.path(),
                       {"explain", std::string("model.preset=") + preset, "data.train=absent.txt",
                        "data.seq_length=16", "training.max_steps=10", "precision.plan=te-delayed"})
        .out;
  };
  CHECK_THAT(text("toy"),
             Catch::Contains("rotary embedding") && !Catch::Contains("learned positions"));
  CHECK_THAT(text("nanogpt-laptop"),
             Catch::Contains("learned positions") && !Catch::Contains("rotary"));
}

TEST_CASE("explain: sentences below the tables fit into 100 columns") {
  const TempDir where;
  for (const Words& plan :
       {Words{"precision.plan=msamp-o1"},
        Words{"precision.plan=te-delayed",
              "precision.schedule=[{until: 0.5, plan: te-delayed}, {plan: bf16}]"}}) {
    Words words = {"explain", "model.preset=toy", "data.train=absent.txt", "training.max_steps=10"};
    words.insert(words.end(), plan.begin(), plan.end());
    const std::string text = expect_code(0, where.path(), words).out;
    const size_t begin = text.find(" linear layers in ");
    REQUIRE(begin != std::string::npos);
    for (const std::string& line : lines_of(text.substr(text.rfind('\n', begin) + 1))) {
      CAPTURE(line);
      CHECK(line.size() <= 100);
    }
  }
}

TEST_CASE("explain: gradients may cross once for each micro-batch") {
  const auto wire = [](const Words& more) {
    Words words = {"model.preset=toy", "precision.plan=fp8-safe", "parallelism.zero_stage=2",
                   "parallelism.sync_each_batch=true"};
    words.insert(words.end(), more.begin(), more.end());
    return explain(words).at("roles").at("gradient wire").get<std::string>();
  };
  const std::string several = "training.gradient_accumulation_steps=2";
  const std::string once = wire({"--world-size", "2"});
  CHECK(wire({several}) == once);
  CHECK(wire({several, "--world-size", "2"}) == once + ", once for each micro-batch");
}

TEST_CASE("explain: moments and bytes are those of the optimizer") {
  const Json adamw = explain({"model.preset=toy", "precision.plan=te-delayed"});
  CHECK(adamw.at("optimizer") == "adamw");
  const auto bytes = adamw.at("bytes_per_parameter").get<double>();
  const Json muon = explain({"model.preset=toy", "precision.plan=te-delayed", "optimizer.name=muon",
                             "precision.moment1=bf16"});
  CHECK(muon.at("optimizer") == "muon");
  CHECK(muon.at("bytes_per_parameter") == bytes - 4 - 2);
  CHECK(muon.at("roles").at("moment 1") == "bf16");
  CHECK(muon.at("roles").at("moment 2") == "none with muon");
  CHECK(muon.at("columns").at("m + v") == "bf16, no v");
  const Json sgd = explain({"model.preset=toy", "precision.plan=te-delayed", "optimizer.name=sgd",
                            "optimizer.momentum=0"});
  CHECK(sgd.at("bytes_per_parameter") == bytes - 8);
  CHECK(sgd.at("roles").at("moment 1") == "none with sgd");
}

TEST_CASE("explain: what the down projection of a SwiGLU reads") {
  const Json smooth =
      explain({"model.preset=toy", "precision.plan=te-delayed", "precision.swiglu=smooth"});
  const Json& down = linear(smooth, "layers.1.mlp.down");
  CHECK(operand(down, "fprop", "a") == "e4m3 tensor delayed(1024, max)");
  CHECK(operand(down, "fprop", "b") == "e4m3 tensor current");
  CHECK_THAT(down.at("swiglu").get<std::string>(), Catch::Contains("smoothed"));
  CHECK(linear(smooth, "layers.1.mlp.up").at("swiglu") == "");
  CHECK_THAT(smooth.at("roles").at("SwiGLU product").get<std::string>(),
             Catch::Contains("power of two"));
  const TempDir where;
  const Words words = {"explain", "data.train=[{path: absent.txt}]", "training.max_steps=10",
                       "precision.plan=te-delayed", "precision.swiglu=bf16_down_input"};
  Words llama = words;
  llama.push_back("model.preset=toy");
  const std::string text = expect_code(0, where.path(), llama).out;
  CHECK_THAT(text, Catch::Contains("bf16 x bf16 | e5m2 x e4m3 | bf16 x bf16   x stays in bf16, so "
                                   "fprop and wgrad stay out of scaled formats (fp8.swiglu: "
                                   "bf16_down_input)"));
  Words gpt2 = words;
  gpt2.push_back("model.from=" + (fs::path(FP8TRAIN_GOLDEN_DIR) / "tiny-gpt2").string());
  write_file(where / "text.txt", small_text(1000));
  CHECK_THAT(expect_code(0, where.path(),
                         {"explain", "data.train=[{path: text.txt}]", "training.max_steps=10",
                          "data.tokenizer=char", gpt2.back()})
                 .err,
             Catch::Contains("that folder has no tokenizer: set data.tokenizer"));
  gpt2.push_back("data.tokenizer=none");
  gpt2.push_back("data.seq_length=16");
  CHECK_THAT(expect_code(2, where.path(), gpt2).err,
             Catch::Contains("fp8.swiglu: bf16_down_input has no meaning for this model: its MLP "
                             "is not a SwiGLU"));
}

/// The names in the table of linear layers.
std::vector<std::string> layer_names(const std::string& text) {
  std::vector<std::string> names;
  std::istringstream lines(text.substr(text.find("fprop | dgrad | wgrad")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line) && !line.empty()) {
    names.push_back(line.substr(0, line.find(' ')));
  }
  return names;
}

TEST_CASE("explain: equal layers share a line, and each has its own on request") {
  const TempDir where;
  Words words = {"explain",
                 "data.train=[{path: absent.txt}]",
                 "training.max_steps=10",
                 "model.preset=toy",
                 "model.num_hidden_layers=5",
                 "precision.plan=te-current",
                 "precision.exempt=['layers.3.mlp.*']"};
  using Names = std::vector<std::string>;
  CHECK(layer_names(expect_code(0, where.path(), words).out) ==
        Names{"layers.0-2.attention.qkv", "layers.0-2.attention.output", "layers.0-2.mlp.up",
              "layers.0-2.mlp.down", "layers.3.attention.qkv", "layers.3.attention.output",
              "layers.3.mlp.up", "layers.3.mlp.down", "layers.4.attention.qkv",
              "layers.4.attention.output", "layers.4.mlp.up", "layers.4.mlp.down", "head"});
  words.insert(words.begin() + 1, "--every-layer");
  CHECK(layer_names(expect_code(0, where.path(), words).out).size() == 5 * 4 + 1);
}

TEST_CASE("explain: a layer of an unsuitable size") {
  const Json json =
      explain({"model.preset=toy", "model.intermediate_size=172", "precision.plan=te-current"});
  const Json& up = linear(json, "layers.0.mlp.up");
  CHECK(up.at("scaled") == false);
  // Gate and up projection are one GEMM.
  CHECK(up.at("exempt_reason") == "dimension 344 is not a multiple of 16");
  CHECK(linear(json, "layers.0.attention.qkv").at("scaled") == true);
}

TEST_CASE("explain: parts of layers that a GPU does not multiply as it does the whole") {
  Words words = {"model.preset=toy", "model.intermediate_size=48", "precision.plan=torchao-rowwise",
                 "device=cuda", "job.gpu=h100"};
  CHECK(explain(words).at("products") == "8 of 9 linear layers in FP8, the others in bf16");
  // A quarter is 12: a row of dgrad's result has 24 bytes.
  words.insert(words.end(), {"parallelism.tensor=4", "--world-size", "4"});
  CHECK_THAT(
      explain(words).at("products").get<std::string>(),
      Catch::EndsWith("; with parallelism.tensor: 2 all parts have sizes that it multiplies"));
}

TEST_CASE(
    "explain: the plan in the columns of the table of plans, its bytes, and what was reported") {
  const Json json = explain({"model.preset=toy", "fp8_format=e4m3", "fp8_recipe=tensorwise"});
  CHECK(json.at("plan") == "te-current");
  CHECK(json.at("columns").at("computation") == "e4m3 tensor current");
  CHECK(json.at("columns").at("wire") == "fp32");
  CHECK(json.at("columns").at("m + v") == "fp32 + fp32");
  CHECK(json.at("bytes_per_parameter") == 16.0);
  const std::vector<std::string> notes = json.at("notes");
  CHECK(std::find(notes.begin(), notes.end(),
                  "fp8_recipe: tensorwise read as fp8.recipe: current") != notes.end());
}

TEST_CASE("explain: what is reported is on standard error of explain and check") {
  const TempDir where;
  write_file(where / "text.txt", small_text(20000));
  for (const char* command : {"explain", "check"}) {
    const Outcome outcome =
        expect_code(0, where.path(),
                    {command, "model.preset=toy", "data.train=[{path: text.txt}]", "device=cpu",
                     "training.max_steps=10", "fp8.enabled=true", "data.seq_length=64"});
    CHECK_THAT(outcome.err, Catch::Contains("fp8.enabled read as mixed_precision: fp8"));
  }
}

TEST_CASE("explain: only the roles that differ from another plan") {
  const TempDir where;
  const Words run = {"explain",
                     "model.preset=toy",
                     "--diff",
                     "te-blockwise",
                     "training.max_steps=10",
                     "data.train=absent.txt",
                     "precision.plan=te-current"};
  Words words = run;
  const std::string text = expect_code(0, where.path(), words).out;
  CHECK_THAT(text, Catch::Contains("fprop x, w") && Catch::Contains("e4m3 1x128 current pow2"));
  CHECK(text.find("moment 1") == std::string::npos);
  for (const std::string& line : lines_of(text)) {
    CHECK(line.size() <= 100);
  }
  words.push_back("--json");
  const Json json = Json::parse(expect_code(0, where.path(), words).out);
  CHECK(json.at("diff").size() == 4);  // three GEMMs and what is saved
  words = run;
  words[3] = "te-block";
  CHECK_THAT(
      expect_code(2, where.path(), words).err,
      Catch::Contains("error: --diff: no plan 'te-block'") && Catch::Contains("te-blockwise"));
  words[3] = "fp8-fast";
  words.back() = "precision.plan=te-delayed";
  CHECK_THAT(expect_code(0, where.path(), words).out, Catch::Contains("output head\n"));
}

TEST_CASE("the table of plans in the documentation is the one that explain prints") {
  const TempDir where;
  const std::string table = expect_code(0, where.path(), {"explain", "--plans"}).out;
  const std::string page =
      read_file(fs::path(FP8TRAIN_GOLDEN_DIR) / ".." / ".." / "docs" / "use" / "plans.md");
  const std::string begin = "<!-- table of plans: begin -->\n";
  const size_t from = page.find(begin);
  const size_t to = page.find("<!-- table of plans: end -->");
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  // Refresh it with the output of: fp8train explain --plans
  CHECK(page.substr(from + begin.size(), to - from - begin.size()) == table);
}

TEST_CASE("check answers for an 8 billion parameter model in little memory") {
  const TempDir where;
  write_file(where / "text.txt", small_text(40000));
  const Outcome outcome =
      expect_code(0, where.path(),
                  {"check", "model.preset=llama-8b", "data.train=[{path: text.txt}]",
                   "training.max_steps=10", "data.seq_length=8192", "precision.plan=te-delayed",
                   "training.micro_batch_size=1", "job.gpu=b300"});
  INFO(outcome.out);
  CHECK(outcome.peak_kib < 2L * 1024 * 1024);
  CHECK_THAT(outcome.out, Catch::Contains("8.03"));  // billion parameters
}

}  // namespace
}  // namespace fp8train::test
