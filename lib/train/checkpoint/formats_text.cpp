#include "train/checkpoint/formats_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/text.h"
#include "nn/parameter.h"

namespace fp8train {
namespace {

/// A formats_text() in parts.
struct FormatParts {
  std::vector<std::string> products, stored, layers, slots;

  explicit FormatParts(const std::string& text) {
    const size_t begin_of_slots = text.rfind(';') + 1;
    for (const std::string& part : split(text.substr(0, begin_of_slots), ';')) {
      const std::string words = trimmed(part);
      if (words.starts_with("stored ")) {
        stored.push_back(words.substr(7));
      } else if (words.find(" in ") != std::string::npos) {
        layers.push_back(words);
      } else {
        products.push_back(words);
      }
    }
    slots = split(text.substr(begin_of_slots), ' ');
  }
};

std::vector<std::string> only_in(const std::vector<std::string>& all,
                                 const std::vector<std::string>& not_in) {
  std::vector<std::string> found;
  std::ranges::copy_if(all, std::back_inserter(found), [&](const std::string& one) {
    return std::ranges::find(not_in, one) == not_in.end();
  });
  return found;
}

/// "a, b, c and 4 more", or "none".
std::string first_names(std::vector<std::string> names) {
  constexpr size_t kMostNamed = 3;
  const size_t left = names.size() - std::min(names.size(), kMostNamed);
  names.resize(names.size() - left);
  const std::string more = left > 0 ? fmt::format(" and {} more", left) : "";
  return names.empty() ? "none" : joined(names) + more;
}

/// The names of the layers of which a line of the one list is not in the other.
std::vector<std::string> changed_layers(const std::vector<std::string>& saved,
                                        const std::vector<std::string>& current) {
  std::vector<std::string> names;
  for (const auto& lines : {only_in(saved, current), only_in(current, saved)}) {
    for (const std::string& line : lines) {
      const std::string name = line.substr(line.rfind(" in ") + 4);
      if (std::ranges::find(names, name) == names.end()) {
        names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace

std::string formats_text(Decoder& model) {
  std::string text;
  for (const GemmPlan* gemm : {&model.plan().fprop, &model.plan().dgrad, &model.plan().wgrad}) {
    text += describe(gemm->a) + " x " + describe(gemm->b) + "; ";
  }
  const ParameterFormats formats = parameter_formats(model.plan());
  for (const TensorFormat* stored : {&formats.value, &formats.gradient, &formats.gradient_wire,
                                     &formats.moment1, &formats.moment2}) {
    // fp32 in two halves is saved as fp32 is.
    text +=
        *stored == TensorFormat{} || stored->remainder ? "" : "stored " + describe(*stored) + "; ";
  }
  for (const LinearPlan& linear : model.linear_plans()) {
    if (!linear.layer_plan.empty() && linear.is_scaled()) {
      for (const GemmPlan* gemm : {&linear.fprop, &linear.dgrad, &linear.wgrad}) {
        text += describe(gemm->a) + " x " + describe(gemm->b) + " in " + linear.site.name + "; ";
      }
    }
  }
  for (const auto& slot : model.scaling().slots()) {
    text += slot->layer + "." + slot->role + " ";
  }
  return text;
}

std::vector<std::string> format_changes(const std::string& saved_text,
                                        const std::string& current_text) {
  const FormatParts saved(saved_text);
  const FormatParts current(current_text);
  std::vector<std::string> changes;
  constexpr const char* kProducts[] = {"fprop", "dgrad", "wgrad"};
  for (size_t i = 0;
       i < std::min({saved.products.size(), current.products.size(), std::size(kProducts)}); ++i) {
    if (saved.products[i] != current.products[i]) {
      changes.push_back(
          fmt::format("{}: was {}, is {}", kProducts[i], saved.products[i], current.products[i]));
    }
  }
  if (saved.stored != current.stored) {
    const auto text = [](const auto& list) { return list.empty() ? "fp32" : joined(list); };
    changes.push_back(fmt::format("weights, gradients and moments: was {}, is {}",
                                  text(saved.stored), text(current.stored)));
  }
  if (saved.layers != current.layers) {
    changes.push_back("layers whose own plan differs: " +
                      first_names(changed_layers(saved.layers, current.layers)));
  }
  if (saved.slots != current.slots) {
    changes.push_back(fmt::format("scaled tensors: was {}, is {}",
                                  first_names(only_in(saved.slots, current.slots)),
                                  first_names(only_in(current.slots, saved.slots))));
  }
  if (changes.empty() && saved_text != current_text) {
    changes.push_back(fmt::format("formats: was \"{}\", is \"{}\"", saved_text, current_text));
  }
  return changes;
}

}  // namespace fp8train
