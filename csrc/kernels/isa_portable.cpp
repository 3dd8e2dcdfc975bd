#define HEADSTART_ISA portable
#include "simd/portable.h"

#include "kernels/table.inl"
