// Memory for weights, in huge pages where the system grants them.
//
// A forward reads every weight once, in order. With pages of 4 kB the processor spends half of that time on translating addresses
// and its prefetchers stop at each border; pages of 2 MB take the same kernel from 16 to 9 milliseconds (a model of 135 M bfloat16
// weights). Matrices are smaller than such a page, so many share a mapping, which lives as long as any of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headstart {

// Zeroed, aligned to 64 bytes. Throws std::bad_alloc.
std::shared_ptr<std::uint8_t[]> allocate_in_huge_pages(std::size_t num_bytes);

}  // namespace headstart
