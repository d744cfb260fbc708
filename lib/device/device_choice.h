#pragma once
// The devices that a user can choose with the key `device`, by name.

#include <cstdint>
#include <string_view>
#include <utility>

namespace fp8train {

/// automatic: a GPU, if one can be used.
enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
inline constexpr std::pair<DeviceChoice, std::string_view> kDeviceChoices[] = {
    {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};

/// Returns the choice with this name. Throws ConfigError if there is none.
DeviceChoice device_choice_named(std::string_view name);

}  // namespace fp8train
