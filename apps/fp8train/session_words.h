#pragma once
// Words for the facts that a session notes.

#include <string>
#include <vector>

#include "train/session.h"

namespace fp8train {

/// Returns the lines on choices that were made for the user, those of the settings first.
std::vector<std::string> lines_on_choices(const Session& session);

/// Says why a run that would continue from this step has nothing to do, and which key to raise.
std::string describe_end(const Session& session, int64_t step);

/// Logs the notes of a session: choices as information, and settings that may not be intended as
/// warnings. `trains`: with those that concern only a run that trains.
void log_notes(const Session& session, bool trains = false);

}  // namespace fp8train
