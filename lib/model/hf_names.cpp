#include "model/hf_names.h"

#include "model/families/family.h"

namespace fp8train {
namespace {

ParameterName parse(const std::string& parameter) {
  const std::string prefix = "layers.";
  ParameterName name;
  std::string rest = parameter;
  if (parameter.starts_with(prefix)) {
    const size_t dot = parameter.find('.', prefix.size());
    name.block = parameter.substr(prefix.size(), dot - prefix.size());
    rest = parameter.substr(dot + 1);
  }
  const size_t dot = rest.rfind('.');
  name.module = rest.substr(0, dot);
  name.leaf = rest.substr(dot + 1);
  return name;
}

}  // namespace

std::vector<HfPiece> hf_pieces(const ModelConfig& config, const std::string& parameter) {
  return config.family->pieces(config, parse(parameter));
}

}  // namespace fp8train
