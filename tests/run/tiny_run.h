#pragma once
// The words of a run of four steps on a TextFolder.

#include "program.h"

namespace fp8train::test {

inline Words tiny_run(const Words& more = {}) {
  Words words = {"device=cpu",
                 "model.preset=toy",
                 "data.train=text.txt",
                 "data.seq_length=32",
                 "training.micro_batch_size=1",
                 "training.max_steps=4",
                 "logging.interval=1",
                 "output_dir=run",
                 "threads=1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace fp8train::test
