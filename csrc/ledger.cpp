#include "ledger.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace headstart {

Ledger::Ledger(LedgerSettings settings, std::int64_t num_members) : settings_(std::move(settings)), cost_(settings_.cost), chances_(settings_.chances) {
  if (num_members < 0 || num_members > 8) throw std::invalid_argument("a ledger has at most eight members");
  for (std::int64_t place = 0; place < num_members; ++place) members_.emplace_back(settings_.members, std::int64_t{1} << place);
}

bool Ledger::is_untried(std::int64_t place, std::span<const std::int64_t> keys) const {
  member(place);
  return std::any_of(keys.begin(), keys.end(), [&](std::int64_t key) {
    const auto found = books_.find(key);  // not of those that have just left
    return found != books_.end() && found->second.standings[static_cast<std::size_t>(place)].is_untried();
  });
}

Ledger::Book& Ledger::book(std::int64_t key) {
  const auto found = books_.find(key);
  if (found != books_.end()) return found->second;
  Standing fresh;
  fresh.size = settings_.members.first_size;
  return books_.emplace(key, Book{OwnChances(settings_.own_prior, settings_.own_forget), {members_.size(), fresh}}).first->second;
}

double Ledger::least_reach() const {
  if (token_seconds_ == 0) return settings_.min_reach;
  return std::max(settings_.min_reach, settings_.worth_weighing * row_seconds_ / token_seconds_);
}

Step::Step(Ledger& ledger, std::int64_t number, Batch batch) : ledger_(ledger), number_(number), batch_(std::move(batch)) {
  const std::size_t size = batch_.keys.size();
  if (batch_.roots.size() != size || batch_.max_nodes.size() != size || batch_.max_depths.size() != size)
    throw std::invalid_argument("keys, roots, nodes and depths have one entry a sequence");
  surest_.assign(size, 0.0);
  sizes_.assign(size, 0);
  offers_.resize(size);
  rows_.resize(size);
  step_seconds_ = ledger_.cost_.seconds(batch_.num_rows, batch_.positions);
}

std::int64_t Step::num_drafted() const {
  std::size_t sum = 0;
  for (const Rows& rows : rows_) sum += rows.size();
  return static_cast<std::int64_t>(sum);
}

std::vector<std::int64_t> Step::due() {
  const LedgerSettings& s = ledger_.settings_;
  const double patience = ledger_.advantage_ > s.clear ? s.plain_steps_clear : s.plain_steps;
  if (static_cast<double>(ledger_.cost_.num_steps_unseen(batch_.num_rows)) >= patience) return {};
  const bool has_new = std::any_of(batch_.keys.begin(), batch_.keys.end(), [&](std::int64_t key) { return !ledger_.books_.contains(key); });
  std::vector<std::int64_t> found;
  for (std::int64_t place = 0; place < static_cast<std::int64_t>(ledger_.members_.size()); ++place)
    if (has_new || !ledger_.is_idle(place, number_) || ledger_.is_untried(place, batch_.keys)) found.push_back(place);
  return found;
}

Call Step::choose(std::int64_t place) {
  Member& member = ledger_.member(place);
  std::vector<Member::Candidate> candidates;
  for (std::size_t i = 0; i < batch_.keys.size(); ++i)
    candidates.push_back({&standing(static_cast<std::int64_t>(i), place), situation(surest_[i])});
  auto [entries, is_probe] =
      member.chosen(candidates, number_, step_seconds_, ledger_.settings_.waking * ledger_.standing_by_, asked_.empty());
  if (entries.empty()) return {};
  Call call{entries, {}, member.least_reach(static_cast<std::int64_t>(entries.size()), ledger_.token_seconds_, ledger_.row_seconds_)};
  Asked asked{place, entries, {}, is_probe};
  for (const std::int64_t i : entries) {
    const auto& candidate = candidates[static_cast<std::size_t>(i)];
    call.sizes.push_back(num_asked(*candidate.standing, batch_.max_nodes[static_cast<std::size_t>(i)]));
    asked.situations.push_back(candidate.situation);
  }
  asked_.push_back(std::move(asked));
  return call;
}

