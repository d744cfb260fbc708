// Commands next to train: numbers out of range, damaged checkpoints, too little data, runs that
// would not start as meant.

#include <algorithm>

#include "program.h"
#include "support/environment.h"

namespace fp8train::test {
namespace {

using Catch::Contains;
using Catch::EndsWith;

/// A folder with a text and a finished short run in it, out/.
class Workshop {
 public:
  Workshop() {
    write_file(folder_ / "text.txt", small_text(8000));
    expect_code(0, path(), command({}));
  }

  const fs::path& path() const { return folder_.path(); }
  fs::path operator/(const std::string& name) const { return folder_ / name; }

  static Words command(const Words& more) {
    Words words = {"train",
                   "model.preset=toy",
                   "data.train=[{path: text.txt}]",
                   "data.seq_length=16",
                   "training.max_steps=2",
                   "training.micro_batch_size=2",
                   "threads=1",
                   "output_dir=out"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Words check(const Words& more) {
    Words words = command(more);
    words.front() = "check";
    return words;
  }

 private:
  TempDir folder_;
};

TEST_CASE("numbers below their least are usage errors that name the option") {
  const Workshop shop;
  const std::vector<Words> calls = {
      {"bench", "step", "--micro-batch-size", "0"},
      {"bench", "step", "--seq-length", "-1"},
      {"bench", "step", "--vocabulary", "-1"},
      {"bench", "step", "--accumulation", "0"},
      {"bench", "step", "--seconds", "-1"},
      {"bench", "gemm", "--threads", "-1"},
      {"generate", "--checkpoint", "out", "--max-new-tokens", "-1"},
      {"generate", "--checkpoint", "out", "--temperature", "-1"},
      {"generate", "--checkpoint", "out", "--top-p", "2"},
      {"generate", "--checkpoint", "out", "--seed", "-1"},
      {"eval", "--checkpoint", "out", "--data", "text.txt", "--threads", "-3"}};
  for (const Words& words : calls) {
    const std::string& option = words[words.size() - 2];
    INFO(option);
    CHECK_THAT(expect_code(2, shop.path(), words).err, Contains(option));
  }
}

TEST_CASE("a damaged checkpoint is found when it is named directly") {
  const Workshop shop;
  const fs::path weights = shop / "out/checkpoints/step-000002/model.safetensors";
  std::string bytes = read_file(weights);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(weights, bytes);
  const std::string folder = "out/checkpoints/step-000002";
  CHECK_THAT(expect_code(4, shop.path(), {"generate", "--checkpoint", folder}).err,
             Contains("model.safetensors"));
  CHECK_THAT(
      expect_code(4, shop.path(), {"eval", "--checkpoint", folder, "--data", "text.txt"}).err,
      Contains("model.safetensors"));
}

TEST_CASE("eval needs two tokens") {
  const Workshop shop;
  write_file(shop / "tiny.txt", "x");
  CHECK_THAT(expect_code(3, shop.path(), {"eval", "--checkpoint", "out", "--data", "tiny.txt"}).err,
             Contains("tiny.txt"));
}

TEST_CASE("an empty message is no dialogue on standard input") {
  const Workshop shop;
  write_file(shop / "line", "a\n");
  const Outcome outcome =
      Process(shop.path(), {"generate", "--checkpoint", "out", "--chat", "--prompt", ""}, {},
              {"/bin/sh", "-c", "exec \"$0\" \"$@\" < line"})
          .wait();
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.err, Contains("--prompt: a message is empty"));
}

TEST_CASE("generate says where the model's context ends") {
  const Workshop shop;
  const Outcome outcome = expect_code(
      0, shop.path(),
      {"generate", "--checkpoint", "out", "--prompt", "a", "--max-new-tokens", "100000"});
  CHECK_THAT(outcome.err, Contains("context of 64 tokens leaves space for 6"));
}

TEST_CASE("a refused run leaves the records of the one before as they are") {
  const Workshop shop;
  const std::string config = read_file(shop / "out/config.resolved.yaml");
  const std::string commands = read_file(shop / "out/command.txt");
  expect_code(4, shop.path(),
              Workshop::command({"model.num_hidden_layers=3", "training.max_steps=4"}));
  CHECK(read_file(shop / "out/config.resolved.yaml") == config);
  CHECK(read_file(shop / "out/command.txt") == commands);
}

TEST_CASE("check says what would not run here, or not in FP8") {
  const Workshop shop;
  const Outcome large =
      expect_code(4, shop.path(), Workshop::check({"training.micro_batch_size=1000000"}));
  CHECK_THAT(large.out, Contains("\n\nDOES NOT FIT: a rank needs ") &&
                            Contains("training.micro_batch_size") && !Contains("start it with"));
  CHECK_THAT(large.out, EndsWith("exit code 4; all else is ok\n"));
  CHECK_THAT(
      expect_code(0, shop.path(), Workshop::check({"--seed", "1", "output_dir=new"})).out,
      Contains("ok: the configuration is valid, every token of the data can be read, output_dir "
               "can be written, and the run fits into memory\n"
               "start it with `fp8train model.preset=toy 'data.train=[{path: text.txt}]' ") &&
          EndsWith(" output_dir=new training.seed=1`\n"));
  write_file(shop / "run.yaml",
             "model: {preset: toy}\n"
             "data: {train: [{path: text.txt}], seq_length: 16}\n"
             "training: {max_steps: 2, micro_batch_size: 2}\n"
             "output_dir: new\n");
  CHECK_THAT(expect_code(0, shop.path(), {"check", "--world-size", "2", "-c", "run.yaml"}).out,
             EndsWith("start it with `mpirun -n 2 fp8train run.yaml`\n"));
  CHECK_THAT(expect_code(0, shop.path(), Workshop::check({"--no-scan", "output_dir=new"})).out,
             Contains("a sample of the data can be read"));
  const Outcome plain =
      expect_code(0, shop.path(),
                  Workshop::check({"output_dir=new", "mixed_precision=fp8", "model.hidden_size=72",
                                   "model.intermediate_size=72", "model.head_dim=18"}));
  CHECK_THAT(plain.out, Contains("NONE of") && Contains("multiple of 16"));
  const Outcome mixed = expect_code(0, shop.path(),
                                    Workshop::check({"output_dir=new", "mixed_precision=fp8",
                                                     "precision.layers={'*.mlp.down': te-nvfp4}"}));
  CHECK_THAT(mixed.out, Contains("6 of 9 linear layers in FP8, 2 in FP4, the others in bf16 ("));
  CHECK_THAT(expect_code(4, shop.path(), Workshop::check({"output_dir=text.txt/run"})).err,
             Contains("text.txt"));
  CHECK_THAT(expect_code(4, shop.path(), Workshop::check({"output_dir=/proc/run"})).err,
             Contains("--set output_dir=/proc/run: output_dir: /proc cannot be written to"));
  CHECK(expect_code(0, shop.path(), Workshop::check({"-q", "output_dir=new/run"})).out.empty());
  CHECK_FALSE(fs::exists(shop / "new"));
  std::string dialogues;
  for (int i = 0; i < 50; ++i) {
    dialogues += R"({"messages": [{"role": "assistant", "content": "a"}]})"
                 "\n";
  }
  write_file(shop / "talk.json", dialogues);
  CHECK_THAT(expect_code(2, shop.path(),
                         Workshop::check({"output_dir=new", "data.train=[{path: talk.json}]"}))
                 .err,
             Contains("the tokenizer's folder has no chat template"));
  Words hub = Workshop::check({"model.from=meta-llama/Llama-3.2-1B"});
  hub.erase(std::find(hub.begin(), hub.end(), "model.preset=toy"));
  CHECK_THAT(expect_code(4, shop.path(), hub).err,
             Contains("models are not downloaded: fetch it, for example with `hf download NAME"));
}

TEST_CASE("check compares a layout with one rank") {
  const Workshop shop;
  const auto compare = [&](int code, Words more) {
    more.insert(more.end(), {"--against-one-rank", "precision.plan=te-delayed"});
    return expect_code(code, shop.path(), Workshop::check(more));
  };
  const Words two = {"--world-size=2", "parallelism={tensor: 2, tensor_parts: 2}", "device=cpu"};
  CHECK_THAT(compare(0, two).out, Contains("tensor 2 against one rank: equal bits, as expected\n"));
  const Words many = {"--world-size=16", "parallelism={tensor: 2, pipeline: 2}"};
  CHECK_THAT(compare(0, many).out,
             Contains("data 2 as 8 threads of this process; the run has tensor 2 x pipeline 2") &&
                 Contains("\ndata 2 against one rank: equal but for 0.2 of a gradient's") &&
                 Contains("NCCL") && Contains("with parallelism.tensor_parts=2 bits"));
  CHECK_THAT(compare(2, {}).err, Contains("--against-one-rank: the run has one rank"));
}

TEST_CASE("check compares the run with the checkpoint that it would continue from") {
  const Workshop shop;
  const std::string last = "out/checkpoints/step-000002";
  CHECK_THAT(expect_code(0, shop.path(), Workshop::check({"training.max_steps=4"})).out,
             Contains("resume  from " + last + ": step 2 of 4\n"));
  CHECK_THAT(expect_code(0, shop.path(), Workshop::check({"output_dir=new"})).out,
             !Contains("resume"));
  CHECK_THAT(expect_code(4, shop.path(), Workshop::check({"checkpoint.resume=/nope"})).err,
             Contains("checkpoint.resume: /nope: not a complete checkpoint"));
  CHECK_THAT(expect_code(2, shop.path(), Workshop::check({"checkpoint.resume=never"})).err,
             Contains("out/checkpoints holds checkpoints of an earlier run"));
  const std::vector<Words> changes = {
      {"model.num_hidden_layers=3"}, {"precision.plan=bf16"}, {"training.seed=7"}};
  for (const Words& change : changes) {
    CAPTURE(change.front());
    const std::string refused = expect_code(4, shop.path(), Workshop::check(change)).err;
    CHECK_THAT(refused, Contains(last + " differs from this run:"));
    CHECK(refused == expect_code(4, shop.path(), Workshop::command(change)).err);
  }
}

TEST_CASE("check compares all bytes of the data with those that a checkpoint was saved with") {
  const TempDir folder;
  std::string text = small_text(100000);
  write_file(folder / "text.txt", text);
  expect_code(0, folder.path(), Workshop::command({}));
  text[3000] = text[3000] == 'x' ? 'y' : 'x';  // between two samples of its tokens
  write_file(folder / "text.txt", text);
  const Words words = Workshop::check({"training.max_steps=4"});
  CHECK_THAT(expect_code(4, folder.path(), words).err,
             Contains("text.txt has other content of the same size"));
  Words samples = words;
  samples.emplace_back("--no-scan");
  expect_code(0, folder.path(), samples);
}

TEST_CASE("check plans memory for the GPU that the job names") {
  const Workshop shop;
  const std::string planned = "device  h100 (job.gpu): products and memory are planned for it\n";
  CHECK_THAT(expect_code(0, shop.path(), Workshop::check({"job.gpu=h100", "output_dir=new"})).out,
             Contains(planned) && Contains("cuDNN's workspace for attention is not counted") &&
                 Contains("the run fits into the memory of h100\n"));
  CHECK_THAT(expect_code(4, shop.path(),
                         Workshop::check({"job.gpu=h100", "training.micro_batch_size=1000000"}))
                 .out,
             Contains(planned) && Contains("DOES NOT FIT: a rank needs ") &&
                 Contains(" and has 78.5 GiB") &&
                 EndsWith("on h100 the run would stop at once, with "
                          "exit code 4; all else is ok\n"));
}

TEST_CASE("check warns of data that are read very often, and of a vocabulary that is not used") {
  const Workshop shop;
  const std::string often = "data.train: the run reads text.txt ";
  const std::string unused = "data.tokenizer: 'byte' has 258 ids and the model a vocabulary of ";
  const std::string usual = expect_code(0, shop.path(), Workshop::check({})).err;
  CHECK_THAT(usual, !Contains(often) && !Contains(unused));
  CHECK_THAT(expect_code(0, shop.path(),
                         Workshop::check({"output_dir=new", "training.max_steps=300000",
                                          "model.vocab_size=4128"}))
                 .err,
             Contains(often) && Contains(" times; add data, or shorten the run") &&
                 Contains(unused + "4128") && Contains("model.vocab_size: 320"));
}

TEST_CASE("bench measures each of its parts") {
  const TempDir folder;
  const std::vector<std::pair<Words, const char*>> parts = {
      {{"step", "--preset", "toy", "--micro-batch-size", "1", "--seq-length", "8", "--layers", "1"},
       "tokens_per_second"},
      {{"gemm", "--sizes", "32"}, "GFLOP/s"},
      {{"attention", "--batch", "1", "--seq-length", "16", "--heads", "2", "--kv-heads", "1"},
       "backward_gflops"},
      {{"cast"}, "gbytes_per_second"}};
  for (const auto& [part, figure] : parts) {
    INFO(part.front());
    Words words = {"bench"};
    words.insert(words.end(), part.begin(), part.end());
    words.insert(words.end(), {"--seconds", "0.01", "--device", "cpu"});
    CHECK_THAT(expect_code(0, folder.path(), words).out, Contains(figure));
  }
  CHECK_THAT(
      expect_code(2, folder.path(), {"bench", "attention", "--heads", "3", "--kv-heads", "2"}).err,
      Contains("--kv-heads"));
}

TEST_CASE("export writes a folder that eval reads, and says what is wrong") {
  const Workshop shop;
  const Outcome outcome =
      expect_code(0, shop.path(), {"export", "out", "--out", "hf", "--max-shard-size", "50KB"});
  CHECK_THAT(outcome.out, Contains("wrote hf: ") && Contains("of fp32; copied tokenizer.json"));
  CHECK(fs::exists(shop / "hf/model.safetensors.index.json"));
  const auto loss = [&](const char* folder) {
    return expect_code(0, shop.path(),
                       {"eval", "--checkpoint", folder, "--data", "text.txt", "--json"})
        .out;
  };
  CHECK(loss("hf") == loss("out"));
  fs::create_directory(shop / "half");  // of an export that was interrupted
  fs::copy_file(shop / "hf/model.safetensors.index.json",
                shop / "half/model.safetensors.index.json");
  const std::vector<std::pair<Words, const char*>> refusals = {
      {{"out", "--out", "hf"}, "hf holds files of a model already"},
      {{"out", "--out", "half"}, "half holds files of a model already"},
      {{"out", "--out", "a", "--dtype", "int8"},
       "expected fp32, bf16, fp16, fp8-block, fp8-tensor, nvfp4, mxfp4, q8_0"},
      {{"out", "--out", "a", "--to", "gguff"}, "expected hf, gguf, peft; did you mean gguf?"},
      {{"out", "--out", "a", "--to", "gguf", "--dtype", "fp8-block"}, "expected fp32, bf16"},
      {{"out", "--out", "a", "--dtype", "q8_0"}, "--to hf has no --dtype q8_0"},
      {{"out", "--out", "text.txt", "--to", "gguf"},
       "text.txt already exists; replace it with --overwrite"},
      {{"out", "--out", "a", "--overwrite"}, "is for --to gguf; a folder is not replaced"},
      {{"out", "--out", "a", "--max-shard-size", "5XB"}, "such as 5GB or 200MB"},
      {{"out", "--out", "a", "--max-shard-size", "-5GB"}, "such as 5GB or 200MB"},
      {{"out", "--out", "a", "--to", "gguf", "--max-shard-size", "banana"}, "is for --to hf"}};
  for (const auto& [options, message] : refusals) {
    Words words = {"export"};
    words.insert(words.end(), options.begin(), options.end());
    CHECK_THAT(expect_code(2, shop.path(), words).err, Contains(message));
  }
  Words file = {"export", "out", "--out", "model.gguf", "--to", "gguf"};
  expect_code(0, shop.path(), file);
  expect_code(2, shop.path(), file);
  file.emplace_back("--overwrite");
  expect_code(0, shop.path(), file);
  CHECK_THAT(expect_code(4, shop.path(), {"export", "none", "--out", "a"}).err,
             Contains("neither a model folder"));
  fs::create_directory(shop / "bare");
  write_file(shop / "bare/config.json", read_file(shop / "hf/config.json"));
  fs::copy_file(shop / "hf/model.safetensors.index.json", shop / "bare/model.safetensors");
  CHECK_THAT(expect_code(3, shop.path(), {"generate", "--checkpoint", "bare"}).err,
             Contains("name a tokenizer with --tokenizer"));
  for (const auto& entry : fs::directory_iterator(shop.path() / "out" / "checkpoints")) {
    if (entry.is_directory()) {
      fs::resize_file(entry.path() / "model.safetensors", 1000);
    }
  }
  CHECK_THAT(expect_code(4, shop.path(), {"export", "out", "--out", "a"}).err,
             Contains("damaged; the warning"));
}

TEST_CASE("an export of a GPT-2 without biases says what other programs make of it") {
  const TextFolder folder;
  expect_code(0, folder.path(),
              {"device=cpu", "model.preset=nanogpt-laptop", "data.train=text.txt",
               "data.seq_length=16", "training.micro_batch_size=1", "training.max_steps=1",
               "precision.plan=fp32", "output_dir=out", "threads=1"});
  CHECK_THAT(expect_code(0, folder.path(), {"export", "out", "--out", "hf"}).err,
             Contains("transformers' GPT-2 has biases"));
  CHECK_THAT(expect_code(0, folder.path(), {"export", "out", "--out", "a", "--to", "gguf"}).err,
             Contains("the model lacks 25 biases that llama.cpp asks for"));
  CHECK_THAT(expect_code(4, folder.path(), {"quantize", "out", "--out", "b"}).err,
             Contains("--to gguf --dtype q8_0"));
  for (const char* command : {"export", "quantize"}) {
    CHECK_THAT(expect_code(4, folder.path(), {command, ".", "--out", "c"}).err,
               Contains("is not a run, but holds some; name one of them: ./out"));
  }
}

TEST_CASE("config convert says how many ranks to start, in a file on request") {
  const TempDir folder;
  write_file(folder / "launch.yaml", "distributed_type: MULTI_CPU\nnum_processes: 4\n");
  const std::string launcher =
      "#   mpirun -n 4 fp8train ...\n#   srun --mpi=pmix -n 4 fp8train ...\n";
  const Words words = {"config", "convert", "launch.yaml"};
  const std::string text = expect_code(0, folder.path(), words).out;
  CHECK_THAT(text, Contains("# for 4 ranks:\n" + launcher) && Contains("\ndevice: cpu"));
  Words written = words;
  written.insert(written.end(), {"--output", "new/run.yaml"});
  CHECK_THAT(expect_code(0, folder.path(), written).out, Contains("wrote new/run.yaml"));
  CHECK_THAT(read_file(folder / "new/run.yaml"), Contains(launcher));
  CHECK_THAT(expect_code(2, folder.path(), written).err, Contains("replace it with --overwrite"));
  written.emplace_back("--overwrite");
  expect_code(0, folder.path(), written);
}

TEST_CASE("~ after the = of an option is the home directory") {
  const TempDir folder;
  write_file(folder / "launch.yaml", "distributed_type: MULTI_CPU\nnum_processes: 4\n");
  fs::create_directory(folder / "home");
  const EnvironmentScope home("HOME", (folder / "home").c_str());
  const auto convert = [&](const std::string& output) {
    return run_program(folder.path(), {"config", "convert", "launch.yaml", "--output=" + output});
  };
  CHECK(convert("~/new/run.yaml").code == 0);
  CHECK(fs::exists(folder / "home/new/run.yaml"));
  CHECK_FALSE(fs::exists(folder / "~"));
  const Outcome other = convert("~user/run.yaml");
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("--output: only ~/ is expanded here"));
}

TEST_CASE("~ in an option that is no path is a character") {
  const TempDir folder;
  const EnvironmentScope home("HOME", (folder / "home").c_str());
  const std::string model = (fs::path(FP8TRAIN_GOLDEN_DIR) / "families/qwen3").string();
  for (const char* option : {"--prompt=~abc", "--system=~ be nice"}) {
    CAPTURE(option);
    // The folder has no tokenizer: the options have been read before.
    const Outcome outcome = run_program(
        folder.path(), {"generate", "--checkpoint", model, "--tokenizer=~/none", "--chat", option});
    CHECK_THAT(outcome.err, Contains((folder / "home/none").string()));
  }
  CHECK_THAT(
      expect_code(2, folder.path(), {"generate", "--checkpoint", model, "--tokenizer=~none"}).err,
      Contains("--tokenizer: only ~/ is expanded here"));
  write_file(folder / "a.txt", "~ab~ab");
  expect_code(0, folder.path(), {"data", "prepare", "a.txt", "--tokenizer=char", "--out=~/tokens"});
  CHECK(fs::exists(folder / "home/tokens"));
}

}  // namespace
}  // namespace fp8train::test
