// Statements, and the template that consists of them.

#include <fmt/format.h>

#include <algorithm>

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

void Scope::set(std::string_view name, Value value) {
  const auto known = std::ranges::find(names, name, &NamedValue::first);
  if (known == names.end()) {
    names.emplace_back(name, std::move(value));
  } else {
    known->second = std::move(value);
  }
}

const Value* Interpreter::find(std::string_view name) {
  const Value* found = nullptr;
  int64_t seen = 0;
  for (const Scope* scope = scope_.get(); scope != nullptr && found == nullptr;
       scope = scope->parent.get()) {
    seen += 1 + std::ssize(scope->names);
    const auto known = std::ranges::find(scope->names, name, &Scope::NamedValue::first);
    if (known != scope->names.end()) found = &known->second;
  }
  spend(seen / 16);
  return found;
}

void Interpreter::set(std::string_view name, Value value) {
  spend(std::ssize(scope_->names) / 16);
  scope_->set(name, std::move(value));
}

Interpreter::~Interpreter() {
  for (const auto& end : ends_) end();
}

Rendered Interpreter::run(const Body& body, const Variables& variables) {
  scope_ = std::make_shared<Scope>();
  for (const Callable& each : kFunctions) scope_->set(each.name, Value(Function{&each}));
  for (const auto& [name, value] : variables) scope_->set(name, value);
  Text out;
  out_ = whole_ = &out;
  execute(body);
  return {std::move(out), std::move(generations_)};
}

void Interpreter::fail(const std::string& message) const {
  throw DataError(fmt::format("{}:{}: {}", where_, line_, message));
}

void Interpreter::at_end(std::function<void()> end) {
  constexpr int64_t kBytes = 256;  // of what lives to the end
  spend(0, kBytes);
  ends_.push_back(std::move(end));
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
    spend(1);
    flow = execute(statement);
    if (flow != Flow::next) break;
  }
  --depth_;
  return flow;
}

Interpreter::Flow Interpreter::execute(const Statement& node) {
  switch (node.form) {
    case StatementForm::data:
      return write(Value::text(node.text));
    case StatementForm::print:
      return write(evaluate(*node.parts[0]));
    case StatementForm::set:
      assign(node.targets[0], evaluate(*node.parts[0]));
      return Flow::next;
    case StatementForm::set_block:
      assign(node.targets[0], filtered(node));
      return Flow::next;
    case StatementForm::filter:
      return write(filtered(node));
    case StatementForm::loop:
      return execute_loop(node);
    case StatementForm::choice:
      for (size_t i = 0; i < node.parts.size(); ++i) {
        if (evaluate(*node.parts[i]).is_true()) return execute(node.bodies[i]);
      }
      return execute(node.bodies.back());
    case StatementForm::macro:
      set(node.text, macro_of(node));
      return Flow::next;
    case StatementForm::call: {
      const Expression& call_node = *node.parts.back();
      const Value callee = evaluate(*call_node.parts[0]);
      Arguments arguments = arguments_of(call_node);
      arguments.named.emplace_back(node.text, macro_of(node));
      return write(call(callee, arguments));
    }
    case StatementForm::with:
      return execute_with(node);
    case StatementForm::generation: {
      if (out_ != whole_) fail("{% generation %} within a macro, a set or a filter");
      const size_t begin = out_->bytes.size();
      const Flow flow = execute_apart(node.bodies[0]);
      generations_.emplace_back(begin, out_->bytes.size());
      return flow;
    }
    case StatementForm::breaks:
      return Flow::breaks;
    case StatementForm::continues:
      break;
  }
  return Flow::continues;
}

