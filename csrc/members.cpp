#include "members.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headstart {

std::pair<double, double> CallCost::line() const {
  if (weight_ == 0) return {0.0, 0.0};
  const double mean_k = k_ / weight_, mean_t = t_ / weight_;
  const double ratio = ratio_.value_or(mean_k);  // half of it, as long as all calls were equally large
  const double each = mean_t / (ratio + mean_k);
  return {ratio * each, each};
}

double CallCost::seconds(std::int64_t num_sequences) const {
  const auto [fixed, each] = line();
  return fixed + each * static_cast<double>(num_sequences);
}

void CallCost::observe(std::int64_t num_sequences, double seconds) {
  const MemberSettings& s = *settings_;
  const auto k = static_cast<double>(num_sequences);
  if (weight_ > 0 && k * weight_ <= 2 * k_) seconds = std::min(seconds, s.most_over_cost * this->seconds(num_sequences));
  weight_ = s.cost_forget * weight_ + 1.0;
  k_ = s.cost_forget * k_ + k;
  kk_ = s.cost_forget * kk_ + k * k;
  t_ = s.cost_forget * t_ + seconds;
  kt_ = s.cost_forget * kt_ + k * seconds;
  const double mean_k = k_ / weight_, mean_t = t_ / weight_;
  const double variance = kk_ / weight_ - mean_k * mean_k;
  if (mean_t > 0 && variance >= s.least_variance * (mean_k * mean_k)) {
    const double slope = (kt_ / weight_ - mean_k * mean_t) / variance;
    ratio_ = mean_t / std::min(std::max(slope, s.least_slope * mean_t / mean_k), mean_t / mean_k) - mean_k;
  }
}

bool Standing::is_new() const {
  return std::none_of(gains.begin(), gains.end(), [](const std::optional<double>& gain) { return gain.has_value(); });
}

double Member::least_reach(std::int64_t num_sequences, double token_seconds, double row_seconds) const {
  if (!passes_a_call_ || *passes_a_call_ == 0 || token_seconds == 0) return 0.0;
  const double pass_seconds = cost.seconds(num_sequences) / *passes_a_call_ / static_cast<double>(num_sequences);
  return std::min((pass_seconds + row_seconds) / (settings_->hit_rate * token_seconds), settings_->most_least_reach);
}

