#include "data/chat/jinja/template.h"

#include <set>

#include "data/chat/jinja/interpreter.h"
#include "data/chat/jinja/parser.h"

namespace fp8train::jinja {

struct Template::Tree {
  std::string where;
  Body body;
  std::set<std::string> names;
};

Template::Template(std::string_view source, std::string where) {
  Body body = parse(source, where);
  std::set<std::string> names = names_in(source, where);
  tree_ = std::make_unique<const Tree>(Tree{std::move(where), std::move(body), std::move(names)});
}

Template::Template(Template&&) noexcept = default;
Template::~Template() = default;

Rendered Template::render(const Variables& variables, Budget& budget) const {
  return Interpreter(tree_->where, budget).run(tree_->body, variables);
}

bool Template::uses(std::string_view name) const {
  return tree_->names.contains(std::string(name));
}

}  // namespace fp8train::jinja
