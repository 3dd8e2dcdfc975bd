// The books of one proposer among those that `auto` may ask: src/headstart/plan/members.py says what is counted and decided, and why;
// this does the same.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headstart {

constexpr std::size_t kSituations = 3;

struct MemberSettings {
  std::array<double, kSituations - 1> sure;  // estimates that tell situations apart
  double cost_forget, least_variance, least_slope, most_over_cost;
  double gain_step, probe_step, pooled_step, first_steps;
  double probe_share, nearly, min_probe_steps, max_doublings;
  double untried, less_where_sure;
  double hit_rate, most_least_reach, passes_step;
  double first_size, spare_size, growth, size_step;
};

// Seconds of a call by its number of sequences.
class CallCost {
 public:
  explicit CallCost(const MemberSettings& settings) : settings_(&settings) {}
  std::pair<double, double> line() const;  // fixed, and of a sequence
  double seconds(std::int64_t num_sequences) const;
  void observe(std::int64_t num_sequences, double seconds);

 private:
  const MemberSettings* settings_;
  double weight_ = 0.0, k_ = 0.0, kk_ = 0.0, t_ = 0.0, kt_ = 0.0;
  std::optional<double> ratio_;
};

// What a member earned in one sequence.
struct Standing {
  std::array<std::optional<double>, kSituations> gains = {};
  std::array<std::int64_t, kSituations> num_earned = {};
  double size = 0.0;  // nodes that found a row lately

  bool is_new() const;
  bool is_untried() const { return !gains[0]; }
};

// Sums for the explanation.
struct Earnings {
  std::int64_t num_calls = 0, num_asked = 0, num_probes = 0, num_obeyed = 0;
  double seconds = 0.0;
  std::int64_t num_verified = 0, num_accepted = 0;
  double saved_seconds = 0.0;
};

class Member {
 public:
  struct Candidate {
    const Standing* standing;
    std::size_t situation;
  };
  struct Choice {
    std::vector<std::int64_t> entries;
    bool is_probe;
  };

  Member(const MemberSettings& settings, std::int64_t bit) : cost(settings), bit(bit), settings_(&settings) {}

  double least_reach(std::int64_t num_sequences, double token_seconds, double row_seconds) const;
  Choice chosen(const std::vector<Candidate>& candidates, std::int64_t step, double step_seconds, double waking, bool is_settled);
  bool is_idle(std::int64_t step) const { return step < std::max(due_, resumes_); }
  bool is_on() const { return due_ == 0; }
  void earned(Standing& standing, std::size_t situation, double gain, std::int64_t num_verified, bool is_probe);
  void called(std::int64_t num_sequences, double seconds, std::int64_t num_passes, bool is_probe);
  void obeyed(std::int64_t num_sequences, double seconds);
  void probe_again(std::int64_t step);

  CallCost cost;
  Earnings earnings;
  std::int64_t bit;

 private:
  double gain(const Standing& standing, std::size_t situation) const;
  bool may_pay(const std::vector<Candidate>& candidates, double share) const;
  bool can_afford(double loss, double step_seconds);
  void save_up(double loss, std::int64_t step, double step_seconds);
  void postpone(std::int64_t step, double step_seconds, double cost);

  const MemberSettings* settings_;
  std::array<std::optional<double>, kSituations> pooled_ = {};
  std::int64_t due_ = 0, resumes_ = 0;
  double doublings_ = 0.0, allowance_ = 0.0;
  std::optional<double> passes_a_call_;
};

}  // namespace headstart