Member::Choice Member::chosen(const std::vector<Candidate>& candidates, std::int64_t step, double step_seconds, double waking, bool is_settled) {
  const auto size = static_cast<std::int64_t>(candidates.size());
  std::vector<std::int64_t> everybody(candidates.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  if (is_idle(step)) {
    std::vector<std::int64_t> fresh;
    for (const std::int64_t i : everybody) {
      const Candidate& candidate = candidates[static_cast<std::size_t>(i)];
      if (candidate.standing->is_new() || (candidate.standing->is_untried() && candidate.situation == 0)) fresh.push_back(i);
    }
    if (!fresh.empty() && due_) {  // what was in vain in other texts does not put off the second trial on this one
      const std::int64_t due = due_;
      doublings_ = 0;
      postpone(step, step_seconds, cost.seconds(size) + waking);
      due_ = std::min(due, due_);
    }
    return {fresh, true};
  }
  if (due_) {
    postpone(step, step_seconds, cost.seconds(size) + waking);
    return {everybody, true};
  }
  const auto [fixed, each] = cost.line();
  std::vector<std::pair<double, std::int64_t>> gains;
  for (const std::int64_t i : everybody) {
    const Candidate& candidate = candidates[static_cast<std::size_t>(i)];
    gains.push_back({gain(*candidate.standing, candidate.situation), i});
  }
  std::sort(gains.rbegin(), gains.rend());
  double total = 0.0, best_total = 0.0;
  std::size_t best = 0;
  for (std::size_t count = 1; count <= gains.size(); ++count) {
    total += gains[count - 1].first - each;
    if (total - fixed > best_total) best = count, best_total = total - fixed;
  }
  if (best) {
    std::vector<std::int64_t> entries;
    for (std::size_t i = 0; i < best; ++i) entries.push_back(gains[i].second);
    std::sort(entries.begin(), entries.end());
    return {entries, false};
  }
  if (!may_pay(candidates, settings_->nearly)) {
    doublings_ = 0;
    postpone(step, step_seconds, cost.seconds(size) + waking);
    return {{}, false};
  }
  const double loss = fixed - total + waking;
  if (can_afford(loss, step_seconds)) return {everybody, false};
  if (is_settled || !may_pay(candidates, 1.0)) save_up(loss, step, step_seconds);  // whatever the situation
  return {{}, false};
}

void Member::earned(Standing& standing, std::size_t situation, double gain, std::int64_t num_verified, bool is_probe) {
  const MemberSettings& s = *settings_;
  double own = standing.gains[situation].value_or(0.0);
  if (!standing.gains[situation]) own = this->gain(standing, situation);
  const double pooled = pooled_[situation].value_or(own);
  const double weight =
      std::max(is_probe ? s.probe_step : s.gain_step, 1 / (static_cast<double>(standing.num_earned[situation]) + s.first_steps));
  ++standing.num_earned[situation];
  standing.gains[situation] = own = own + weight * (gain - own);
  pooled_[situation] = pooled + s.pooled_step * (gain - pooled);
  if (is_probe && own > cost.seconds(1)) due_ = 0;
  const auto verified = static_cast<double>(num_verified);
  standing.size = std::max(verified, standing.size + s.size_step * (verified - standing.size));
  earnings.saved_seconds += gain;
}

void Member::called(std::int64_t num_sequences, double seconds, std::int64_t num_passes, bool is_probe) {
  cost.observe(num_sequences, seconds);
  if (num_passes) {
    const auto passes = static_cast<double>(num_passes), known = passes_a_call_.value_or(passes);
    passes_a_call_ = known + settings_->passes_step * (passes - known);
  }
  ++earnings.num_calls;
  earnings.num_asked += num_sequences;
  earnings.num_probes += is_probe ? num_sequences : 0;
  earnings.seconds += seconds;
}

void Member::obeyed(std::int64_t num_sequences, double seconds) {
  ++earnings.num_calls;
  earnings.num_asked += num_sequences;
  earnings.num_obeyed += num_sequences;
  earnings.seconds += seconds;
}

void Member::probe_again(std::int64_t step) {
  if (due_) due_ = step + 1;
}

double Member::gain(const Standing& standing, std::size_t situation) const {
  for (std::size_t less_sure = 0; less_sure <= situation; ++less_sure)
    for (const auto* gains : {&standing.gains, &pooled_})
      if (const auto& known = (*gains)[situation - less_sure])
        return *known * std::pow(settings_->less_where_sure, static_cast<double>(less_sure));
  return settings_->untried * cost.seconds(1);
}

bool Member::may_pay(const std::vector<Candidate>& candidates, double share) const {
  double total = 0.0;
  for (const Candidate& candidate : candidates) {
    double most = gain(*candidate.standing, 0);
    for (std::size_t situation = 1; situation < kSituations; ++situation) most = std::max(most, gain(*candidate.standing, situation));
    total += most;
  }
  return total > share * cost.seconds(static_cast<std::int64_t>(candidates.size()));
}

bool Member::can_afford(double loss, double step_seconds) {
  allowance_ += settings_->probe_share * step_seconds;
  if (allowance_ < loss) return false;
  allowance_ = 0.0;
  return true;
}

void Member::save_up(double loss, std::int64_t step, double step_seconds) {
  const double missing = std::max(loss - allowance_, 0.0);
  resumes_ = step + static_cast<std::int64_t>(std::ceil(missing / (settings_->probe_share * step_seconds)));
  allowance_ += missing;
}

void Member::postpone(std::int64_t step, double step_seconds, double cost) {
  const double steps = cost / (settings_->probe_share * step_seconds) * std::pow(2.0, doublings_);
  due_ = step + static_cast<std::int64_t>(std::ceil(std::max(steps, settings_->min_probe_steps)));
  doublings_ = std::min(doublings_ + 1, settings_->max_doublings);
}

}  // namespace headstart
