// One small pool of threads that spin between the parts of a forward pass.
//
// A forward is a few hundred short parallel parts; waking threads for each of them would cost more than the parts. So workers enter
// one `run` and go through its stages together. A stage is cut into chunks, and it is over when all its chunks are done, not when all
// workers have come by: a worker whose core is taken away for a moment holds up the others only if it was in the middle of a chunk,
// and one that comes late finds the stages that it missed already done. On a busy machine this is the difference between a little
// slower and a hundred times slower.
//
// Each worker has its own share of the chunks, always the same, and helps others only when that is done. What two cores write in turn
// has to travel between them each time (0.1 to 0.3 microseconds, and a chunk takes 2), so a worker counts on cache lines of its own:
// the next chunk of its share, and the chunks that it has finished. Which worker computes what never changes a result.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace headstart {

// The system gave `given` threads of the `wanted` ones, the caller's included.
class ThreadsRefused : public std::runtime_error {
 public:
  ThreadsRefused(int given, int wanted, const std::string& reason);
};

class Pool {
 public:
  // The process's pool. Its size: HEADSTART_THREADS, else the cores that the process may use. std::invalid_argument where
  // HEADSTART_THREADS is no number from 1 to kMostThreads.
  static Pool& instance();
  // A child has only the thread that forked; its pool starts anew, with the same size.
  static void renew();

  static constexpr int kMostThreads = 1024;

  int num_threads() const { return wanted_.load(std::memory_order_relaxed); }
  // Takes effect for the next run; std::invalid_argument outside 1 .. kMostThreads.
  void set_num_threads(int count);

  // Worker 0, which is the caller, and whoever of the others (1 .. num_threads - 1) comes in time run `part` once each; returns when
  // all of them have. All work of a part has to go through `share`. Not reentrant: a second caller waits. What a part throws reaches
  // the caller once all workers have left. ThreadsRefused: nothing was run; the next call tries again.
  void run(const std::function<void(int worker)>& part);

  // Inside run: the size of chunks, some `parts` for each worker, that gives the workers' shares of 0 .. count the most equal sizes.
  std::ptrdiff_t even_chunk(std::ptrdiff_t count, std::ptrdiff_t parts) const {
    const std::ptrdiff_t largest = (count + parts * num_workers_ - 1) / (parts * num_workers_);
    std::ptrdiff_t best = 1, least = count + 1;
    for (std::ptrdiff_t chunk = largest; chunk >= 1 && 2 * chunk >= largest; --chunk) {
      const std::ptrdiff_t share = largest_share(count, chunk);
      if (share < least) best = chunk, least = share;
    }
    return best;
  }

  // Inside run, called by all workers alike: `part(begin, end)` over chunks, `chunk` long or shorter, that cover 0 .. count; returns
  // when all are done.
  template <class Part>
  void share(std::ptrdiff_t count, std::ptrdiff_t chunk, Part&& part) {
    if (count <= 0) return;
    if (num_workers_ == 1) {
      for (std::ptrdiff_t begin = 0; begin < count; begin += chunk) part(begin, std::min(begin + chunk, count));
      return;
    }
    const std::int64_t num_chunks = (count + chunk - 1) / chunk;
    const std::uint32_t stage = here_.stage++;
    here_.num_done = 0;
    for (int i = 0; i < num_workers_; ++i) {
      if (i > 0 && is_over(stage, num_chunks)) return;
      const int owner = (here_.worker + i) % num_workers_;
      const std::int64_t first = num_chunks * owner / num_workers_, end = num_chunks * (owner + 1) / num_workers_;
      std::int64_t taken = 0;
      while (take_chunk(owner, stage, end - first, taken)) {
        const std::ptrdiff_t begin = (first + taken) * chunk;
        part(begin, std::min(begin + chunk, count));
        finish_chunk(stage);
      }
    }
    wait_until_over(stage, num_chunks);
  }

 private:
  explicit Pool(int count) : wanted_(count) {}

  std::ptrdiff_t largest_share(std::ptrdiff_t count, std::ptrdiff_t chunk) const {
    const std::ptrdiff_t num_chunks = (count + chunk - 1) / chunk;
    std::ptrdiff_t largest = 0;
    for (int worker = 0; worker < num_workers_; ++worker) {
      const std::ptrdiff_t begin = num_chunks * worker / num_workers_ * chunk, end = num_chunks * (worker + 1) / num_workers_ * chunk;
      largest = std::max(largest, std::min(end, count) - begin);
    }
    return largest;
  }
  void resize(int count);
  void work(int worker, std::uint64_t seen);
  void take_part(int worker);

  // Both numbers count within a stage: the stage stands in the upper half, and what belongs to an earlier one counts as zero.
  struct Slot {
    alignas(64) std::atomic<std::uint64_t> taken = 0;  // chunks of this worker's share, by whomever
    alignas(64) std::atomic<std::uint64_t> done = 0;   // chunks that this worker has finished, of any share
  };
  static constexpr int kStageShift = 32;
  static std::uint64_t at(std::uint32_t stage, std::uint32_t number) { return std::uint64_t{stage} << kStageShift | number; }
  static std::uint32_t stage_of(std::uint64_t value) { return static_cast<std::uint32_t>(value >> kStageShift); }
  static std::uint32_t number_of(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

  // The next chunk of the owner's share; false if there is none left.
  bool take_chunk(int owner, std::uint32_t stage, std::int64_t num_chunks, std::int64_t& index) {
    std::atomic<std::uint64_t>& taken = slots_[static_cast<std::size_t>(owner)].taken;
    std::uint64_t now = taken.load(std::memory_order_acquire);
    for (;;) {
      if (stage_of(now) > stage) return false;
      const std::uint32_t next = stage_of(now) == stage ? number_of(now) : 0;
      if (next >= num_chunks) return false;
      if (taken.compare_exchange_weak(now, at(stage, next + 1), std::memory_order_acq_rel, std::memory_order_acquire)) {
        index = next;
        return true;
      }
    }
  }

  void finish_chunk(std::uint32_t stage) {
    slots_[static_cast<std::size_t>(here_.worker)].done.store(at(stage, ++here_.num_done), std::memory_order_release);
  }

  // All chunks are done, or somebody is at work on a later stage, which comes to the same.
  bool is_over(std::uint32_t stage, std::int64_t num_chunks) const {
    for (const Slot& slot : slots_) {
      const std::uint64_t done = slot.done.load(std::memory_order_acquire);
      if (stage_of(done) > stage) return true;
      if (stage_of(done) == stage) num_chunks -= number_of(done);
    }
    return num_chunks == 0;
  }

  void wait_until_over(std::uint32_t stage, std::int64_t num_chunks) const;

  // Where this thread stands in the run.
  struct Here {
    int worker = 0;
    std::uint32_t stage = 0, num_done = 0;
  };
  static constinit thread_local Here here_;

  std::atomic<int> wanted_;
  std::mutex entry_;
  std::vector<std::thread> threads_;  // workers 1 and above
  std::vector<Slot> slots_;           // of all workers
  const std::function<void(int)>* part_ = nullptr;
  std::exception_ptr error_;
  std::mutex error_lock_;
  int num_workers_ = 1;  // of the current run

  // Each on a cache line of its own: all workers write to them.
  alignas(64) std::atomic<std::uint64_t> runs_ = 0;  // counts up when a run starts (or the workers have to leave)
  std::atomic<bool> closing_ = false;
  std::atomic<bool> open_ = false;               // whether workers may still enter the run
  alignas(64) std::atomic<int> num_inside_ = 0;  // workers that have entered and not left
  std::atomic<bool> failed_ = false;
};

}  // namespace headstart
