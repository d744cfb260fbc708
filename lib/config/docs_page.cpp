// docs/use/configuration.md from the field table.

#include <fmt/format.h>

#include "base/screen.h"
#include "base/text.h"
#include "config/fields/field_table.h"
#include "config/foreign_names.h"
#include "config/presets.h"
#include "config/show.h"

namespace fp8train {
namespace {

/// One cell of a Markdown table.
std::string cell(const std::string& text) {
  return replaced(text, "|", "\\|");
}

std::string row_of(const Field& field, const std::string& name) {
  static const Settings kDefaults;
  const std::string value = field.write(kDefaults);
  const bool is_plans = value.empty() && default_text(field) != "not set";
  std::string doc = field.doc;
  if (!field.aliases.empty()) {
    doc += fmt::format(". Also: `{}`", joined(field.aliases));
  }
  return fmt::format("| `{}` | {} | {} | {} |\n", name, cell(field.accepts),
                     is_plans        ? "the plan's"
                     : value.empty() ? ""
                                     : fmt::format("`{}`", cell(value)),
                     cell(doc));
}

std::string table_of(const std::string& section) {
  std::string result = "| key | accepts | default | |\n|---|---|---|---|\n";
  for (const Field& field : field_table()) {
    const size_t dot = field.key.find('.');
    if (section.empty() && dot == std::string::npos) {
      result += row_of(field, field.key);
    } else if (!section.empty() && field.key.starts_with(section + ".")) {
      result += row_of(field, field.key.substr(dot + 1));
    }
  }
  return result;
}

constexpr const char* kPageHead =
    R"(# Configuration

This page is written by `fp8train config docs` from the table that also validates a configuration.

One or several YAML files describe a run; files of other programs are read too
([other programs' files](other_programs.md)), and the folder of a run (`output_dir`), named first,
means the configuration that it was last started with. `--set a.b=v` (or a bare `a.b=v`) changes
single keys from the command line, and `--set a=` removes the keys that files give in the section
`a`. Later entries win:

    defaults < model preset < files in their order < FP8TRAIN_SET="a.b=v;c.d=w" < --set

Some keys exclude each other: `max_steps`, `max_tokens` and `max_epochs`,
`gradient_accumulation_steps` and `global_batch_size`, `model.preset` and `model.from`, `data.val`
and `data.val_fraction`, `parallelism.schedule` and `schedule_file`; and `mixed_precision` or
`precision.plan` excludes keys that select another plan, and options of `fp8` that have no meaning
for the chosen one. A key replaces those that it excludes in earlier entries, and the start of the
run says so. Within one file they are an error; only `precision.plan` overrides `mixed_precision`
there.

An unknown, repeated or mistyped key, and a value out of its range, is an error with file, line and
column; all errors are reported at once, with exit code 2. Whole numbers may be written as `100M`,
`1.5B` or `1e3`, durations as `3h50m`. Numbers and true or false are written without quotes.
Anchors, aliases and tags of YAML are not supported. Relative paths start at the working directory,
`~/` is the home directory, and `$NAME` or `${NAME}` in a path is an error: nothing expands it.

`fp8train config explain KEY` prints one entry of this page, and
`fp8train config show --resolved FILE` prints every setting of a run.
)";

/// Keys of other programs that have no counterpart here, why, and what there is instead.
std::string not_here_table() {
  std::string result = "| key | | instead |\n|---|---|---|\n";
  for (const ForeignName& entry : foreign_names()) {
    if (const size_t end = entry.not_here.find("; "); end != std::string_view::npos) {
      const std::string names = joined(split(entry.names, ' '), [](const std::string& name) {
        return fmt::format("`{}`", name);
      });
      result += fmt::format("| {} | {} | {} |\n", names, entry.not_here.substr(0, end),
                            entry.not_here.substr(end + 2));
    }
  }
  return result;
}

}  // namespace

std::string configuration_page() {
  std::string result = kPageHead;
  for (const SectionDoc& section : section_docs()) {
    const std::string title =
        section.name.empty() ? "top level" : fmt::format("`{}`", section.name);
    result +=
        fmt::format("\n## {}\n\n{}\n\n{}", title, wrapped(section.doc), table_of(section.name));
    if (section.name == "model") {
      result += "\nPresets:\n\n| preset | | sequence length |\n|---|---|---|\n";
      for (const Preset& preset : presets()) {
        result += fmt::format("| `{}` | {} | {} |\n", preset.name, preset.doc, preset.seq_length);
      }
    }
  }
  return result +
         wrapped(
             "\n## Not here\n\nKeys of other programs by which users ask for what this program "
             "does not have, in any case and with hyphens or underscores; `*` stands for any "
             "ending. Configurations in TOML or Python, and addresses (`s3://`, `hf://`, "
             "`https://`) in place of files, are refused too.\n\n") +
         not_here_table();
}

}  // namespace fp8train
