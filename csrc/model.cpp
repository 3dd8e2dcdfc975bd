#include "model.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace headstart {

namespace {

const ModelSettings& checked(const ModelSettings& settings, const ModelWeights& weights) {
  check(settings);
  check(settings, weights);
  return settings;
}

}  // namespace

Model::Model(ModelSettings settings, ModelWeights weights)
    : settings_(checked(settings, weights)), weights_(std::move(weights)), stack_(settings_, weights_) {}

CacheShape Model::shape() const {
  return {settings_.num_layers, settings_.num_kv_heads, settings_.head_size, settings_.cache_kind == CacheKind::bfloat16 ? 2 : 4};
}

Model::Slot& Model::find(std::int64_t slot) {
  const auto found = slots_.find(slot);
  if (found == slots_.end()) throw std::invalid_argument("slot " + std::to_string(slot) + " is not open");
  return *found->second;
}

std::int64_t Model::open() {
  const std::lock_guard guard(lock_);
  slots_.emplace(next_slot_, std::make_unique<Slot>(shape(), chunks_));
  return next_slot_++;
}

void Model::close(std::int64_t slot) {
  const std::lock_guard guard(lock_);
  find(slot);
  slots_.erase(slot);
}

std::int64_t Model::fork(std::int64_t slot) {
  const std::lock_guard guard(lock_);
  const Slot& source = find(slot);
  auto copy = std::make_unique<Slot>(shape(), chunks_);
  copy->cache.copy(source.cache, source.length);
  copy->length = source.length;
  slots_.emplace(next_slot_, std::move(copy));
  return next_slot_++;
}

std::int64_t Model::length(std::int64_t slot) {
  const std::lock_guard guard(lock_);
  return find(slot).length;
}

std::shared_ptr<Result> Model::forward(const Batch& batch) {
  const std::lock_guard guard(lock_);
  const ForestLimits limits{weights_.embedding->outputs(), settings_.context_limit,
                            settings_.reads_hidden ? settings_.hidden_size : 0};
  Forest forest = plant(batch, limits, [this](std::int64_t number) {
    const Slot& slot = find(number);
    if (!slot.pending.empty())
      throw std::invalid_argument("slot " + std::to_string(number) + " waits for keep before its next forward");
    return slot.length;
  });
  std::vector<SlotCache*> caches;
  for (const Tree& tree : forest.trees) {
    SlotCache& cache = find(tree.slot).cache;
    cache.reserve(tree.length + tree.depth + 1, tree.num_drafted());  // of the deepest path, so that keep needs no memory
    caches.push_back(&cache);
  }
  auto result = std::make_shared<Result>(shelf_, forest.num_scored, settings_.vocab_size, weights_.output->outputs(),
                                         settings_.hidden_size, forest.num_rows(),
                                         static_cast<std::int64_t>(watched_.size()) * settings_.hidden_size);
  stack_.run(forest, caches, watched_, *result, profile_);
  for (Tree& tree : forest.trees) {
    Slot& slot = find(tree.slot);
    slot.chain = tree.chain;
    slot.pending = std::move(tree.parents);
  }
  return result;
}

void Model::keep(std::int64_t number, std::span<const std::int64_t> path) {
  const std::lock_guard guard(lock_);
  Slot& slot = find(number);
  if (slot.pending.empty()) throw std::invalid_argument("slot " + std::to_string(number) + " has no forward to keep rows of");
  check_path(path, slot.pending);
  std::vector<std::int32_t> moving;  // the path's rows in the draft area; those before them are in place
  for (const std::int64_t row : path)
    if (row >= slot.chain) moving.push_back(static_cast<std::int32_t>(row - slot.chain));
  const auto num_kept = static_cast<std::int64_t>(path.size());
  slot.cache.move(moving, slot.length + num_kept - static_cast<std::int64_t>(moving.size()));
  slot.length += num_kept;
  slot.cache.release_draft();
  slot.pending.clear();
}

void Model::watch(std::span<const std::int64_t> layers) {
  const std::lock_guard guard(lock_);
  for (const std::int64_t layer : layers)
    if (layer < 0 || layer > settings_.num_layers)
      throw std::invalid_argument("layer " + std::to_string(layer) + " cannot be watched; the model has " +
                                  std::to_string(settings_.num_layers));
  watched_.assign(layers.begin(), layers.end());
}

std::size_t Model::cache_bytes() {
  const std::lock_guard guard(lock_);
  std::size_t bytes = 0;
  for (const auto& [number, slot] : slots_) bytes += slot->cache.num_bytes();
  return bytes;
}

void Model::enable_profile(bool on) {
  const std::lock_guard guard(lock_);
  profile_.enable(on);
}

std::array<double, kNumParts> Model::profile() {
  const std::lock_guard guard(lock_);
  return profile_.seconds();
}

}  // namespace headstart
