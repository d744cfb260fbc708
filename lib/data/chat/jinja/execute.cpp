// Statements, and the template that consists of them.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/not_copied.h"
#include "data/chat/jinja/interpreter.h"
#include "data/utf8.h"

namespace fp8train::jinja {
namespace {

/// Sets a variable for as long as it lives.
template <typename T>
class Restored : NotCopied {
 public:
  Restored(T& variable, T value)
      : variable_(variable), before_(std::exchange(variable, std::move(value))) {}
  ~Restored() { variable_ = std::move(before_); }

 private:
  T& variable_;
  T before_;
};

}  // namespace

const Value* Scope::find(std::string_view name, int64_t& seen) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    seen += 1 + std::ssize(scope->names);
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, before] : names) {
    if (known == name) {
      before = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

const Value* Interpreter::find(std::string_view name) {
  int64_t seen = 0;
  const Value* value = scope_->find(name, seen);
  spend(seen / 16, 0);
  return value;
}

void Interpreter::set(std::string_view name, Value value) {
  spend(std::ssize(scope_->names) / 16, 0);
  scope_->set(name, std::move(value));
}

Interpreter::~Interpreter() {
  for (const auto& loop : changed_loops_) loop->last_seen.reset();          // which may hold itself
  for (const auto& space : namespaces_) space->attributes.entries.clear();  // which may hold itself
  for (const auto& scope : macro_scopes_) scope->names.clear();
}

Rendered Interpreter::run(const Body& body, const Variables& variables) {
  scope_ = std::make_shared<Scope>();
  for (const char* name : {"range", "namespace", "dict", "raise_exception", "strftime_now"}) {
    scope_->set(name, Value(Function{Function::Kind::builtin, name}));
  }
  for (const auto& [name, value] : variables) scope_->set(name, value);
  macro_scopes_.push_back(scope_);
  Text out;
  out_ = whole_ = &out;
  execute(body);
  return {std::move(out), std::move(generations_)};
}

void Interpreter::fail(const std::string& message) const {
  throw DataError(fmt::format("{}:{}: {}", where_, line_, message));
}

void Interpreter::spend(int64_t steps, int64_t bytes) {
  budget_.steps -= steps + bytes / 32;
  budget_.bytes -= bytes;
  if (budget_.steps < 0) {
    throw OverBudget(fmt::format("{}:{}: the chat template takes more than {} steps", where_, line_,
                                 Budget::kMaxSteps));
  }
  if (budget_.bytes < 0) {
    throw OverBudget(fmt::format("{}:{}: the chat template makes more than {} MiB of text", where_,
                                 line_, Budget::kMaxBytes >> 20));
  }
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  if (++depth_ > kMaxCalls) fail(fmt::format("more than {} calls in each other", kMaxCalls));
  Flow flow = Flow::next;
  for (const Statement& statement : body) {
    line_ = statement.line;
    spend(1, 0);
    flow = std::visit([&](const auto& node) { return execute(node); }, statement.node);
    if (flow != Flow::next) break;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::write(const Text& text) {
  out_->append(text);
  return Flow::next;
}

Text Interpreter::captured(const Body& body) {
  Text out;
  const Restored scope(scope_, inner_scope());
  const Restored into(out_, &out);
  execute(body);
  return out;
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.attribute.empty()) {
    const Value* space = find(target.names.front());
    const auto* attributes = space == nullptr ? nullptr : space->get<std::shared_ptr<Namespace>>();
    if (attributes == nullptr) {
      fail(fmt::format("'{}' is not a namespace, and nothing else has attributes that are set",
                       target.names.front()));
    }
    spend(std::ssize((*attributes)->attributes.entries) / 8, 0);
    (*attributes)->attributes.set(Value::text(target.attribute), value);
    return;
  }
  if (!target.is_tuple) {
    set(target.names.front(), value);
    return;
  }
  const std::shared_ptr<const List> items = elements(value);
  if (items->items.size() != target.names.size()) {
    fail(fmt::format("{} values for {} names", items->items.size(), target.names.size()));
  }
  for (size_t i = 0; i < target.names.size(); ++i) set(target.names[i], items->items[i]);
}

Interpreter::Flow Interpreter::execute(const Set& node) {
  assign(node.target, evaluate(*node.value));
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const SetBlock& node) {
  Value value = text(captured(node.body));
  if (node.filter) {
    const Restored input(filtered_, value);
    value = evaluate(*node.filter);
  }
  assign(node.target, value);
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const FilterBlock& node) {
  const Restored input(filtered_, text(captured(node.body)));
  return write(written(evaluate(*node.filter)));
}

Interpreter::Flow Interpreter::execute(const If& node) {
  for (const auto& [condition, body] : node.branches) {
    if (evaluate(*condition).is_true()) return execute(body);
  }
  return execute(node.otherwise);
}

std::shared_ptr<const List> Interpreter::elements_that_fit(const For& node) {
  std::shared_ptr<const List> all = elements(evaluate(*node.items));
  if (!node.condition) return all;
  const Restored scope(scope_, inner_scope());
  std::vector<Value> fitting;
  for (const Value& item : all->items) {
    assign(node.target, item);
    if (evaluate(*node.condition).is_true()) fitting.push_back(item);
  }
  return *list(std::move(fitting)).get<Value::ListPointer>();
}

Interpreter::Flow Interpreter::execute(const For& node) {
  const std::shared_ptr<const List> items = elements_that_fit(node);
  const auto loop = std::make_shared<Loop>(Loop{items, 0, nullptr});
  bool has_ended_one = false;
  for (; loop->index < static_cast<int64_t>(items->items.size()); ++loop->index) {
    const Restored scope(scope_, inner_scope());
    scope_->set("loop", Value(loop));
    assign(node.target, items->items[static_cast<size_t>(loop->index)]);
    const Flow flow = execute(node.body);
    if (flow == Flow::breaks) break;
    has_ended_one = has_ended_one || flow == Flow::next;
  }
  // As Jinja's code has it: not only where there was nothing to go over.
  return has_ended_one ? Flow::next : execute_apart(node.otherwise);
}

Interpreter::Flow Interpreter::execute(const With& node) {
  std::vector<Value> values;  // all of the outer scope
  for (const auto& [target, value] : node.values) values.push_back(evaluate(*value));
  const Restored scope(scope_, inner_scope());
  for (size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
  return execute(node.body);
}

Interpreter::Flow Interpreter::execute_apart(const Body& body) {
  const Restored scope(scope_, inner_scope());
  return execute(body);
}

Interpreter::Flow Interpreter::execute(const Generation& node) {
  if (out_ != whole_) fail("{% generation %} within a macro, a set or a filter");
  const size_t begin = out_->bytes.size();
  const Flow flow = execute_apart(node.body);
  generations_.emplace_back(begin, out_->bytes.size());
  return flow;
}

Value Interpreter::macro_of(const Macro& macro) {
  if (macro_scopes_.back() != scope_) {
    spend(0, kBytesOfLasting);
    macro_scopes_.push_back(scope_);
  }
  return Value(Function{Function::Kind::macro, macro.name, nullptr, &macro, scope_.get()});
}

Interpreter::Flow Interpreter::execute(const Macro& node) {
  set(node.name, macro_of(node));
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const CallBlock& node) {
  const auto& call_node = std::get<Call>(node.call->node);
  const Value callee = evaluate(*call_node.callee);
  Arguments arguments = evaluate(call_node.arguments);
  arguments.named.emplace_back("caller", macro_of(*node.caller));
  return write(written(call(callee, arguments)));
}

/// The body sees the scope that the macro was defined in, not that of its call.
Value Interpreter::call_macro(const Function& function, const Arguments& arguments) {
  const Macro& macro = *function.macro;
  const int64_t named = std::ssize(arguments.named) + 1;
  spend(named * std::ssize(macro.parameters) / 8 + std::ssize(macro_scopes_) / 8, 0);
  const auto defined_in =
      std::find_if(macro_scopes_.begin(), macro_scopes_.end(),
                   [&](const auto& scope) { return scope.get() == function.scope; });
  const Restored scope(scope_, std::make_shared<Scope>(Scope{*defined_in, {}}));
  if (arguments.values.size() > macro.parameters.size()) {
    fail(fmt::format("macro '{}' takes not more than {} arguments", macro.name,
                     macro.parameters.size()));
  }
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [name, otherwise] = macro.parameters[i];
    const Value* given = arguments.find(i, name);
    Value value = Value(Undefined{fmt::format("parameter '{}' was not given", name)});
    if (given != nullptr) {
      value = *given;
    } else if (otherwise) {
      value = evaluate(*otherwise);
    }
    set(name, std::move(value));
  }
  for (const auto& argument : arguments.named) {
    const std::string& name = argument.first;
    const auto known = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                    [&](const auto& each) { return each.first == name; });
    const bool is_known = known != macro.parameters.end();
    if (known - macro.parameters.begin() < std::ssize(arguments.values)) {
      fail(fmt::format("macro '{}' is given '{}' twice", macro.name, printable(name)));
    }
    if (name == "caller" && !is_known) {
      set("caller", argument.second);
    } else if (!is_known) {
      fail(fmt::format("macro '{}' takes no argument '{}'", macro.name, printable(name)));
    }
  }
  const Restored none(filtered_, Value());
  return text(captured(macro.body));
}

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
