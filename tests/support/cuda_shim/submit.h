#pragma once
// Work that is given to the shim's stream: done at once, or, while the stream is captured, kept in
// the graph. What `work` needs is copied into it, as a launch copies its arguments.

#include <functional>

namespace fp8train::shim {

void submit(std::function<void()> work);

/// Whether work is being kept in a graph: what device memory holds at that time means nothing.
bool capturing();

}  // namespace fp8train::shim
