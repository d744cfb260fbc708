#pragma once
// The end of a program that runs out of memory where no exception may pass.

namespace fp8train {

/// From now on an exception of memory that nobody can catch, since a destructor has thrown it, ends
/// the program with exit code 4 and a message. Any other ends it as before.
void report_memory_at_terminate();

}  // namespace fp8train
