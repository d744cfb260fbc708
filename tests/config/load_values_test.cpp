#include <catch2/catch.hpp>

#include "config/load_support.h"
#include "config/presets.h"
#include "model/families/family.h"
#include "support/environment.h"

namespace fp8train {
namespace {

using test::kBase;
using test::load_text;

TEST_CASE("the example of the documentation becomes typed settings") {
  const Settings s = load_text(R"(
model: {preset: nanogpt-laptop}            # or from: DIR
data: {train: [{path: shakespeare.txt}], tokenizer: char, val_fraction: 0.1, seq_length: 64}
training: {max_steps: 2000, micro_batch_size: 12, seed: 1}
optimizer: {name: adamw, lr: 1e-3, betas: [0.9, 0.99], weight_decay: 0.1, grad_clip: 1.0}
scheduler: {type: cosine, warmup_steps: 100, min_lr: 1e-4}
mixed_precision: fp8
fp8: {backend: te, recipe: delayed, amax_history_len: 1024}
device: auto
)");
  CHECK(s.model.preset == "nanogpt-laptop");
  CHECK(s.model.config == find_preset("nanogpt-laptop")->config);
  REQUIRE(s.data.train.size() == 1);
  CHECK(s.data.train[0] == DataSource{"shakespeare.txt", "auto", 1.0});
  CHECK(s.data.tokenizer == "char");
  CHECK(s.data.val_fraction == 0.1);
  CHECK(s.training.max_steps == 2000);
  CHECK(s.step.micro_batch_size == 12);
  CHECK(s.optimizer.lr == 1e-3);
  CHECK(s.optimizer.betas == std::array<double, 2>{0.9, 0.99});
  CHECK(s.scheduler.warmup_steps == 100);
  CHECK(s.scheduler.min_lr == 1e-4);
  CHECK(s.precision.mixed_precision == MixedPrecision::fp8);
  CHECK(s.precision.backend == "te");
  CHECK(s.precision.recipe == "delayed");
  CHECK(s.precision.amax_history_len == 1024);
  CHECK_FALSE(s.precision.margin.has_value());
}

TEST_CASE("every kind of value") {
  const Settings s = load_text(R"(
model: {preset: toy, recompute: block}
data:
  train: [{path: "a b.txt", weight: 2}, b.jsonl, {path: c, format: LLMC}]
  val: c.bin
  shuffle: false
training: {max_tokens: 1.5M, seed: 18446744073709551615, max_time: 3h50m, micro_batch_size: 1e1, deterministic: true}
fp8: {format: HYBRID, override_linear_precision: [false, false, true], use_autocast_during_eval: true,
      exempt: ["*.down", h.0], min_dimension: 32, first_blocks: 1, amax_compute_algo: most_recent}
mixed_precision: fp8
sample: {prompts: ["a\nb", 12]}
)");
  CHECK(s.step.decoder.recompute == Recompute::block);
  CHECK(s.data.train ==
        std::vector<DataSource>{{"a b.txt", "auto", 2}, {"b.jsonl", "auto", 1}, {"c", "llmc", 1}});
  CHECK(s.data.val == std::vector<DataSource>{{"c.bin", "auto", 1}});
  CHECK_FALSE(s.data.shuffle);
  CHECK(s.training.max_tokens == 1'500'000);
  CHECK(s.step.seed == UINT64_MAX);
  CHECK(s.training.max_time_seconds == 13800);
  CHECK(s.step.micro_batch_size == 10);
  CHECK(s.step.deterministic);
  CHECK_FALSE(Settings{}.step.deterministic);
  CHECK(s.precision.format == Fp8Format::hybrid);
  CHECK(s.precision.override_linear_precision == std::vector<bool>{false, false, true});
  CHECK(s.precision.use_autocast_during_eval == true);
  CHECK(s.precision.exemptions.patterns == std::vector<std::string>{"*.down", "h.0"});
  CHECK(s.precision.exemptions.min_dimension == 32);
  CHECK(s.precision.exemptions.first_blocks == 1);
  CHECK(s.precision.amax_compute_algo == AmaxAlgorithm::most_recent);
  CHECK(s.sample.prompts == std::vector<std::string>{"a\nb", "12"});
}

TEST_CASE("tabs between the values of JSON are blanks, and those in a text stay") {
  const Settings s = load_text(
      "{\t\"model\":\t{\"preset\": \"toy\"}, \"data\": {\"train\": \"a\"},\n"
      "\t\"training\": {\"max_steps\":\t5}, \"output_dir\": \"a\\\"\tb\"}\n");
  CHECK(s.training.max_steps == 5);
  CHECK(s.output_dir == "a\"\tb");
}

TEST_CASE("defaults < preset < file < environment < --set, a later --set winning") {
  const std::string no_length = kBase;
  CHECK(Settings{}.step.seq_length == 1024);
  CHECK(load_text(kBase).step.seq_length == 64);
  const std::string file =
      "model: {preset: toy}\ndata: {train: a, seq_length: 32}\n"
      "training: {max_steps: 9}\n";
  CHECK(load_text(file).step.seq_length == 32);
  CHECK(load_text(file, {}, "data.seq_length=16; device=cpu;").step.seq_length == 16);
  CHECK(load_text(file, {}, "data.seq_length=16; device=cpu;").device == DeviceChoice::cpu);
  CHECK(load_text(file, {"data.seq_length=8"}, "data.seq_length=16").step.seq_length == 8);
  CHECK(load_text(file, {"data.seq_length=8", "data.seq_length=4"}).step.seq_length == 4);
  // A preset named later is still below the file.
  CHECK(load_text(file, {"model.preset=llama-42m"}).step.seq_length == 32);
  CHECK(load_text(file, {"model.preset=llama-42m"}).model.config.hidden_size == 512);
}

TEST_CASE("--set takes flow YAML and whole sections") {
  const Settings s = load_text(
      kBase, {"data.train=[{path: x, weight: 3}, y]", "optimizer={lr: 2e-3, betas: [0.5, 0.6]}",
              "sample.prompts=Once upon a time"});
  CHECK(s.data.train == std::vector<DataSource>{{"x", "auto", 3}, {"y", "auto", 1}});
  CHECK(s.optimizer.lr == 2e-3);
  CHECK(s.optimizer.betas == std::array<double, 2>{0.5, 0.6});
  CHECK(s.sample.prompts == std::vector<std::string>{"Once upon a time"});
}

TEST_CASE("of rivals the one with the higher precedence stays") {
  const Settings s = load_text(kBase, {"training.max_tokens=1M"});
  CHECK(s.training.max_steps == 0);
  CHECK(s.training.max_tokens == 1'000'000);
  const Settings t = load_text(
      "model: {preset: toy}\ndata: {train: a}\n"
      "training: {max_steps: 5, gradient_accumulation_steps: 3}\n",
      {"training.global_batch_size=32"});
  CHECK(t.step.gradient_accumulation_steps == 4);
  CHECK(t.training.global_batch_size == 32);
}

TEST_CASE("a model by the fields of a Hugging Face config.json") {
  const std::string rest = "data: {train: a}\ntraining: {max_steps: 5}\n";
  const ModelConfig llama = load_text(R"(
model: {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
  "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": null, "head_dim": null,
  "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "rope_theta": 500000.0, "attention_bias": true,
  "attention_dropout": 0.0, "hidden_act": "silu", "tie_word_embeddings": true, "vocab_size": 1000,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
    "original_max_position_embeddings": 4096, "rope_type": "llama3"}, "torch_dtype": "bfloat16",
  "bos_token_id": 1, "eos_token_id": 2, "use_cache": true, "initializer_range": 0.01}
)" + rest)
                                .model.config;
  CHECK(llama.family == &llama_family());
  CHECK(llama.hidden_size == 256);
  CHECK(llama.num_key_value_heads == 0);
  CHECK(llama.norm_eps == 1e-6F);
  CHECK(llama.rope_theta == 500000);
  REQUIRE(llama.rope_scaling);
  CHECK(*llama.rope_scaling == RopeScaling{RopeType::llama3, 32, 4096, 1, 4});
  CHECK(llama.qkv_bias);
  CHECK(llama.attention_output_bias);
  CHECK_FALSE(llama.mlp_bias);
  CHECK(llama.eos_token_id == 2);

