#include "copying.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace headstart {

namespace {

enum Kind : std::int64_t { kOne, kSame, kSeveral, kShorter };

// sampling.rough_gumbel of one token.
double noise(std::uint64_t key, std::int64_t token) {
  std::uint64_t z = key + (static_cast<std::uint64_t>(token) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return -std::log(-std::log((static_cast<double>(z >> 12) + 0.5) * 0x1p-52));
}

}  // namespace

Copying::Copying(CopyingSettings settings, std::span<const std::int64_t> prompt) : settings_(std::move(settings)) {
  const auto& [latest, most_matches, tail, classes, prior, prior_weight, weight_of_noise, noise_of_others] = settings_;
  if (latest < 1 || most_matches < 1 || tail < 0 || classes.empty() || !(prior_weight > 0))
    throw std::invalid_argument("bounds of matching must be positive");
  const auto num_classes = static_cast<std::int64_t>(prior.size()) / kKinds;
  if (static_cast<std::int64_t>(prior.size()) != num_classes * kKinds || num_classes < 1)
    throw std::invalid_argument("the prior must have one number for each class and kind");
  for (const std::int64_t one : classes)
    if (one < 0 || one >= num_classes) throw std::invalid_argument("the prior has no class " + std::to_string(one));
  for (const double share : prior) hits_.push_back(share * prior_weight);
  tries_.assign(prior.size(), prior_weight);
  const auto head = std::max<std::int64_t>(0, static_cast<std::int64_t>(prompt.size()) - tail);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(prompt.size()); ++i) {
    const std::int64_t token = prompt[static_cast<std::size_t>(i)];
    if (i < head)
      index(token);
    else
      append(token);
  }
}

void Copying::index(std::int64_t token) {
  std::vector<std::int64_t>& places = positions_[token];
  if (static_cast<std::int64_t>(places.size()) == settings_.latest) places.erase(places.begin());
  places.push_back(num_tokens());
  tokens_.push_back(token);
}

void Copying::append(std::int64_t token) {
  matches_ = stepped(Place{.matches = std::move(matches_)}, token);
  index(token);
}

void Copying::extend(std::span<const std::int64_t> tokens) {
  for (const std::int64_t token : tokens) {
    for (const auto& [trust, followers] : levels(Place{.matches = matches_})) {
      tries_[trust] += 1;
      if (std::any_of(followers.begin(), followers.end(), [&](const Follower& follower) { return follower.token == token; })) {
        hits_[trust] += 1;
        break;
      }
    }
    append(token);
  }
}

Children Copying::children(const Place& place) const {
  double left = 1.0;
  Children found;
  for (const auto& [trust, followers] : levels(place)) {
    const double confidence = hits_[trust] / tries_[trust];
    std::int64_t total = 0;
    for (const Follower& follower : followers) total += follower.count;
    const double share = left * confidence / static_cast<double>(total);
    for (const Follower& follower : followers) found.push_back({follower.token, share * static_cast<double>(follower.count)});
    left *= 1.0 - confidence;
  }
  if (noise_key_ && place.path.empty() && found.size() > 1) weigh(found, left);
  return found;
}

// Probabilities of the root's children with the noise that is known of them; `left` is that of all other tokens.
void Copying::weigh(Children& found, double left) const {
  double total = 0.0;
  for (Child& child : found) {
    child.probability *= std::exp(settings_.weight_of_noise * noise(*noise_key_, child.token));
    total += child.probability;
  }
  total += left * settings_.noise_of_others;
  for (Child& child : found) child.probability /= total;
}

State Copying::step(const Place& place, std::int64_t token) const {
  Place behind{.matches = stepped(place, token), .path = place.path};
  behind.path.push_back(token);
  return behind;
}

std::int64_t Copying::at(std::int64_t position, const std::vector<std::int64_t>& path) const {
  return position < num_tokens() ? tokens_[static_cast<std::size_t>(position)] : path.at(static_cast<std::size_t>(position - num_tokens()));
}

std::vector<Match> Copying::stepped(const Place& place, std::int64_t token) const {
  std::vector<Match> found;
  for (const auto& [position, length] : place.matches)
    if (at(position, place.path) == token) found.push_back({position + 1, length + 1});
  if (const auto known = positions_.find(token); known != positions_.end())
    for (const std::int64_t position : known->second)
      if (std::none_of(found.begin(), found.end(), [&](const Match& match) { return match.position == position + 1; }))
        found.push_back({position + 1, 1});
  if (static_cast<std::int64_t>(found.size()) > settings_.most_matches) {  // the longest and latest stay
    std::sort(found.begin(), found.end(),
              [](const Match& a, const Match& b) { return a.length != b.length ? a.length > b.length : a.position > b.position; });
    found.resize(static_cast<std::size_t>(settings_.most_matches));
  }
  return found;
}

// Followers by class of match length, longest first, each token where it stands first.
std::vector<Copying::Level> Copying::levels(const Place& place) const {
  struct Class {
    std::int64_t number;
    std::vector<Follower> followers;
  };
  const auto counted = [](std::vector<Follower>& followers, std::int64_t token) {
    for (Follower& follower : followers)
      if (follower.token == token) {
        ++follower.count;
        return;
      }
    followers.push_back({token, 1});
  };
  std::vector<Class> classes;
  for (const auto& [position, length] : place.matches) {
    const auto& numbers = settings_.classes;
    const std::int64_t number = numbers[std::min(static_cast<std::size_t>(length), numbers.size() - 1)];
    auto own = std::find_if(classes.begin(), classes.end(), [&](const Class& one) { return one.number == number; });
    if (own == classes.end()) own = classes.insert(own, {number, {}});
    counted(own->followers, at(position, place.path));
  }
  std::sort(classes.begin(), classes.end(), [](const Class& a, const Class& b) { return a.number > b.number; });
  std::vector<Level> found;
  std::vector<std::int64_t> known;
  for (auto& [number, followers] : classes) {
    std::erase_if(followers, [&](const Follower& follower) { return std::find(known.begin(), known.end(), follower.token) != known.end(); });
    if (followers.empty()) continue;
    for (const Follower& follower : followers) known.push_back(follower.token);
    Kind kind = kShorter;
    if (found.empty()) kind = followers.size() > 1 ? kSeveral : followers[0].count > 1 ? kSame : kOne;
    found.push_back({static_cast<std::size_t>(kKinds * number + kind), std::move(followers)});
  }
  return found;
}

}  // namespace headstart
