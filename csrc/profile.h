// Where the time of forwards goes, as the first worker sees it; off unless asked for.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace headstart {

enum class Part : std::size_t { linear, attention, other };
constexpr std::size_t kNumParts = 3;

class Profile {
 public:
  void enable(bool on) {
    enabled_ = on;
    seconds_ = {};
  }
  const std::array<double, kNumParts>& seconds() const { return seconds_; }

  void start() {
    if (enabled_) last_ = Clock::now();
  }
  // The time since the last mark belongs to this part.
  void mark(Part part) {
    if (!enabled_) return;
    const auto now = Clock::now();
    seconds_[static_cast<std::size_t>(part)] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool enabled_ = false;
  std::array<double, kNumParts> seconds_{};
  Clock::time_point last_;
};

}  // namespace headstart
