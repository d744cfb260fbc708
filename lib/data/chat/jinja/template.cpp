#include "data/chat/jinja/template.h"

#include <algorithm>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/parser.h"

namespace fp8train::jinja {

struct Template::Tree {
  std::string source, where;
  Body body;
};

Template::Template(std::string_view source, std::string where) {
  Body body = parse(source, where);
  tree_ =
      std::make_unique<const Tree>(Tree{std::string(source), std::move(where), std::move(body)});
}

Template::Template(Template&&) noexcept = default;
Template::~Template() = default;

Rendered Template::render(const Variables& variables, Budget& budget) const {
  return Interpreter(tree_->where, budget).run(tree_->body, variables);
}

bool Template::uses(std::string_view name) const {
  return tree_->source.find(name) != std::string::npos;
}

}  // namespace fp8train::jinja
