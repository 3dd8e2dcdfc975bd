#define HEADSTART_ISA amx
#include "simd/avx512_bf16.h"

#include "kernels/tiles.inl"

namespace headstart::amx {

extern constinit const TileKernels tiles;
constinit const TileKernels tiles{.panels_in_group = kTilePanels, .open = open_tiles, .close = close_tiles, .bfloat16 = bfloat16_tiles};

}  // namespace headstart::amx
