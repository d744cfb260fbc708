#include <catch2/catch.hpp>
#include <string>

#include "base/key_error.h"
#include "base/text.h"
#include "config/load_support.h"
#include "config/presets.h"
#include "optim/registry.h"
#include "support/files.h"
#include "support/temp_dir.h"

namespace fp8train {
namespace {

using test::error_of;
using test::error_with;
using test::kBase;

TEST_CASE("unknown keys name the location and the nearest key") {
  CHECK(error_with("optimizer: {weight_decy: 1}") ==
        "run.yaml:4:13: optimizer.weight_decy: unknown key; did you mean \"weight_decay\"?");
  CHECK(error_with("optimiser: {lr: 1}") ==
        "run.yaml:4:1: optimiser: unknown key; did you mean \"optimizer\"?");
  CHECK(error_with("output-dir: x") ==
        "run.yaml:4:1: output-dir: unknown key; did you mean \"output_dir\"?");
  CHECK(error_with("zzzzzz: x") == "run.yaml:4:1: zzzzzz: unknown key");
  CHECK(error_with("optimizer: {wightdecy: 1}") ==
        "run.yaml:4:13: optimizer.wightdecy: unknown key; did you mean \"weight_decay\"?");
}

TEST_CASE("keys in the wrong section and foreign spellings name the right one") {
  CHECK(error_with("learning_rate: 1e-3") ==
        "run.yaml:4:1: learning_rate: unknown key; `learning_rate` belongs to `optimizer` as lr");
  CHECK(error_with("optimizer: {learning_rate: 1e-3}") ==
        "run.yaml:4:13: optimizer.learning_rate: unknown key; did you mean \"lr\"?");
  CHECK(
      error_with("scheduler: {weight_decay: 1}") ==
      "run.yaml:4:13: scheduler.weight_decay: unknown key; `weight_decay` belongs to `optimizer`");
  CHECK(error_with("scheduler: {device: cpu}") ==
        "run.yaml:4:13: scheduler.device: unknown key; `device` belongs to the top level");
  CHECK(error_with("block_size: 3") ==
        "run.yaml:4:1: block_size: unknown key; `block_size` belongs to `data` as seq_length");
  CHECK(error_with("optimizer.lr: 3") ==
        "run.yaml:4:1: optimizer.lr: unknown key; write it as `lr` inside `optimizer`");
  CHECK(error_with("fp16: true") == "run.yaml:4:1: fp16: unknown key; use mixed_precision: fp16");
}

TEST_CASE("a key given twice is an error at the second location") {
  CHECK(error_with("optimizer:\n  lr: 1\n  lr: 1") ==
        "run.yaml:6:3: optimizer.lr: given twice, first in line 5");
  CHECK(error_with("device: cpu\ndevice: cpu") ==
        "run.yaml:5:1: device: given twice, first in line 4");
  CHECK(error_of("model: {n_embd: 8, hidden_size: 8, n_layer: 1, n_head: 1, n_positions: 2048}\n"
                 "data: {train: a}\ntraining: {max_steps: 1}\n") ==
        "run.yaml:1:20: model.hidden_size: given twice, first as model.n_embd at run.yaml:1:9");
  CHECK(error_with("mixed_precision: fp8\nfp8: {margin: 1}\nprecision: {margin: 1}") ==
        "run.yaml:6:13: precision.margin: given twice, first as fp8.margin at run.yaml:5:7");
}

TEST_CASE("a value that is refused gets no second objection") {
  CHECK(error_with("moe: {capacity_factor: -1}") ==
        "run.yaml:4:24: moe.capacity_factor: expected a number in (0, 1024], got \"-1\"");
}

TEST_CASE("mistyped values say what was expected") {
  CHECK(error_with("optimizer: {lr: 3e-4x}") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got \"3e-4x\"");
  CHECK(error_with("optimizer: {lr: -1}") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got \"-1\"");
  CHECK(error_with("optimizer: {lr: .nan}") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got \".nan\"");
  CHECK(error_with("optimizer: {lr: \"1e-3\"}") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got \"1e-3\" in quotes; remove the "
        "quotes");
  CHECK(error_with("optimizer: {lr: }") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got nothing");
  CHECK(error_with("optimizer: {lr: [1]}") ==
        "run.yaml:4:17: optimizer.lr: expected a number > 0, got a list");
  CHECK(error_with("optimizer: 5") ==
        "run.yaml:4:1: optimizer: expected a section of keys, got \"5\"");
  CHECK(error_with("eval: {batches: 0}") ==
        "run.yaml:4:17: eval.batches: expected a whole number >= 1, got \"0\"");
  CHECK(error_with("eval: {batches: 010}") ==
        "run.yaml:4:17: eval.batches: expected a whole number >= 1, got \"010\"");
  CHECK(error_with("eval: {batches: 1e30}") ==
        "run.yaml:4:17: eval.batches: expected a whole number >= 1, got \"1e30\"; at most "
        "1000000000000");
  CHECK(error_with("checkpoint: {save_final: yes}") ==
        "run.yaml:4:26: checkpoint.save_final: expected true or false, got \"yes\"");
  CHECK(error_of("model: {preset: toy}\ndata: {train: a}\n"
                 "training: {max_steps: 1, deterministic: 1}\n") ==
        "run.yaml:3:41: training.deterministic: expected true or false, got \"1\"");
  CHECK(error_with("device: cuda0") ==
        "run.yaml:4:9: device: expected one of auto, cpu, cuda, got \"cuda0\"; did you mean "
        "\"cuda\"?");
  std::string expected = "run.yaml:4:19: optimizer.name: expected one of";
  for (const OptimizerEntry& entry : optimizers()) {
    expected += " " + std::string(entry.name) + ",";
  }
  CHECK(error_with("optimizer: {name: nonesuch}") == expected + " got \"nonesuch\"");
  CHECK(error_with("optimizer: {name: sdg}") == expected + " got \"sdg\"; did you mean \"sgd\"?");
  CHECK(error_with("mixed_precision: {mode: fp8}") ==
        "run.yaml:4:18: mixed_precision: expected one of no, bf16, fp16, fp8, got a section");
  CHECK(error_with("output_dir: \"\"") ==
        "run.yaml:4:13: output_dir: expected a folder, got \"\" in quotes");
  CHECK(error_with("device: \"cuda0\"") ==
        "run.yaml:4:9: device: expected one of auto, cpu, cuda, got \"cuda0\"; did you mean "
        "\"cuda\"?");
  CHECK(
      error_with("optimizer: {betas: [0.9]}") ==
      "run.yaml:4:20: optimizer.betas: expected a list of 2 numbers in [0, 1), got a list; it has "
      "1 element");
  CHECK(error_with("optimizer: {betas: [0.9, 1]}") ==
        "run.yaml:4:26: optimizer.betas[1]: expected a number in [0, 1), got \"1\"");
  CHECK(error_with("mixed_precision: fp8\nfp8: {override_linear_precision: [true, 1, true]}") ==
        "run.yaml:5:41: fp8.override_linear_precision[1]: expected true or false, got \"1\"");
  CHECK(error_with("sample: {prompts: [[a]]}") ==
        "run.yaml:4:20: sample.prompts[0]: expected text, got a list");
}

TEST_CASE("values that reach a shell or the name of a file have no characters of control") {
  const char* const kWord = "expected a word of letters, digits and _ . / - + = : , @ %";
  CHECK_THAT(error_with("job: {account: \"a\\ntouch x\\n#\"}"),
             Catch::StartsWith("run.yaml:4:16: job.account: ") && Catch::Contains(kWord));
  CHECK_THAT(error_with("job: {partition: a b}"),
             Catch::StartsWith("run.yaml:4:18: job.partition: ") && Catch::Contains(kWord));
  for (const char* word : {"$(id)", "'a;b'", "'~'", "'a`id`'", "\"a'b\"", "'a\\b'", "'a*'"}) {
    CAPTURE(word);
    CHECK_THAT(error_with(fmt::format("job: {{partition: {}}}", word)), Catch::Contains(kWord));
  }
  CHECK_THAT(error_with("job: {modules: [gcc, \"a; id\"]}"),
             Catch::Contains("job.modules: expected a list of names of modules"));
  for (const char* option : {"-N2", "qos=high", "--", "\"--qos=a\\ntouch x\"", "'#SBATCH -N2'"}) {
    CAPTURE(option);
    CHECK_THAT(error_with(fmt::format("job: {{sbatch_extra: [{}]}}", option)),
               Catch::Contains("job.sbatch_extra: ") &&
                   Catch::Contains(" is not an option of sbatch, such as --qos=high"));
  }
  CHECK_THAT(
      error_with("output_dir: \"a\\nb\""),
      Catch::StartsWith("run.yaml:4:13: output_dir: ") && Catch::Contains("control characters"));
  CHECK_THAT(error_with("checkpoint: {resume: \"a\\e[31m\"}"),
             Catch::Contains("control characters"));
}

TEST_CASE("data sources are checked inside") {
  const auto with_train = [](const std::string& train) {
    return error_of("model: {preset: toy}\ntraining: {max_steps: 1}\ndata: {train: " + train +
                    "}\n");
  };
  CHECK(with_train("[{pth: a, path: b}]") ==
        "run.yaml:3:17: data.train[0].pth: unknown key; did you mean \"path\"?");
  CHECK(with_train("[a, {path: b, weight: 0}]") ==
        "run.yaml:3:37: data.train[1].weight: expected a number > 0, at most 1e12, got \"0\"");
  CHECK_THAT(with_train("[a, {path: b, weight: 1e308}]"),
             Catch::Contains("at most 1e12, got \"1e308\""));
  CHECK(with_train("[{weight: 1}]") == "run.yaml:3:16: data.train[0]: a source needs a path");
  CHECK(with_train("[]") ==
        "run.yaml:3:8: data.train: an empty list; give at least one source such "
        "as [{path: corpus.txt}]");
  CHECK(with_train("[{path: a, path: b}]") ==
        "run.yaml:3:26: data.train[0].path: given twice, first in line 3");
}

TEST_CASE("all problems are reported at once, in order of location, then the command line") {
  CHECK(error_of("model: {preset: toi}\n"
                 "data: {train: a, seq_lenght: 3}\n"
                 "training: {max_steps: x}\n"
                 "optimizer: {lr: -3}\n",
                 {"eval.batches=0", "nothing"}, "devic=cpu") ==
        "run.yaml:1:17: model.preset: expected one of " + joined(presets(), &Preset::name) +
            ", got \"toi\"; did you mean \"toy\"?\n"
            "run.yaml:2:18: data.seq_lenght: unknown key; did you mean \"seq_length\"?\n"
            "run.yaml:3:23: training.max_steps: expected a whole number >= 1, got \"x\"\n"
            "run.yaml:4:17: optimizer.lr: expected a number > 0, got \"-3\"\n"
            "FP8TRAIN_SET devic=cpu: devic: unknown key; did you mean \"device\"?\n"
            "--set eval.batches=0: eval.batches: expected a whole number >= 1, got \"0\"\n"
            "--set nothing: expected key=value such as optimizer.lr=1e-3");
}

TEST_CASE("many problems are cut short") {
  std::string text = kBase;
  for (int i = 0; i < 80; ++i) {
    text += "unknown" + std::to_string(i) + ": 1\n";
  }
  const std::string message = error_of(text);
  CHECK(std::count(message.begin(), message.end(), '\n') == 50);
  CHECK(message.ends_with("\n... and 30 more"));
}

TEST_CASE("YAML beyond plain trees is refused") {
  CHECK(error_with("optimizer: {lr: &a 1}")
            .starts_with(
                "run.yaml:4:17: optimizer.lr: YAML anchors (&name) are not supported, got \"&a\""));
  CHECK(error_with("optimizer: {lr: !!float 1}")
            .starts_with("run.yaml:4:17: optimizer.lr: YAML tags are not supported, got "
                         "\"tag:yaml.org,2002:float\""));
  const std::string alias = error_with("optimizer: &o {lr: 1}\nscheduler: *o");
  CHECK(alias.find("run.yaml:4:12: optimizer: YAML anchors") != std::string::npos);
  CHECK(alias.find("run.yaml:5:12: scheduler: YAML aliases (*name) are not supported") !=
        std::string::npos);
  CHECK(error_with("optimizer: {[a]: 1}") ==
        "run.yaml:4:13: optimizer: a key must be plain text on one line");
  CHECK(error_of(kBase, {"training.max_steps=[1"}) ==
        "--set training.max_steps=[1: training.max_steps: not valid YAML: this [ is not closed "
        "before the text ends");
  CHECK(error_of("{\"model_type\": \"llama\", \"hidden_size\": 64}") ==
        "run.yaml: this is a model's config.json, not the configuration of a run; name its folder "
        "with model.from");
  CHECK(error_with("---\nmodel: {preset: toy}") ==
        "run.yaml:4:1: a second YAML document; write only one");
  CHECK(error_of("") == "run.yaml: the file is empty");
  CHECK(error_of("# nothing\n") == "run.yaml: the file is empty");
  CHECK(error_of("- a\n- b\n").starts_with("run.yaml:1:1: expected sections and keys, got a list"));
  CHECK(error_with("optimizer: {lr: 1")
            .starts_with("run.yaml:4:12: not valid YAML: this { is not closed before the text"));
  CHECK(error_with("\tdevice: cpu")
            .starts_with("run.yaml:4:1: not valid YAML: the line begins with a tab"));
  CHECK(error_of(std::string("a: \0b", 5)) == "run.yaml: holds a zero byte, so it is not text");
}

TEST_CASE("size and depth are bounded") {
  CHECK(error_of(kBase + std::string(size_t{1} << 20, '#')) ==
        "run.yaml: larger than 1 MiB, which no configuration is");
  CHECK(error_with("optimizer: " + std::string(20, '[') + std::string(20, ']'))
            .find("nested deeper than 16 levels") != std::string::npos);
  CHECK(error_with("optimizer: " + std::string(100000, '[')).starts_with("run.yaml:4:"));
}

TEST_CASE("--set names itself") {
  CHECK(error_of(kBase, {"optimizer.lr=abc"}) ==
        "--set optimizer.lr=abc: optimizer.lr: expected a number > 0, got \"abc\"");
  CHECK(error_of(kBase, {"optimizer.lrr=1"}) ==
        "--set optimizer.lrr=1: optimizer.lrr: unknown key; did you mean \"lr\"?");
  CHECK(error_of(kBase, {"optimizer.lr="}) ==
        "--set optimizer.lr=: optimizer.lr: expected a number > 0, got nothing");
  CHECK(error_of(kBase, {"optimizer={lr: 1, lr: 2}"}) ==
        "--set optimizer={lr: 1, lr: 2}: optimizer.lr: given twice, first in line 1");
  CHECK(error_of(kBase, {"=1"}) == "--set =1: expected key=value such as optimizer.lr=1e-3");
  CHECK(error_of(kBase, {"data.train=*.txt"})
            .starts_with(
                "--set data.train=*.txt: data.train: YAML aliases (*name) are not supported"));
}

TEST_CASE("errors of a run name the location of their key") {
  const Settings settings = test::load_text(kBase + "output_dir: out\n", {"data.seq_length=8"});
  const auto located = [&](const auto& thrown) {
    return test::message_of<DeviceError>([&] { with_locations(settings, [&] { throw thrown; }); });
  };
  using KeyedError = Keyed<DeviceError>;
  CHECK(located(KeyedError("output_dir", ": is a file")) == "run.yaml:4:1: output_dir: is a file");
  CHECK(located(KeyedError("data.seq_length", " 8 is odd")) ==
        "--set data.seq_length=8: data.seq_length 8 is odd");
  CHECK(located(KeyedError("training.seed", ": is odd")) == "training.seed: is odd");
  const Settings aliased = test::load_text(
      "model: {n_embd: 8, n_layer: 1, n_head: 1, n_positions: 2048}\n"
      "data: {train: a}\ntraining: {max_steps: 1}\n");
  CHECK(aliased.notes.locations.at("model.hidden_size") == "run.yaml:1:9: model.n_embd: ");
  CHECK(located(DeviceError("output_dir: is a file")) == "output_dir: is a file");
  CHECK(test::message_of<KeyError>([&] {
          with_locations(settings, [&] {
            with_locations(settings, [] { throw KeyError("output_dir", ": is odd"); });
          });
        }) == "run.yaml:4:1: output_dir: is odd");
}

TEST_CASE("files that cannot be read") {
  const test::TempDir directory;
  LoadRequest request;
  request.path = (directory / "none.yaml").string();
  CHECK_THROWS_WITH(load_settings(request), Catch::Contains("none.yaml: cannot open"));
  request.path = directory.path().string();
  CHECK_THROWS_WITH(load_settings(request), Catch::Contains("is a folder"));
  request.path = "/dev/zero";
  CHECK_THROWS_WITH(load_settings(request), Catch::Contains("larger than 1 MiB"));
}

TEST_CASE("a misspelled key does not also count as missing, another section's does") {
  CHECK(error_of("model: {preset: toy}\ntraining: {max_step: 5}\n") ==
        "run.yaml: data.train: missing; give at least one source such as [{path: corpus.txt}]\n"
        "run.yaml:2:12: training.max_step: unknown key; did you mean \"max_steps\"?");
  CHECK(error_of("model: {preset: toy}\ndata: {train: a}\ntrainings: {max_steps: 5}\n") ==
        "run.yaml:3:1: trainings: unknown key; did you mean \"training\"?");
}

}  // namespace
}  // namespace fp8train
