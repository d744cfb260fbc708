#include "cli.h"
#include "verbs.h"

int main(int argc, char** argv) {
  return fp8train::run_program(fp8train::all_verbs(), {argv + 1, argv + argc});
}