void Step::told(std::int64_t place, std::span<const double> first_estimates, double seconds, std::int64_t num_passes) {
  if (asked_.empty() || asked_.back().place != place || asked_.back().entries.size() != first_estimates.size())
    throw std::invalid_argument("who was asked last is told, one estimate a sequence");
  Asked& asked = asked_.back();
  asked.seconds = seconds;
  asked.num_passes = num_passes;
  for (std::size_t i = 0; i < first_estimates.size(); ++i) {
    const auto entry = static_cast<std::size_t>(asked.entries[i]);
    surest_[entry] = std::max(surest_[entry], first_estimates[i]);
    sizes_[entry] = std::min(sizes_[entry] + num_asked(standing(asked.entries[i], place), batch_.max_nodes[entry]), batch_.max_nodes[entry]);
  }
}

Rows Step::worth_offering() const {
  const double least = ledger_.least_reach();
  Rows found;
  for (std::size_t i = 0; i < surest_.size(); ++i)
    if (surest_[i] >= least) found.push_back(static_cast<std::int64_t>(i));
  return found;
}

void Step::offer(std::int64_t entry, std::span<const Walk* const> walks, Rows bits) {
  const auto place = static_cast<std::size_t>(entry);
  offer(entry,
        grow(batch_.roots.at(place), walks, {sizes_.at(place), batch_.max_depths.at(place), ledger_.least_reach(), ledger_.settings_.certain}),
        std::move(bits));
}

void Step::offer(std::int64_t entry, Grown grown, Rows bits) {
  Offer offer(std::move(grown), std::move(bits));
  offer.weigh(ledger_.chances_, ledger_.book(batch_.keys.at(static_cast<std::size_t>(entry))).own);
  offers_.at(static_cast<std::size_t>(entry)) = std::move(offer);
  has_offers_ = true;
}

void Step::share_out(double overhead) {
  std::vector<std::vector<double>> reaches;
  std::int64_t num_offered = 0;
  for (const auto& offer : offers_) {
    reaches.push_back(offer ? offer->reaches() : std::vector<double>{1.0});
    num_offered += static_cast<std::int64_t>(reaches.back().size()) - 1;
  }
  const auto size = static_cast<double>(batch_.keys.size());
  const std::vector<double> seconds = seconds_of(num_offered, overhead);
  Budget budget = allot(reaches, size, seconds, ledger_.settings_.margin);
  const double rate = budget.num_tokens / budget.seconds, plain_rate = size / (seconds[0] - overhead);
  ledger_.advantage_ += ledger_.settings_.smoothing * (rate / plain_rate - ledger_.advantage_);
  token_seconds_ = ledger_.token_seconds_ = 1 / rate;
  std::size_t num_kept = 0;
  for (const Rows& rows : budget.rows) num_kept += rows.size();
  const std::size_t steepest = std::min(seconds.size() - 1, std::max<std::size_t>(num_kept, 1));
  row_seconds_ = ledger_.row_seconds_ = steepest ? (seconds[steepest] - seconds[0]) / static_cast<double>(steepest) : 0.0;
  rows_ = std::move(budget.rows);
  for (std::size_t i = 0; i < rows_.size(); ++i)
    rows_[i].resize(std::min(rows_[i].size(), static_cast<std::size_t>(std::max<std::int64_t>(batch_.max_nodes[i], 0))));
  book_gains();
}

std::optional<Draft> Step::draft(std::int64_t entry) const {
  const Rows& rows = rows_.at(static_cast<std::size_t>(entry));
  if (rows.empty()) return std::nullopt;
  return offers_[static_cast<std::size_t>(entry)]->draft(rows);
}

void Step::observe(std::span<const std::int64_t> keys, std::span<const Rows> tokens, double seconds) {
  if (keys.size() != tokens.size()) throw std::invalid_argument("keys and tokens have one entry a sequence");
  const std::int64_t rows = batch_.num_rows + num_drafted();
  const auto most = ledger_.settings_.max_timed_rows * static_cast<double>(ledger_.settings_.cost.rows.back());
  if (static_cast<double>(rows) <= most) ledger_.cost_.observe(rows, seconds, batch_.positions);
  std::vector<std::int64_t> num_right(ledger_.members_.size(), 0);  // first guesses
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto entry = entry_of(keys[i]);
    if (entry && offers_[*entry]) judge(*entry, tokens[i], num_right);
  }
  repeat_probes(num_right);
}

std::optional<std::vector<double>> Step::estimates(std::int64_t key, std::int64_t place) const {
  const auto entry = entry_of(key);
  if (!entry || !offers_[*entry]) return std::nullopt;
  return offers_[*entry]->estimates(rows_[*entry], ledger_.member(place).bit);
}

