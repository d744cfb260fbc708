#include <algorithm>
#include <cstring>
#include <utility>

#include "nccl_clique.h"

namespace fp8train::shim {
namespace {

/// Of rank `from`'s parts those that go to `to`, or of `to`'s those that come from `from`.
std::vector<const NcclPart*> parts_between(const NcclStart& start, bool sends, int peer) {
  std::vector<const NcclPart*> found;
  for (const NcclPart& part : start.parts) {
    if (part.sends == sends && part.peer == peer) {
      found.push_back(&part);
    }
  }
  return found;
}

std::string unmatched_group(const NcclOperation& operation) {
  const int size = static_cast<int>(operation.starts.size());
  for (int from = 0; from < size; ++from) {
    for (int to = 0; to < size; ++to) {
      const auto sent = parts_between(*operation.starts[static_cast<size_t>(from)], true, to);
      const auto taken = parts_between(*operation.starts[static_cast<size_t>(to)], false, from);
      bool same = sent.size() == taken.size();
      for (size_t i = 0; same && i < sent.size(); ++i) {
        same = sent[i]->bytes == taken[i]->bytes;
      }
      if (!same) {
        return "what rank " + std::to_string(from) + " sends to rank " + std::to_string(to) +
               " is not what that one receives";
      }
    }
  }
  return {};
}

void move_bytes(void* to, const void* from, size_t bytes) {
  if (to != from && bytes > 0) {
    std::memmove(to, from, bytes);
  }
}

void perform(const NcclOperation& operation) {
  const size_t size = operation.starts.size();
  const std::string& name = operation.starts.front()->name;
  for (size_t to = 0; to < size; ++to) {
    const NcclStart& own = *operation.starts[to];
    for (size_t from = 0; from < size; ++from) {
      const NcclStart& other = *operation.starts[from];
      if (name == "all_gather") {
        const size_t bytes = own.parts[0].bytes;
        move_bytes(static_cast<char*>(own.parts[0].to) + from * bytes, other.parts[0].from, bytes);
      } else if (name == "broadcast" && static_cast<int>(from) == own.root) {
        move_bytes(own.parts[0].to, other.parts[0].from, own.parts[0].bytes);
      } else if (name == "group") {
        const auto sent = parts_between(other, true, static_cast<int>(to));
        const auto taken = parts_between(own, false, static_cast<int>(from));
        for (size_t i = 0; i < sent.size(); ++i) {
          move_bytes(taken[i]->to, sent[i]->from, sent[i]->bytes);
        }
      }
    }
  }
}

}  // namespace

void NcclClique::fail(ncclResult_t result, const std::string& reason) {
  if (error == ncclSuccess) {
    error = result;
    why = reason;
  }
}

std::string NcclClique::join(uint64_t sequence, int rank, std::unique_ptr<NcclStart> start) {
  NcclOperation& operation = operations[sequence];
  operation.starts.resize(devices.size());
  for (const auto& other : operation.starts) {
    if (other == nullptr) {
      continue;
    }
    const bool same = other->name == start->name && other->root == start->root &&
                      (start->name == "group" || other->parts[0].bytes == start->parts[0].bytes);
    if (!same) {
      return "operation " + std::to_string(sequence) + ": rank " + std::to_string(rank) +
             " starts " + start->name + " of " + std::to_string(start->parts[0].bytes) +
             " bytes where another starts " + other->name + " of " +
             std::to_string(other->parts[0].bytes);
    }
  }
  operation.starts[static_cast<size_t>(rank)] = std::move(start);
  const bool all = std::all_of(operation.starts.begin(), operation.starts.end(),
                               [](const auto& one) { return one != nullptr; });
  return all && operation.starts.front()->name == "group" ? unmatched_group(operation)
                                                          : std::string();
}

bool NcclClique::try_operation(uint64_t sequence) {
  NcclOperation& operation = operations[sequence];
  if (operation.done || error != ncclSuccess || aborted > 0) {
    return operation.done;
  }
  for (const auto& start : operation.starts) {
    const bool ready =
        start != nullptr && std::all_of(start->before.begin(), start->before.end(),
                                        [](const auto& work) { return work->over(); });
    if (!ready) {
      return false;
    }
  }
  perform(operation);
  operation.done = true;
  operation.starts.clear();
  return true;
}

}  // namespace fp8train::shim
