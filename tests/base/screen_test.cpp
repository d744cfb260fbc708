#include "base/screen.h"

#include <catch2/catch.hpp>

namespace fp8train {

TEST_CASE("lines break at words and continue below their text", "[base]") {
  CHECK(wrapped("plan    one two three\n", 16) == "plan    one two\n        three\n");
  CHECK(wrapped("  four five six\n", 10) == "  four\n  five six\n");
  CHECK(wrapped("error: one two three\n", 12) == "error: one\n  two three\n");
  CHECK(wrapped("\x1b[31merror:\x1b[0m one two\n", 10) == "\x1b[31merror:\x1b[0m one\n  two\n");
  CHECK(wrapped("  # one two three\n", 12) == "  # one two\n  # three\n");
  CHECK(wrapped("key: 1  # one two\n", 16) == "key: 1  # one\n        # two\n");
  CHECK(wrapped("ok  cpu  one two three\n", 18) == "ok  cpu  one two\n         three\n");
  CHECK(wrapped("a-word-that-is-long\nx y\n", 8) == "a-word-that-is-long\nx y\n");
  CHECK(wrapped("\xc3\xa9\xc3\xa9 \xc3\xa9\xc3\xa9\n", 5) == "\xc3\xa9\xc3\xa9 \xc3\xa9\xc3\xa9\n");
  CHECK(wrapped("Name [a]: ", 80) == "Name [a]: ");
  CHECK(wrapped("Name of it [a]: ", 11) == "Name of it\n[a]: ");
  CHECK(wrapped("", 80).empty());
}

TEST_CASE("a command is not broken, or as a shell reads it", "[base]") {
  CHECK(wrapped("see `a b`; then end\n", 7) == "see\n`a b`;\nthen\nend\n");
  CHECK(wrapped("run `a b=1 c=2 d=3` now\n", 13) == "run `a b=1 \\\nc=2 d=3` now\n");
}

TEST_CASE("a table that is too wide loses columns and says which", "[base]") {
  const std::vector<TableColumn> table = {
      {"name", 0, {"a", "bcdef"}}, {"count", 1, {"1", "20"}}, {"why", 2, {"", "text"}}};
  CHECK(table_text(table, 80) ==
        "name   count  why\n"
        "a          1\n"
        "bcdef     20  text\n");
  CHECK(table_text(table, 17) ==
        "name   count\n"
        "a          1\n"
        "bcdef     20\n"
        "Not in 17 columns: why.\n");
  CHECK(table_text(table, 6) == "name\na\nbcdef\nNot in 6 columns: why, count.\n");
}

}  // namespace fp8train