bool Step::was_asked(std::int64_t place) const {
  return std::any_of(asked_.begin(), asked_.end(), [&](const Asked& asked) { return asked.place == place; });
}

void Step::charge(double seconds) {
  if (asked_.empty()) ledger_.standing_by_ += ledger_.settings_.smoothing * (seconds - ledger_.standing_by_);
  for (const Asked& asked : asked_)
    ledger_.member(asked.place).called(static_cast<std::int64_t>(asked.entries.size()), asked.seconds + seconds / static_cast<double>(asked_.size()),
                                       asked.num_passes, asked.is_probe);
}

Standing& Step::standing(std::int64_t entry, std::int64_t place) {
  return ledger_.book(batch_.keys.at(static_cast<std::size_t>(entry))).standings.at(static_cast<std::size_t>(place));
}

std::int64_t Step::num_asked(const Standing& standing, std::int64_t most) const {
  const MemberSettings& s = ledger_.settings_.members;
  return std::min(most, static_cast<std::int64_t>(std::ceil(s.growth * standing.size) + s.spare_size));
}

std::size_t Step::situation(double surest) const {
  const auto& borders = ledger_.settings_.members.sure;
  return static_cast<std::size_t>(std::count_if(borders.begin(), borders.end(), [&](double border) { return surest >= border; }));
}

std::optional<std::size_t> Step::entry_of(std::int64_t key) const {
  const auto found = std::find(batch_.keys.begin(), batch_.keys.end(), key);
  if (found == batch_.keys.end()) return std::nullopt;
  return static_cast<std::size_t>(found - batch_.keys.begin());
}

std::vector<double> Step::seconds_of(std::int64_t num_offered, double overhead) const {
  const auto size = static_cast<std::int64_t>(batch_.keys.size());
  std::vector<double> times = ledger_.cost_.range(batch_.num_rows, batch_.num_rows + num_offered, batch_.positions);
  const double sunk = batch_.num_rows > size ? times[0] - ledger_.cost_.seconds(size, batch_.positions) : 0.0;
  for (double& time : times) time = time - sunk + overhead;
  return times;
}

void Step::book_gains() {
  std::int64_t cheaper = 0;
  for (const Asked& asked : asked_) {
    Member& member = ledger_.member(asked.place);
    for (std::size_t i = 0; i < asked.entries.size(); ++i) {
      const auto entry = static_cast<std::size_t>(asked.entries[i]);
      Share share;
      if (!rows_[entry].empty()) share = offers_[entry]->share(rows_[entry], member.bit, cheaper);
      const double gain = share.reach * token_seconds_ - static_cast<double>(share.num_own) * row_seconds_;
      member.earned(standing(asked.entries[i], asked.place), asked.situations[i], gain, share.num_named, asked.is_probe);
    }
    cheaper |= member.bit;
  }
}

void Step::judge(std::size_t entry, const Rows& committed, std::vector<std::int64_t>& num_right) {
  const Offer& offer = *offers_[entry];
  const Rows& rows = rows_[entry];
  const Rows path = offer.learn(committed, ledger_.chances_, ledger_.book(batch_.keys[entry]).own);
  Rows accepted;
  for (const std::int64_t row : path)
    if (std::find(rows.begin(), rows.end(), row) != rows.end()) accepted.push_back(row);
  const auto first = std::span(path).first(std::min<std::size_t>(path.size(), 1));
  for (std::size_t place = 0; place < ledger_.members_.size(); ++place) {
    Member& member = ledger_.members_[place];
    num_right[place] += offer.share(first, member.bit, 0).num_named;
    member.earnings.num_verified += offer.share(rows, member.bit, 0).num_named;
    member.earnings.num_accepted += offer.share(accepted, member.bit, 0).num_named;
  }
}

void Step::repeat_probes(const std::vector<std::int64_t>& num_right) {
  for (const Asked& asked : asked_) {
    Member& member = ledger_.member(asked.place);
    const double worth = static_cast<double>(num_right[static_cast<std::size_t>(asked.place)]) * (token_seconds_ - row_seconds_);
    if (asked.is_probe && worth > member.cost.seconds(static_cast<std::int64_t>(asked.entries.size()))) member.probe_again(number_);
  }
}

}  // namespace headstart
