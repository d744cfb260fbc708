// The language of chat templates, against Jinja itself (tests/golden/make_jinja.py).

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/chat/jinja/template.h"
#include "support/files.h"

namespace fp8train::test {
namespace {

using jinja::Budget;
using jinja::Rendered;
using jinja::Template;
using jinja::Text;
using jinja::Value;
using Json = nlohmann::ordered_json;

Value value_of(const Json& json) {
  if (json.is_null()) return Value::none();
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value::text(json.get<std::string>());
  if (json.is_array()) {
    jinja::List list;
    for (const Json& item : json) {
      list.items.push_back(value_of(item));
      list.extent.hold(extent_of(list.items.back()));
    }
    return Value(std::move(list));
  }
  jinja::Dict dict;
  for (const auto& [key, item] : json.items()) {
    dict.set(Value::text(key), value_of(item));
    dict.extent.hold(extent_of(dict.entries.back().second));
  }
  return Value(std::move(dict));
}

std::string rendered(const std::string& source, const Json& variables = Json::object(),
                     int64_t steps = Budget::kMaxSteps) {
  jinja::Variables given;
  for (const auto& [name, value] : variables.items()) given.emplace_back(name, value_of(value));
  Budget budget;
  budget.steps = steps;
  return Template(source, "t").render(given, budget).text.bytes;
}

/// What Jinja has and this interpreter refuses.
const std::set<std::string> kRefused = {
    "literals: integers",  // of other bases
    "operators: string formatting",
    "access: a number as an attribute",  // l.1.0
    "undefined: is equal to itself",     // sameas
    "statements: for with nested names",
    "macros: further arguments",
    "filters: int of a base",
    "filters: sort by attributes",  // by several
    "filters: wordcount",
    "filters: format",
    "tests: numbers",  // odd of a real number
    "tests: same",
    "tests: filter and test",
    "methods: partition",
    "methods: startswith and endswith",  // from a place on
    "methods: case",                     // swapcase
    "methods: find",                     // from a place on
    "methods: format",
    "methods: kinds of letters",
    "methods: filling",
    "methods: copy",
    "methods: dict",  // from a list of pairs
    "methods: how views print",
    "methods: range",  // how it prints
};
/// What differs.
const std::set<std::string> kOther = {
    "filters: case of other letters",  // the sigma at the end of a word
    "error: unknown filter in a loop that does not run",
};

TEST_CASE("templates give what Jinja gives", "[data][jinja]") {
  const std::string all =
      read_file(std::filesystem::path(FP8TRAIN_GOLDEN_DIR) / "jinja_cases.jsonl");
  size_t cases = 0, refused = 0, other = 0;
  for (size_t begin = 0; begin < all.size();) {
    const size_t end = std::min(all.find('\n', begin), all.size());
    const Json line = Json::parse(all.substr(begin, end - begin));
    begin = end + 1;
    ++cases;
    const auto rule = line["rule"].get<std::string>();
    const auto source = line["template"].get<std::string>();
    INFO(rule << ": " << source);
    if (kOther.contains(rule)) {
      ++other;
    } else if (line.contains("error") || kRefused.contains(rule)) {
      refused += kRefused.contains(rule) ? 1 : 0;
      CHECK_THROWS_AS(rendered(source, line["variables"]), Error);
    } else {
      CHECK(rendered(source, line["variables"]) == line["output"].get<std::string>());
    }
  }
  CHECK(cases == 390);
  CHECK(refused == kRefused.size());
  CHECK(other == kOther.size());
}

TEST_CASE("errors of templates say where they are", "[data][jinja]") {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ x", "t:2: expected }}"},
      {"{{ 'a }}", "t:1: a text in quotes has no end"},
      {"{% for x in y %}", "t:1: expected {% endfor %}, found the template's end"},
      {"{% if x %}{% endfor %}", "unexpected 'endfor'"},
      {"\n\n{{ x.y }}", "t:3: 'x' is undefined"},
      {"{% include 'a' %}", "t:1: the statement 'include' is not supported"},
      {"{{ 1 | random }}", "the filter 'random' is not supported"},
      {"{{ 1 is sameas 1 }}", "the test 'sameas' is not supported"},
      {"{{ 'a'.encode() }}", "'str' has no attribute or method 'encode'"},
      {"{{ [].append(1) }}", "Jinja's sandbox refuses"},
      {"{{ raise_exception('\x1b[2J') }}", "refuses the dialogue: <0x1B>[2J"},
      {"{{ 9223372036854775807 + 1 }}", "has more than 64 bits"},
      {"{# a", "t:1: a comment {# has no end"},
      {"{{ (1] }}", "unexpected ']', expected ')'"},
      {"\xff", "t: not UTF-8"},
  };
  for (const auto& [source, message] : cases) {
    INFO(source);
    CHECK_THROWS_WITH(rendered(source), Catch::Contains(message));
  }
}

