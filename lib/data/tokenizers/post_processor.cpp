#include "data/tokenizers/post_processor.h"

#include <fmt/format.h>

#include <string>

namespace fp8train::tokenizers {
namespace {

void read_template(const JsonPart& part, PostProcessor& ids) {
  part.only({"single", "pair", "special_tokens"});
  const JsonPart single = part.at("single");
  bool behind_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    const JsonPart item = single.at(i);
    if (item.has("Sequence")) {
      if (behind_text) item.refuse("a second text in a template is not supported");
      behind_text = true;
      continue;
    }
    const std::string name = item.at("SpecialToken").text("id");
    const JsonPart list = part.at("special_tokens").at(name).at("ids");
    for (size_t j = 0; j < list.size(); ++j) {
      const JsonPart id = list.at(j);
      if (!id.value().is_number_integer()) list.refuse("is not a list of ids");
      (behind_text ? ids.after : ids.before).push_back(id.value().get<int32_t>());
    }
  }
}

/// ["[CLS]", 101]
int32_t read_pair(const JsonPart& part) {
  const JsonPart id = part.at(1);
  if (!id.value().is_number_integer()) id.refuse("is not an id");
  return id.value().get<int32_t>();
}

void read_processor(const JsonPart& part, PostProcessor& ids) {
  const std::string type = part.type();
  if (type == "ByteLevel") {  // changes offsets only
    part.only({"add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    read_template(part, ids);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    part.only({"sep", "cls", "trim_offsets", "add_prefix_space"});
    ids.before.push_back(read_pair(part.at("cls")));
    ids.after.push_back(read_pair(part.at("sep")));
  } else if (type == "Sequence") {
    part.only({"processors"});
    const JsonPart list = part.at("processors");
    for (size_t i = 0; i < list.size(); ++i) read_processor(list.at(i), ids);
  } else {
    refuse_type(part, "post-processors",
                "ByteLevel, TemplateProcessing, BertProcessing, RobertaProcessing, Sequence");
  }
}

}  // namespace

PostProcessor read_post_processor(const JsonPart& part) {
  PostProcessor ids;
  read_processor(part, ids);
  return ids;
}

}  // namespace fp8train::tokenizers
