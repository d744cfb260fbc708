// A shared object for tests of the search for libraries.
extern "C" int fp8train_small_library() {
  return 1;
}
