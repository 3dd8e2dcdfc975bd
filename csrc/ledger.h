// What `auto` knows and how it decides by it: src/headstart/plan/ledger.py says what a step goes through and why, this does the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "members.h"
#include "offer.h"
#include "step_cost.h"

namespace headstart {

struct LedgerSettings {
  StepCostSettings cost;
  ChancesSettings chances;
  MemberSettings members;
  double own_prior, own_forget;              // of one sequence's chances
  double plain_steps, plain_steps_clear, clear;
  double min_reach, worth_weighing, waking, margin, max_timed_rows, smoothing;
  double certain;  // more belief than this leaves room for other members all the same
};

// The sequences of a step: one entry each in every list.
struct Batch {
  Rows keys, roots, max_nodes, max_depths;
  std::int64_t num_rows;
  double positions;
};

// For which sequences of the step a member is asked, how many nodes each, and when its levels end.
struct Call {
  Rows entries, sizes;
  double least_reach = 0.0;
};

class Step;

class Ledger {
 public:
  Ledger(LedgerSettings settings, std::int64_t num_members);

  std::int64_t num_timed() const { return cost_.num_steps(); }
  double seconds(std::int64_t rows) const { return cost_.seconds(rows, std::nullopt); }
  bool is_idle(std::int64_t place, std::int64_t number) const { return member(place).is_idle(number); }
  bool is_untried(std::int64_t place, std::span<const std::int64_t> keys) const;
  void forget(std::int64_t key) { books_.erase(key); }
  std::int64_t num_sequences() const { return static_cast<std::int64_t>(books_.size()); }
  Member& member(std::int64_t place) { return members_.at(static_cast<std::size_t>(place)); }
  const Member& member(std::int64_t place) const { return members_.at(static_cast<std::size_t>(place)); }

 private:
  friend class Step;

  struct Book {
    OwnChances own;
    std::vector<Standing> standings;  // by the member's place
  };

  Book& book(std::int64_t key);
  double least_reach() const;

  const LedgerSettings settings_;
  StepCost cost_;
  Chances chances_;
  std::vector<Member> members_;
  std::unordered_map<std::int64_t, Book> books_;
  double advantage_ = 1.0, standing_by_ = 0.0, token_seconds_ = 0.0, row_seconds_ = 0.0;
};

// A step under way. The ledger outlives it.
class Step {
 public:
  // std::invalid_argument where the lists are not equally long.
  Step(Ledger& ledger, std::int64_t number, Batch batch);

  bool has_asked() const { return !asked_.empty(); }
  bool has_offers() const { return has_offers_; }
  std::int64_t num_drafted() const;
  std::vector<std::int64_t> due();
  Call choose(std::int64_t place);
  // ``first_estimates``: of the likeliest first token, of each sequence that the member was asked for.
  void told(std::int64_t place, std::span<const double> first_estimates, double seconds, std::int64_t num_passes);
  // Entries of which somebody said something that might be worth a row.
  Rows worth_offering() const;
  // One tree of what was said for an entry, by the bits of who said it.
  void offer(std::int64_t entry, std::span<const Walk* const> walks, Rows bits);
  void offer(std::int64_t entry, Grown grown, Rows bits);
  double offered_from() const { return ledger_.least_reach(); }
  std::int64_t size_of(std::int64_t entry) const { return sizes_.at(static_cast<std::size_t>(entry)); }
  // Nobody's nodes earn anything in this step.
  void pass() { book_gains(); }
  void share_out(double overhead);
  std::optional<Draft> draft(std::int64_t entry) const;
  void observe(std::span<const std::int64_t> keys, std::span<const Rows> tokens, double seconds);
  // What a member said of the rows of a sequence's draft; nothing: nobody offered anything.
  std::optional<std::vector<double>> estimates(std::int64_t key, std::int64_t place) const;
  bool was_asked(std::int64_t place) const;
  void charge(double seconds);

 private:
  struct Asked {
    std::int64_t place;
    Rows entries;
    std::vector<std::size_t> situations;
    bool is_probe;
    double seconds = 0.0;
    std::int64_t num_passes = 0;
  };

  Standing& standing(std::int64_t entry, std::int64_t place);
  std::int64_t num_asked(const Standing& standing, std::int64_t most) const;
  std::size_t situation(double surest) const;
  std::optional<std::size_t> entry_of(std::int64_t key) const;
  std::vector<double> seconds_of(std::int64_t num_offered, double overhead) const;
  void book_gains();
  void judge(std::size_t entry, const Rows& committed, std::vector<std::int64_t>& num_right);
  void repeat_probes(const std::vector<std::int64_t>& num_right);

  Ledger& ledger_;
  const std::int64_t number_;
  const Batch batch_;
  std::vector<Asked> asked_;
  std::vector<double> surest_;
  Rows sizes_;
  std::vector<std::optional<Offer>> offers_;
  std::vector<Rows> rows_;
  bool has_offers_ = false;
  double step_seconds_ = 0.0, token_seconds_ = 0.0, row_seconds_ = 0.0;
};

}  // namespace headstart
