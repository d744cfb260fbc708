// The fake NCCL on the host shim, where ranks are threads and nothing is loaded.

#include <atomic>
#include <string>
#include <string_view>

#include "base/error.h"
#include "comm/backends/nccl_library.h"
#include "nccl.h"
#include "nccl_fake.h"
#include "nccl_fake_ranks.h"

namespace fp8train {
namespace {
std::atomic<bool> is_installed = true;
}  // namespace

namespace shim {

std::string new_clique_name() {
  static std::atomic<int> ids = 0;
  return std::to_string(++ids);
}

std::unique_ptr<NcclBoard> board_of(const std::string& /*name*/) {
  return nullptr;
}

void set_nccl_installed(bool installed) {
  is_installed = installed;
}

}  // namespace shim

std::string why_nccl_is_unusable() {
  return is_installed ? "" : "libnccl.so.2 is not found (the fake's test says so)";
}

void* nccl_function(const char* name) {
#define FP8TRAIN_NAMED(function) \
  if (std::string_view(name) == #function) return reinterpret_cast<void*>(&::function)
  FP8TRAIN_NAMED(ncclGetUniqueId);
  FP8TRAIN_NAMED(ncclCommInitRankConfig);
  FP8TRAIN_NAMED(ncclCommSplit);
  FP8TRAIN_NAMED(ncclCommFinalize);
  FP8TRAIN_NAMED(ncclCommDestroy);
  FP8TRAIN_NAMED(ncclCommAbort);
  FP8TRAIN_NAMED(ncclCommGetAsyncError);
  FP8TRAIN_NAMED(ncclGetErrorString);
  FP8TRAIN_NAMED(ncclGetLastError);
  FP8TRAIN_NAMED(ncclAllGather);
  FP8TRAIN_NAMED(ncclBroadcast);
  FP8TRAIN_NAMED(ncclSend);
  FP8TRAIN_NAMED(ncclRecv);
  FP8TRAIN_NAMED(ncclGroupStart);
  FP8TRAIN_NAMED(ncclGroupEnd);
#undef FP8TRAIN_NAMED
  throw CommError(std::string("the fake NCCL has no ") + name);
}

}  // namespace fp8train
