// The walk of suffix matching: src/headstart/proposers/suffix.py and occurrences.py say what is computed, this computes the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "walks.h"

namespace headstart {

// What matching is bounded by, and how far matches are trusted before anything was seen.
struct CopyingSettings {
  std::int64_t latest;        // occurrences of a token that join
  std::int64_t most_matches;  // that are carried along
  std::int64_t tail;          // tokens of a prompt's end that are matched
  std::vector<std::int64_t> classes;  // of match lengths 0, 1, ...; longer ones are of the last class
  std::vector<double> prior;          // [classes, kKinds]
  double prior_weight;
  double weight_of_noise;
  double noise_of_others;
};

// One text as it grows, its occurrences, and how far its matches are to be trusted.
class Copying : public Walk {
 public:
  static constexpr std::int64_t kKinds = 4;  // the longest matches' followers: one, one repeatedly, several; then shorter matches

  // std::invalid_argument where the settings do not fit each other.
  Copying(CopyingSettings settings, std::span<const std::int64_t> prompt);

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  // Tokens that were committed: learns from each how good the matches before it were.
  void extend(std::span<const std::int64_t> tokens);
  // From now on the root's children are weighed by the noise of this key; none: they are not.
  void weigh_by(std::optional<std::uint64_t> key) { noise_key_ = key; }

  State start() const override { return Place{.matches = matches_}; }
  Children children(const Place& place) const override;
  State step(const Place& place, std::int64_t token) const override;

 private:
  struct Follower {
    std::int64_t token, count;
  };
  struct Level {
    std::size_t trust;  // place of its confidence
    std::vector<Follower> followers;
  };

  std::vector<Level> levels(const Place& place) const;
  std::vector<Match> stepped(const Place& place, std::int64_t token) const;
  std::int64_t at(std::int64_t position, const std::vector<std::int64_t>& path) const;
  void index(std::int64_t token);
  void append(std::int64_t token);
  void weigh(Children& found, double left) const;

  CopyingSettings settings_;
  std::vector<std::int64_t> tokens_;
  std::unordered_map<std::int64_t, std::vector<std::int64_t>> positions_;  // the latest of each token
  std::vector<Match> matches_;                                             // of the whole text's end
  std::vector<double> hits_, tries_;
  std::optional<std::uint64_t> noise_key_;
};

}  // namespace headstart
