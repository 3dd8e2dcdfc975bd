#include "kernels/kernels.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(HEADSTART_TILES)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace headstart {

#if defined(HEADSTART_TILES)
namespace amx {
extern const TileKernels tiles;
void attend(const AttentionTask& task);
}  // namespace amx
#endif
#if defined(__x86_64__)
namespace avx512_bf16 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
namespace avx2 { extern const Kernels table; }
#endif
namespace portable { extern const Kernels table; }

namespace {

#if defined(HEADSTART_TILES)
// The system grants the memory that the tile unit's state takes only to processes that ask for it (Linux, Documentation/arch/x86/xstate).
bool has_tiles() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const Kernels& with_tiles() {
  static const Kernels table = [] {
    Kernels made = avx512_bf16::table;
    made.isa = "amx";
    made.linear.tiles = &amx::tiles;
    made.stack.attend_bfloat16 = amx::attend;
    return made;
  }();
  return table;
}
#endif

// Tables that this machine can run, best first.
std::vector<const Kernels*> detect() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has_avx512_bf16 = has_avx512 && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
#if defined(HEADSTART_TILES)
  if (has_avx512_bf16 && has_tiles()) found.push_back(&with_tiles());
#endif
  if (has_avx512_bf16) found.push_back(&avx512_bf16::table);
  if (has_avx512) found.push_back(&avx512::table);
  if (has_avx2) found.push_back(&avx2::table);
#endif
  found.push_back(&portable::table);
  return found;
}

const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> tables = detect();
  return tables;
}

const Kernels& named(std::string_view name, std::string_view what) {
  std::string valid;
  for (const Kernels* table : available()) {
    if (table->isa == name) return *table;
    valid += (valid.empty() ? "" : ", ") + std::string(table->isa);
  }
  throw std::invalid_argument(std::string(what) + " names an instruction set that this machine cannot run: '" + std::string(name) +
                              "'; valid here: " + valid);
}

std::atomic<const Kernels*> chosen = nullptr;

const Kernels& from_environment() {
  const char* name = std::getenv("HEADSTART_ISA");
  return name && *name ? named(name, "HEADSTART_ISA") : *available().front();
}

}  // namespace

const Kernels& kernels() {
  const Kernels* table = chosen.load(std::memory_order_acquire);
  if (!table) chosen.store(table = &from_environment(), std::memory_order_release);
  return *table;
}

void choose_isa(std::string_view name) { chosen.store(&named(name, "choose_isa"), std::memory_order_release); }

std::span<const std::string_view> available_isas() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const Kernels* table : available()) list.push_back(table->isa);
    return list;
  }();
  return names;
}

bool asks_ahead_for_few_rows() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace headstart
