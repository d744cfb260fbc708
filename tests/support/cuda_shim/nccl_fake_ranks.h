#pragma once
// Where the ranks of the fake NCCL are: one of nccl_fake_threads.cpp and nccl_fake_processes.cpp is
// linked.

#include <memory>
#include <string>

#include "nccl_board.h"

namespace fp8train::shim {

/// What a unique id has, for ranks to find each other by.
std::string new_clique_name();

/// Where the ranks of that name's clique post their notes; null where they are threads.
std::unique_ptr<NcclBoard> board_of(const std::string& name);

}  // namespace fp8train::shim