Interpreter::Flow Interpreter::write(const Value& value) {
  out_->append(written(value));
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
    spend(std::ssize((*attributes)->attributes.entries) / 8);
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

Value Interpreter::filtered(const Statement& node) {
  Value block = text(captured(node.bodies[0]));
  if (!node.parts[0]) return block;
  const Restored input(filtered_, std::move(block));
  return evaluate(*node.parts[0]);
}

std::shared_ptr<const List> Interpreter::elements_that_fit(const Statement& node) {
  std::shared_ptr<const List> all = elements(evaluate(*node.parts[0]));
  if (!node.parts[1]) return all;
  const Restored scope(scope_, inner_scope());
  std::vector<Value> fitting;
  for (const Value& item : all->items) {
    assign(node.targets[0], item);
    if (evaluate(*node.parts[1]).is_true()) fitting.push_back(item);
  }
  return *list(std::move(fitting)).get<Value::ListPointer>();
}

Interpreter::Flow Interpreter::execute_loop(const Statement& node) {
  const std::shared_ptr<const List> items = elements_that_fit(node);
  const auto loop = std::make_shared<Loop>(Loop{items, 0, nullptr});
  bool has_ended_one = false;
  for (; loop->index < std::ssize(items->items); ++loop->index) {
    const Restored scope(scope_, inner_scope());
    scope_->set("loop", Value(loop));
    assign(node.targets[0], items->items[static_cast<size_t>(loop->index)]);
    const Flow flow = execute(node.bodies[0]);
    if (flow == Flow::breaks) break;
    has_ended_one = has_ended_one || flow == Flow::next;
  }
  // As Jinja's code has it: not only where there was nothing to go over.
  return has_ended_one ? Flow::next : execute_apart(node.bodies[1]);
}

Interpreter::Flow Interpreter::execute_with(const Statement& node) {
  std::vector<Value> values;  // all of the outer scope
  for (const ExpressionPtr& part : node.parts) values.push_back(evaluate(*part));
  const Restored scope(scope_, inner_scope());
  for (size_t i = 0; i < values.size(); ++i) assign(node.targets[i], values[i]);
  return execute(node.bodies[0]);
}

Interpreter::Flow Interpreter::execute_apart(const Body& body) {
  const Restored scope(scope_, inner_scope());
  return execute(body);
}

/// The scope lives to the end, as a namespace may hold the macro.
Value Interpreter::macro_of(const Statement& macro) {
  at_end([scope = scope_] { scope->names.clear(); });
  return Value(Function{nullptr, nullptr, &macro, scope_});
}

/// The body sees the scope that the macro was defined in, not that of its call.
Value Interpreter::call_macro(const Function& function, const Arguments& arguments) {
  const Statement& macro = *function.macro;
  const auto count = std::ssize(macro.names);
  spend((std::ssize(arguments.named) + 1) * count / 8);
  const Restored scope(scope_, std::make_shared<Scope>(Scope{function.scope.lock(), {}}));
  if (std::ssize(arguments.values) > count) {
    fail(fmt::format("macro '{}' takes not more than {} arguments", macro.text, count));
  }
  for (size_t i = 0; i < macro.names.size(); ++i) {
    const std::string& name = macro.names[i];
    if (const Value* given = arguments.find(i, name)) {
      set(name, *given);
    } else if (macro.parts[i]) {
      set(name, evaluate(*macro.parts[i]));
    } else {
      set(name, Value(Undefined{fmt::format("parameter '{}' was not given", name)}));
    }
  }
  for (const auto& [name, value] : arguments.named) {
    const auto position = std::ranges::find(macro.names, name) - macro.names.begin();
    if (position < std::ssize(arguments.values)) {
      fail(fmt::format("macro '{}' is given '{}' twice", macro.text, printable(name)));
    }
    if (position < count) continue;
    if (name != "caller") {
      fail(fmt::format("macro '{}' takes no argument '{}'", macro.text, printable(name)));
    }
    set("caller", value);
  }
  const Restored none(filtered_, Value());
  return text(captured(macro.bodies[0]));
}

Template::Template(std::string_view source, std::string where)
    : where_(std::move(where)), tree_(std::make_shared<const Tree>(parse(source, where_))) {}

Rendered Template::render(const Variables& variables, Budget& budget) const {
  return Interpreter(where_, budget).run(tree_->body, variables);
}

bool Template::uses(std::string_view name) const {
  return tree_->names.contains(name);
}

}  // namespace fp8train::jinja
