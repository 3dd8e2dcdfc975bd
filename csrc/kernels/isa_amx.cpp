#define HEADSTART_ISA amx
#include "simd/avx512_bf16.h"

#include "kernels/attention_tiles.inl"

namespace headstart::amx {

extern constinit const TileKernels tiles;
constinit const TileKernels tiles{.panels_in_group = kTilePanels, .open = open_tiles, .close = close_tiles, .bfloat16 = bfloat16_tiles};

void attend(const AttentionTask& task) { attend_in_tiles(task); }

}  // namespace headstart::amx
