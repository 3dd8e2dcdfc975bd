// numpy arrays as the bindings take them: on the CPU, without gaps, and never copied.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

namespace headstart {

template <class Element, std::size_t Dimensions = 1>
using Array = nanobind::ndarray<const Element, nanobind::ndim<Dimensions>, nanobind::c_contig, nanobind::device::cpu>;

template <class Element>
std::span<const Element> span(const Array<Element>& array) {
  return {array.data(), array.size()};
}

}  // namespace headstart