TEST_CASE("a template has a budget of steps, memory and depth", "[data][jinja]") {
  const std::string many = "{% for a in range(100000) %}";
  std::string keys, names;
  for (int i = 0; i < 2000; ++i) keys += "k" + std::to_string(i) + "=1,";
  for (int i = 0; i < 5000; ++i) names += "{% set v" + std::to_string(i) + " = 1 %}";
  std::string sets;
  for (int i = 0; i < 110; ++i) sets += "{% set x = 1 %}";
  const std::string ends = "{% endfor %}";
  const std::string deep = std::string(5000, '(') + "1" + std::string(5000, ')');
  const std::string nested = std::string(300, '[') + std::string(300, ']');
  std::string sum = "{{ 1";
  for (int i = 0; i < 200; ++i) sum += "+1";
  const std::pair<std::string, const char*> cases[] = {
      {many + sets + ends, "takes more than 20000000 steps"},
      {"{{ 'a' * 1000000000000 }}", "more than"},
      {"{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}" + many + "{% set ns.x = ns.x + ns.x %}" +
           ends,
       "more than"},
      {"{% set ns = namespace(x=[1]) %}" + many + "{% set ns.x = [ns.x] %}" + ends,
       "lists and dictionaries within each other"},
      {"{% set ns = namespace(x=[1]) %}{% for a in range(50) %}{% set ns.x = [ns.x, ns.x] %}" +
           ends + "{{ ns.x }}",
       "takes more than"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls in each other"},
      {"{{ " + deep + " }}", "levels"},
      {"{{ " + nested + " }}", "levels"},
      {sum + " }}", "levels"},
      {"{{ " + std::string(5000, '-') + "1 }}", "levels"},
      {"{{ range(1000000) }}", "range() of more than 100000"},
      {"{% set ns = namespace(x=1) %}" + many + "{% set ns.x = {'a': ns.x}.get %}" + ends,
       "lists and dictionaries within each other"},
      {"{% set ns = namespace(x=1) %}" + many +
           "{% for j in [ns.x] %}{% set ns.x = loop %}{% endfor %}" + ends,
       "lists and dictionaries within each other"},
      {"{% set x = 'a' * 100000000 %}" + many + "{{ x[0:1] }}" + ends, "takes more than"},
      {"{% set x = 'a' * 6000000 %}{{ x.rfind('a' * 3000000 ~ 'b') }}", "takes more than"},
      {"{% set x = 'a' * 10000000 %}" + many + "{{ 'a'.strip(x) }}" + ends, "takes more than"},
      {"{% set x = 'a' * 5000000 %}" + many + "{{ {}[x] }}" + ends, "takes more than"},
      {"{{ dict(" + keys + ") }}", "a dictionary of more than 1024 entries"},
      {names + many + "{{ zz }}" + ends, "takes more than"},
      {std::string(2U << 20, 'a'), "more than 1048576"},
  };
  for (const auto& [source, message] : cases) {
    INFO(source.substr(0, 80));
    CHECK_THROWS_WITH(rendered(source, Json::object(), 2'000'000), Catch::Contains(message));
  }
  CHECK(rendered("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}") == "TrueTrue");
  CHECK(rendered("{{ 'abc'[::-9223372036854775807] }}") == "c");
  CHECK(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}") ==
        "True");
}

TEST_CASE("rules of Python that templates meet", "[data][jinja]") {
  const std::pair<const char*, const char*> cases[] = {
      {"{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}", "5"},
      {"{% set g = [1, 2] | map('string') %}{{ g | join }}{{ g | join }}.", "12."},
      {"{{ {'a': 1}.items()[0] is defined }} {{ {'a': 1}.items() is sequence }}", "False False"},
      {"{{ range(2) == [0, 1] }} {{ range(3)[1] }}", "False 1"},
      {"{{ 1.115 | round(2) }} {{ 2.5 | round }} {{ 1250 | round(-2) }}", "1.11 2.0 1200"},
      {"{{ '1_0' | int }} {{ '+-3' | int }} {{ '__1' | int }} {{ '1_0.5' | float }}",
       "10 0 0 10.5"},
      {"{{ 'a\r\nb' | indent(2) }}", "a\n  b"},
      {"{{ '-'.join(['a', 'b'] | map('upper')) }}", "A-B"},
      {"{{ strftime_now('%d %b %Y, %A') }}", "26 Jul 2024, Friday"},
  };
  for (const auto& [source, text] : cases) {
    INFO(source);
    CHECK(rendered(source) == text);
  }
  for (const char* refused :
       {"{{ 'a' | trim('a', 'b') }}", "{{ 'a'.upper(1) }}", "{{ 0 ** -1 }}",
        "{{ 'a'.endswith(['a']) }}", "{{ range(2) + [1] }}", "{{ strftime_now('%s') }}",
        "{{ {}.keys() }}", "{{ 'a' | trim(characters='a') }}", "{{ 1 is defined(1) }}",
        "{{ range(1, stop=2) }}", "{{ 'a' | replace('a') }}"}) {
    INFO(refused);
    CHECK_THROWS_AS(rendered(refused), DataError);
  }
}

TEST_CASE("a text remembers which of its bytes come from a message", "[data][jinja]") {
  const auto spans = [](const std::string& source) {
    Budget budget;
    const jinja::Variables given = {{"a", Value(Text(" ab-c\n", 0))}, {"b", Value(Text("", 1))}};
    const Rendered out = Template(source, "t").render(given, budget);
    std::string text;
    for (const auto& span : out.text.spans) {
      text += std::to_string(span.message) + "(" +
              out.text.bytes.substr(span.begin, span.end - span.begin) + ")";
    }
    return text;
  };
  CHECK(spans("<{{ a }}>") == "0( ab-c\n)");
  CHECK(spans("{{ '<' + a | trim + '>' }}{{ a[1:3] }}") == "0(ab-c)0(ab)");
  CHECK(spans("{{ b }}{{ b | trim }}x{{ b }}") == "1()1()");
  CHECK(spans("{{ a | upper }}{{ a.split('-')[1] }}{{ a | replace('b', 'x<') }}") ==
        "0( AB-C\nc\n a)0(-c\n)");
  CHECK(spans("{{ [a, 1] | tojson }} {{ a ~ b }} {{ a | length }}") ==
        "0([\" ab-c\\n\", 1])0( ab-c\n)1()");
  CHECK(spans("{% set x %}{{ a }}{% endset %}{{ x }}{% macro f(y) %}.{{ y }}{% endmacro %}{{ f(a) "
              "}}") == "0( ab-c\n)0( ab-c\n)");
}

}  // namespace
}  // namespace fp8train::test
