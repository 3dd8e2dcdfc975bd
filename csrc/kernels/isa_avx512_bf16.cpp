#define HEADSTART_ISA avx512_bf16
#include "simd/avx512_bf16.h"

#include "kernels/table.inl"
