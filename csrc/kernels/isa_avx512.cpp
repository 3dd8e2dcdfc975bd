#define HEADSTART_ISA avx512
#include "simd/avx512.h"

#include "kernels/table.inl"
