#pragma once
// The page of `fp8train report`, without its runs: report_template.html, which CMake embeds.

namespace fp8train {

extern const char* const kReportTemplate;

}  // namespace fp8train
