#pragma once
// Where tokens come from.

#include <cstdint>
#include <string>
#include <vector>

namespace fp8train {

struct DataSource {
  std::string path;     ///< a file, a folder or a glob; files are read in sorted order
  std::string format;   ///< a name of data/readers/data_format.h; auto: by content and name
  double weight = 1.0;  ///< where one is not 1, samples are dealt out in these proportions

  bool operator==(const DataSource&) const = default;
};

struct DataSettings {
  std::vector<DataSource> train;
  std::vector<DataSource> val;  ///< empty: val_fraction of train is held back
  double val_fraction = 0.0;
  std::string tokenizer = "byte";  ///< as in make_tokenizer()
  int64_t seq_length = 1024;
  bool shuffle = true;            ///< false: consecutive windows in file order
  std::string text_key = "text";  ///< JSONL

  bool operator==(const DataSettings&) const = default;
};

}  // namespace fp8train
