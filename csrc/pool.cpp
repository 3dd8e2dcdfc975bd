#include "pool.h"

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

namespace headstart {

namespace {

constexpr int kSpins = 4000;         // pauses before a waiting worker offers its core to others: some 50 microseconds
constexpr int kYieldsAwake = 2000;   // yields before an idle worker sleeps in the kernel: a millisecond or two on a free core

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits for `ready`, at most `yields` times giving way to another thread; false if it gave up. Neighbours take cores away for
// a moment, and then spinning only keeps the thread that one waits for from running.
template <class Ready>
bool wait(Ready ready, int yields) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    pause();
  }
  for (int i = 0; yields < 0 || i < yields; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return false;
}

// Leaves a part whose run has failed in another worker.
struct Abandoned {};

int usable_cores() {
#if defined(__linux__)
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::clamp(CPU_COUNT(&cores), 1, Pool::kMostThreads);
#endif
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, Pool::kMostThreads);
}

int default_num_threads() {
  const char* text = std::getenv("HEADSTART_THREADS");
  if (!text || !*text) return usable_cores();
  const std::string_view digits = text;
  int count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc() || end != digits.data() + digits.size() || count < 1 || count > Pool::kMostThreads)
    throw std::invalid_argument("HEADSTART_THREADS must be a whole number from 1 to " + std::to_string(Pool::kMostThreads) + ", not '" +
                                text + "'");
  return count;
}

// Never destroyed: at exit a Python thread may still be inside a forward, and joining it could wait for ever. The process ends with
// its threads asleep.
std::atomic<Pool*> the_pool = nullptr;

}  // namespace

ThreadsRefused::ThreadsRefused(int given, int wanted, const std::string& reason)
    : std::runtime_error("the system refuses thread " + std::to_string(given + 1) + " of " + std::to_string(wanted) + " of the native engine (" +
                         reason + "); set HEADSTART_THREADS to " + std::to_string(given) + " or less, or allow more threads") {}

Pool& Pool::instance() {
  Pool* pool = the_pool.load(std::memory_order_acquire);
  if (pool) return *pool;
  auto made = std::unique_ptr<Pool>(new Pool(default_num_threads()));  // it has no threads yet
  if (!the_pool.compare_exchange_strong(pool, made.get(), std::memory_order_acq_rel)) return *pool;
  return *made.release();
}

void Pool::renew() {
  if (const Pool* old = the_pool.load()) the_pool.store(new Pool(old->num_threads()));
}

void Pool::set_num_threads(int count) {
  if (count < 1 || count > kMostThreads)
    throw std::invalid_argument("the number of threads must be from 1 to " + std::to_string(kMostThreads) + ", not " +
                                std::to_string(count));
  wanted_.store(count, std::memory_order_relaxed);
}

constinit thread_local Pool::Here Pool::here_;

void Pool::resize(int count) {
  if (num_workers_ == count) return;
  closing_.store(true, std::memory_order_relaxed);
  runs_.fetch_add(1, std::memory_order_release);
  runs_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  closing_.store(false, std::memory_order_relaxed);
  num_workers_ = 1;
  slots_ = std::vector<Slot>(static_cast<std::size_t>(count));
  const std::uint64_t seen = runs_.load(std::memory_order_relaxed);
  threads_.reserve(static_cast<std::size_t>(count));
  for (; num_workers_ < count; ++num_workers_) {
    try {
      threads_.emplace_back(&Pool::work, this, num_workers_, seen);
    } catch (const std::system_error& error) {
      throw ThreadsRefused(num_workers_, count, error.code().message());
    }
  }
}

void Pool::run(const std::function<void(int)>& part) {
  const std::lock_guard lock(entry_);
  resize(num_threads());
  part_ = &part;
  error_ = nullptr;
  failed_.store(false, std::memory_order_relaxed);
  for (Slot& slot : slots_) {
    slot.taken.store(0, std::memory_order_relaxed);
    slot.done.store(0, std::memory_order_relaxed);
  }
  num_inside_.fetch_add(1);
  open_.store(true);
  if (num_workers_ > 1) {
    runs_.fetch_add(1, std::memory_order_release);
    runs_.notify_all();
  }
  take_part(0);
  open_.store(false);  // who has not come by now finds nothing to do
  wait([this] { return num_inside_.load() == 0; }, -1);
  part_ = nullptr;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

// The worker has entered already (num_inside_ counts it).
void Pool::take_part(int worker) {
  here_ = {.worker = worker};
  try {
    (*part_)(worker);
  } catch (const Abandoned&) {
  } catch (...) {
    const std::lock_guard lock(error_lock_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
  num_inside_.fetch_sub(1);
}

void Pool::work(int worker, std::uint64_t seen) {
  for (;;) {
    if (!wait([&] { return runs_.load(std::memory_order_acquire) != seen; }, kYieldsAwake)) runs_.wait(seen, std::memory_order_acquire);
    seen = runs_.load(std::memory_order_acquire);
    if (closing_.load(std::memory_order_relaxed)) return;
    // Entering before looking, so that a run that closes now waits for this worker or is seen to be closed.
    num_inside_.fetch_add(1);
    if (open_.load())
      take_part(worker);
    else
      num_inside_.fetch_sub(1);
  }
}

void Pool::wait_until_over(std::uint32_t stage, std::int64_t num_chunks) const {
  wait([&] { return is_over(stage, num_chunks) || failed_.load(std::memory_order_acquire); }, -1);
  if (failed_.load(std::memory_order_acquire)) throw Abandoned();
}

}  // namespace headstart