  const ModelConfig gpt2 =
      load_text(
          "model: {model_type: gpt2, n_embd: 64, n_layer: 2, n_head: 4, n_positions: 1024, "
          "n_inner: "
          "null, layer_norm_epsilon: 1e-5, activation_function: gelu_new, attn_pdrop: 0.0}\n" +
          rest)
          .model.config;
  CHECK(gpt2.family == &gpt2_family());
  CHECK(gpt2.norm == NormKind::layer_norm);
  CHECK(gpt2.mlp == MlpKind::gelu);
  CHECK(gpt2.positions == PositionKind::learned);
  CHECK(gpt2.qkv_bias);
  CHECK(gpt2.norm_bias);
  CHECK(gpt2.tie_word_embeddings);
  CHECK(gpt2.hidden_size == 64);
  CHECK(gpt2.max_position_embeddings == 1024);

  const ModelConfig qwen3 = load_text(
                                "model: {model_type: qwen3, hidden_size: 64, num_hidden_layers: 2, "
                                "num_attention_heads: 4, "
                                "max_position_embeddings: 4096, head_dim: 32, rope_parameters: "
                                "{rope_theta: 1e6, rope_type: "
                                "default}}\n" +
                                rest)
                                .model.config;
  CHECK(qwen3.family == &qwen3_family());
  CHECK(qwen3.qk_norm);
  CHECK(qwen3.head_dim == 32);
  CHECK(qwen3.rope_theta == 1e6);
}

TEST_CASE("presets of published models have their numbers of parameters") {
  CHECK(parameter_count(find_preset("qwen3-0.6b")->config) == 596'049'920);
  CHECK(parameter_count(find_preset("mistral-7b")->config) == 7'248'023'552);
  CHECK(parameter_count(find_preset("llama-8b")->config) == 8'030'261'248);
  CHECK(parameter_count(find_preset("llama-70b")->config) == 70'553'706'496);
  CHECK(parameter_count(find_preset("qwen3-30b-a3b")->config) == 30'532'122'624);
  CHECK(parameter_count(find_preset("mixtral-8x7b")->config) == 46'702'792'704);
  CHECK(parameter_count(find_preset("llama-405b")->config) == 405'853'388'800);
}

TEST_CASE("model_type sets the family's switches, and leaves those of a preset of that family") {
  const auto model = [](const std::string& type) {
    return load_text("model: {preset: toy, model_type: " + type +
                     "}\ndata: {train: a}\ntraining: {max_steps: 5}\n")
        .model.config;
  };
  CHECK(model("qwen2").qkv_bias);
  CHECK_FALSE(model("qwen2").attention_output_bias);
  CHECK(model("qwen3").qk_norm);
  CHECK_FALSE(model("qwen3").qkv_bias);
  CHECK(model("mistral").family == &mistral_family());
  CHECK(same_computation(model("mistral"), model("llama")));
  const ModelConfig unbiased = load_text(
                                   "model: {preset: nanogpt-laptop, model_type: gpt2}\n"
                                   "data: {train: a}\ntraining: {max_steps: 5}\n")
                                   .model.config;
  CHECK_FALSE(unbiased.qkv_bias);
}

TEST_CASE("fields override a preset") {
  const Settings s = load_text(
      "model: {num_hidden_layers: 6, preset: toy}\n"
      "data: {train: a}\ntraining: {max_steps: 5}\n");
  CHECK(s.model.config.num_hidden_layers == 6);
  CHECK(s.model.config.hidden_size == 64);
}

TEST_CASE("precision.plan names the plan, with tuning keys in either section") {
  const Settings s = load_text(kBase + "precision: {plan: te-delayed, margin: 1}\n");
  CHECK(s.precision.plan == "te-delayed");
  CHECK(s.precision.margin == 1);
  CHECK(load_text(kBase + "precision: {plan: te-delayed}\nfp8: {margin: 2}\n").precision.margin ==
        2);
}

TEST_CASE("the formats of moments can be set under any plan") {
  const Settings settings = load_text(
      kBase + "mixed_precision: bf16\nprecision: {moment1: e4m3 group(128), moment2: fp16}\n");
  CHECK(settings.precision.roles.moment1 == "e4m3 group(128)");
  CHECK(settings.precision.roles.moment2 == "fp16");
  CHECK_THAT(test::error_of(kBase + "precision: {moment1: int8}\n"),
             Catch::Contains("precision.moment1") && Catch::Contains("group(128)"));
  CHECK_THAT(test::error_of(kBase + "optimizer: {name: sgd}\nprecision: {moment1: bf16}\n"),
             Catch::Contains("precision.moment1") && Catch::Contains("sgd"));
}

TEST_CASE("muon has keys of its own") {
  const OptimizerSettings settings =
      load_text(kBase +
                "optimizer: {name: muon, betas: [0.8, 0.9], muon: {momentum: 0.9, "
                "nesterov: false, ns_steps: 6, scale: original, lr_factor: 20}}\n")
          .optimizer;
  CHECK(settings.name == "muon");
  CHECK(settings.muon == MuonSettings{.momentum = 0.9,
                                      .nesterov = false,
                                      .ns_steps = 6,
                                      .scale = MuonScale::original,
                                      .lr_factor = 20});
  CHECK(load_text(kBase + "optimizer: {name: muon}\n").optimizer.muon == MuonSettings{});
  CHECK(load_text(kBase + "optimizer: {name: muon}\nprecision: {moment1: bf16}\n")
            .precision.roles.moment1 == "bf16");
}

TEST_CASE("roles combine with any plan; an error names their location") {
  const Settings settings =
      load_text(kBase + "precision: {plan: fp8-safe, moment1: bf16, self_exact: true}\n");
  CHECK(settings.precision.roles.moment1 == "bf16");
  CHECK(settings.precision.self_exact == true);
  CHECK_THAT(test::error_of(kBase + "precision: {plan: te-current, wgrad_x: e4m3 1x128}\n"),
             Catch::StartsWith("run.yaml:4:31:") && Catch::Contains("precision.wgrad_x") &&
                 Catch::Contains("no product"));
  CHECK_THAT(test::error_of(kBase + "precision: {fprop_x: e4m4}\n"),
             Catch::StartsWith("run.yaml:4:13: precision.fprop_x: 'e4m4'") &&
                 Catch::Contains("did you mean 'e4m3'"));
  CHECK_THAT(test::error_of(kBase + "precision: {plan: custom}\n"),
             Catch::StartsWith("run.yaml:4:13: precision.plan:"));
  CHECK_THAT(test::error_of(kBase + "precision: {plan: te-current, weights: bf16}\n"),
             Catch::Contains("did you mean \"weight\""));
}

TEST_CASE("a section without keys is an empty section") {
  CHECK(load_text(kBase + "optimizer:\n").optimizer == OptimizerSettings{});
}

TEST_CASE("presets have the published sizes") {
  const auto parameters = [](const std::string& name) {
    const ModelConfig& c = find_preset(name)->config;
    const bool gated = c.mlp == MlpKind::swiglu;
    const int64_t bias_count =
        c.qkv_bias ? c.qkv_width() + 2 * c.hidden_size + c.intermediate_size : 0;
    const int64_t norm = c.hidden_size * (c.norm == NormKind::layer_norm && c.norm_bias ? 2 : 1);
    const int64_t block =
        c.hidden_size * c.qkv_width() + c.num_attention_heads * c.head_dim * c.hidden_size +
        (gated ? 3 : 2) * c.hidden_size * c.intermediate_size + bias_count + 2 * norm;
    const int64_t tables =
        c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2) +
        (c.positions == PositionKind::learned ? c.max_position_embeddings * c.hidden_size : 0);
    return c.num_hidden_layers * block + tables + norm;
  };
  CHECK(parameters("gpt2-124m") == 124'439'808);
  CHECK(parameters("llama-1b") == 1'235'814'400);
  CHECK(parameters("llama-8b") == 8'030'261'248);
  CHECK(parameters("llama-42m") == 41'558'528);
  // nanoGPT reports 0.80M without the position table for this shape and 65 characters.
  CHECK(parameters("nanogpt-laptop") + 65 * 128 - 64 * 128 == 795'904);
}

TEST_CASE("~/ in a path is the home directory") {
  const test::EnvironmentScope home("HOME", "/home/user");
  const Settings s = load_text(R"(
model: {from: ~/model}
data:
  train: [~/a.txt, {path: ~/b.txt}]
  val: ~/c.txt
  tokenizer: ~/tokenizer.json
training: {max_steps: 1}
checkpoint: {resume: ~/run/step-1}
comm: {bootstrap_file: ~/meet}
output_dir: ~/run
)");
  CHECK(s.model.from == "/home/user/model");
  CHECK(s.data.train.at(0).path == "/home/user/a.txt");
  CHECK(s.data.train.at(1).path == "/home/user/b.txt");
  CHECK(s.data.val.at(0).path == "/home/user/c.txt");
  CHECK(s.data.tokenizer == "/home/user/tokenizer.json");
  CHECK(s.checkpoint.resume == "/home/user/run/step-1");
  CHECK(s.comm.bootstrap_file == "/home/user/meet");
  CHECK(s.output_dir == "/home/user/run");
  CHECK(load_text(kBase, {"output_dir=~/other"}).output_dir == "/home/user/other");
  CHECK(load_text(kBase, {"data.train=~/other/*.txt"}).data.train.at(0).path ==
        "/home/user/other/*.txt");
  CHECK(load_text(kBase, {"output_dir=a/~/b~"}).output_dir == "a/~/b~");
  CHECK(load_text(kBase, {"output_dir=./~x"}).output_dir == "./~x");
}

TEST_CASE("the names of Slurm's accounts and partitions have marks that a shell leaves alone") {
  for (const std::string word : {"abc@h100", "a/b", "lab:gpu", "x=1", "50%", "a_b.c,d+e-f"}) {
    CAPTURE(word);
    const JobSettings job = load_text(kBase, {"job.account=" + word, "job.partition=" + word}).job;
    CHECK(job.account == word);
    CHECK(job.partition == word);
  }
}

TEST_CASE("a flow mapping of YAML has no comments of JSON") {
  const Settings s = load_text(
      "{model: {preset: toy}, training: {max_steps: 1},\n"
      " data: {train: [{path: /*.txt}, {path: data/*/x.txt}], val: [/*/, //host/*/b.txt]}}");
  REQUIRE(s.data.train.size() == 2);
  CHECK(s.data.train[0].path == "/*.txt");
  CHECK(s.data.train[1].path == "data/*/x.txt");
  REQUIRE(s.data.val.size() == 2);
  CHECK(s.data.val[0].path == "/*/");
  CHECK(s.data.val[1].path == "//host/*/b.txt");
  // In JSON, a comment does not end within the two characters that begin it.
  CHECK(load_text("{\"model\": {\"preset\": \"toy\"}, \"data\": {\"train\": \"a.txt\"},\n"
                  " \"training\": /*/ of them all */ {\"max_steps\": 7}}")
            .training.max_steps == 7);
}

TEST_CASE("what nothing expands in a path is an error") {
  const auto error = [](const std::string& assignment) {
    return test::error_of(kBase, {assignment});
  };
  using Catch::Contains;
  for (const char* key : {"output_dir", "model.from", "data.train", "data.val", "data.tokenizer",
                          "precision.file", "checkpoint.resume", "comm.bootstrap_file"}) {
    CAPTURE(key);
    CHECK_THAT(error(std::string(key) + "=${HOME}/run"),
               Contains(std::string(key) + ": ${HOME} is not expanded here"));
    CHECK_THAT(error(std::string(key) + "=runs/$SLURM_JOB_ID"),
               Contains("$SLURM_JOB_ID is not expanded here"));
    CHECK_THAT(
        error(std::string(key) + "=~user/run"),
        Contains("only ~/ is expanded here: write the path of ~user itself, or ./~user/run"));
  }
  CHECK(error("output_dir=costs/5$") == "loaded");
  CHECK(error("output_dir=costs/$5") == "loaded");
  CHECK(error("output_dir=a/${}") == "loaded");
}

}  // namespace
}  // namespace fp8train
