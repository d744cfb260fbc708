#include "config/fields/check_context.h"

#include <fmt/format.h>

#include "config/fields/field_table.h"

namespace fp8train {

bool CheckContext::usable(std::string_view key) const {
  const GivenKey* written = given.find(key);
  return written == nullptr || written->usable;
}

bool CheckContext::is_required_from(Extent least) const {
  return extent >= least && !given.may_be_misspelled(field.key);
}

void CheckContext::complain(const char* other, const std::string& text) const {
  given.complain(is_given() ? field.key : other, text);
}

void CheckContext::missing(const std::string& text, Extent least) const {
  if (is_required_from(least)) {
    complain(text);
  }
}

void CheckContext::missing_section(const std::string& text, Extent least) const {
  bool foreign = false;
  bool begun = false;
  for (const auto& [position, one] : given.all()) {
    const std::string& key = one.field->key;
    const bool own = find_field(one.spelled) != nullptr;
    foreign = foreign || !own;
    begun = begun || (own && (key.starts_with("model.") || key.starts_with("data.")));
  }
  if (begun || !foreign) {
    missing(text, least);
  } else if (is_required_from(least)) {  // no line of another program's file is to blame
    given.complain_at({}, field.key,
                      text +
                          ". Files of other programs name no model and no data: put a run.yaml "
                          "before it (the last file wins)");
  }
}

void CheckContext::without_meaning(const std::string& choice) const {
  if (is_given() && field.write(settings) != field.write(Settings())) {
    complain(fmt::format("has no meaning with {}; remove it", choice));
  }
}

void check_fields(const Settings& settings, const GivenKeys& given, Extent extent) {
  for (const Field& field : field_table()) {
    if (field.check) {
      field.check({field, settings, given, extent});
    }
  }
}

}  // namespace fp8train
