// Short results that become Python tuples.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <span>
#include <vector>

namespace headstart {

template <class Value>
nanobind::tuple as_tuple(std::span<const Value> values) {
  nanobind::object found = nanobind::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!found.is_valid()) throw nanobind::python_error();
  for (std::size_t i = 0; i < values.size(); ++i)
    PyTuple_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), nanobind::cast(values[i]).release().ptr());
  return nanobind::borrow<nanobind::tuple>(found);
}

template <class Value>
nanobind::tuple as_tuple(const std::vector<Value>& values) {
  return as_tuple(std::span<const Value>(values));
}

}  // namespace headstart
