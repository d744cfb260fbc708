#include "model/families/family.h"

#include "base/error.h"

namespace fp8train {

const std::vector<const ModelFamily*>& families() {
  static const std::vector<const ModelFamily*> kFamilies = {
      &llama_family(), &mistral_family(), &qwen2_family(), &qwen3_family(), &gpt2_family(),
  };
  return kFamilies;
}

const ModelFamily* default_family() {
  return families().front();
}

const ModelFamily* find_family(std::string_view name) {
  for (const ModelFamily* family : families()) {
    if (family->name() == name) {
      return family;
    }
  }
  return nullptr;
}

const ModelFamily& family_named(std::string_view name) {
  const ModelFamily* family = find_family(name);
  check(family != nullptr, "a known model family");
  return *family;
}

}  // namespace fp8train
