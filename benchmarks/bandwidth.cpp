// The ruler: how fast this machine reads memory. bandwidth THREADS MEGABYTES, then one line of GB/s for each line of input.
// The buffer lies in huge pages where they are to be had; each thread reads its own part in ascending order and adds up what it
// reads, as a matrix in memory is read once for a forward pass.
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

typedef std::uint64_t Line __attribute__((vector_size(64)));  // lowered to what the machine has

constexpr std::size_t block = 4;  // sums in flight, so that adding never waits

std::uint64_t sum(const Line* line, std::size_t count) {
  Line a = {}, b = {}, c = {}, d = {};
  for (std::size_t i = 0; i < count; i += block) {
    a += line[i];
    b += line[i + 1];
    c += line[i + 2];
    d += line[i + 3];
  }
  a += b + c + d;
  return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

// Keeps a reader on the index-th core that the process may use: two readers on one core would halve the figure.
void settle(std::size_t index) {
  cpu_set_t allowed, own;
  sched_getaffinity(0, sizeof allowed, &allowed);
  CPU_ZERO(&own);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed) && index-- == 0) CPU_SET(core, &own);
  }
  if (CPU_COUNT(&own)) pthread_setaffinity_np(pthread_self(), sizeof own, &own);
}

}  // namespace

int main(int, char** arguments) {
  const std::size_t num_threads = std::strtoul(arguments[1], nullptr, 10);
  const std::size_t share = std::strtoul(arguments[2], nullptr, 10) * 1000000 / (64 * block * num_threads) * block;  // lines
  const std::size_t bytes = 64 * share * num_threads;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  const auto* lines = static_cast<const Line*>(memory);
  std::vector<std::thread> readers;
  std::vector<std::uint64_t> totals(num_threads);
  std::barrier turn(static_cast<std::ptrdiff_t>(num_threads + 1));
  std::atomic<bool> ended = false;
  for (std::size_t t = 0; t < num_threads; ++t) {
    readers.emplace_back([&, t] {
      settle(t);
      for (turn.arrive_and_wait(); !ended; turn.arrive_and_wait()) {
        totals[t] = sum(lines + t * share, share);
        turn.arrive_and_wait();
      }
    });
  }
  while (std::getchar() != EOF) {
    const auto started = std::chrono::steady_clock::now();
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
    volatile std::uint64_t used = 0;  // or else nothing would have to be read
    for (const std::uint64_t total : totals) used = used + total;
    std::printf("%.3f\n", static_cast<double>(bytes) / seconds.count() / 1e9);
    std::fflush(stdout);
  }
  ended = true;
  turn.arrive_and_wait();
  for (auto& reader : readers) reader.join();
}
