#pragma once
// A corpus is one logical array of token ids put together from files: token files stay on disk and
// are read when asked, text and JSON lines are tokenized into memory at opening (2 bytes per token
// for vocabularies up to 65536, else 4). Reads are thread-safe.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/input_file.h"
#include "data/data_settings.h"
#include "data/token_store.h"
#include "data/tokenizer.h"

namespace fp8train {

/// A file that a corpus was made from, as it was when it was opened.
struct DataFile {
  std::string path;
  FileIdentity identity;
};

/// An entry of data.train: a range of a corpus.
struct CorpusSource {
  std::string path;  ///< path as it was given: a file, a folder or a pattern
  double weight = 1.0;
  int64_t begin = 0;  ///< token
  int64_t size = 0;   ///< tokens
  size_t files = 1;
};

/// A range of token ids of a corpus.
struct TokenRange {
  int64_t begin = 0;
  int64_t size = 0;
};

/// One document of a corpus.
struct Document {
  int64_t begin;  ///< its first token within the corpus
  int64_t count;
};

/// The content of the samples of a corpus, as data.packing and data.document_mask ask for it.
struct SampleForm {
  Packing packing = Packing::windows;
  bool masks_documents = false;  ///< batches say where documents begin
  int32_t end_token = -1;        ///< windows with a mask: the last token of each document

  bool is_windows() const { return packing == Packing::windows; }
};

/// Token ids of one or several stores, one after the other, with the sources, files and documents
/// that they come from. It is put together by one thread; after that, const functions may be called
/// from several.
class Corpus {
 public:
  /// Appends tokens [begin, end) of `store`. The store is shared because the training and the
  /// validation corpus may be two ranges of one file. Throws InternalError if the store does not
  /// have this range.
  void append(std::shared_ptr<const TokenStore> store, int64_t begin, int64_t end);

  /// Returns the number of tokens.
  int64_t size() const { return size_; }

  /// Reads tokens [offset, offset + count) into `to`. Throws DataError when a file is damaged or
  /// holds an id outside the vocabulary, InternalError when the range is not within the corpus.
  void read(int64_t offset, int64_t count, int32_t* to) const;

  /// Notes that the tokens from `source.begin` on are this source's.
  void add_source(CorpusSource source) { sources_.push_back(std::move(source)); }
  const std::vector<CorpusSource>& sources() const { return sources_; }
  /// Whether samples are dealt out to sources by weight, as they are if a weight is not 1. If not,
  /// all tokens are one sequence.
  bool is_blend() const;

  /// Returns the documents that lie wholly in the corpus, as far as they are known.
  const std::vector<Document>& documents() const { return documents_; }
  /// Writes into `to`, for each of tokens [offset, offset + count), 1 if the model learns it, else
  /// 0. Throws InternalError when the range is not within the corpus.
  void read_targets(int64_t offset, int64_t count, uint8_t* to) const;
  /// Whether some tokens are not targets.
  bool has_ignored_tokens() const { return has_ignored_tokens_; }

  const SampleForm& form() const { return form_; }
  void set_form(const SampleForm& form) { form_ = form; }

  /// Notes that content comes from this file.
  void add_file(DataFile file) { files_.push_back(std::move(file)); }
  /// Returns the files of all sources, in the order of their tokens.
  const std::vector<DataFile>& files() const { return files_; }

  /// Returns 16 hex digits that are computed from sizes, samples of the content, the weights of a
  /// blend and, if samples are not plain windows, their form and the documents. A resumed run
  /// compares them to know that the tokens are the same. FileHashes (data/file_hashes.h) cover the
  /// tokens between the samples. Throws as read() does.
  std::string fingerprint() const;

 private:
  struct Segment {
    std::shared_ptr<const TokenStore> store;
    int64_t store_begin;
    int64_t corpus_begin;
    int64_t count;
  };
  template <typename Read>
  void for_each_part(int64_t offset, int64_t count, const Read& read) const;

  std::vector<Segment> segments_;
  std::vector<Document> documents_;
  bool has_ignored_tokens_ = false;
  SampleForm form_;
  std::vector<DataFile> files_;
  std::vector<CorpusSource> sources_;
  int64_t size_ = 0;
};

/// Copies tokens into a store in memory.
std::shared_ptr<const TokenStore> memory_store(const std::vector<int32_t>& tokens,
                                               DocumentTable documents = {});

/// The corpora of training and validation.
struct CorpusSplits {
  Corpus train;
  Corpus val;  ///< empty when there are neither validation sources nor a val_fraction
};

/// Opens the sources. Ids must be below `vocab_size` (the model's). Documents (JSON lines; text
/// files when a source has several) get the ids that the tokenizer puts around a document: its
/// end-of-sequence id where it has one. Without val sources the last val_fraction of each training
/// source is held back: of its text in bytes or characters, of its documents (JSON lines), or of
/// its tokens, between documents where these are known. What samples hold is resolved into the
/// corpora's form(). Throws ConfigError (weights, fractions, formats) or DataError (files), which
/// begins with `train_option` or data.val, whichever names the source.
CorpusSplits open_corpora(const DataSettings& settings, const Tokenizer& tokenizer,
                          int64_t vocab_size, const std::string& train_option = "data.train");

/// Returns the tokenizer that `settings` name; "char" reads the text of the training sources.
/// Throws ConfigError for an unknown name or sources without text, and DataError for files.
std::unique_ptr<Tokenizer> make_tokenizer(const DataSettings& settings);

}  // namespace fp8train
