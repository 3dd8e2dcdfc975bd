// Results that become numpy arrays, and the error for logits that are none.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <memory>
#include <span>

namespace headstart {

// Results that become a numpy array [rows, width].
template <class Value>
class Table {
 public:
  Table(std::size_t rows, std::size_t width) : rows_(rows), width_(width), values_(new Value[rows * width]()) {}
  Value* data() { return values_.get(); }
  std::span<Value> operator[](std::size_t row) { return {values_.get() + row * width_, width_}; }
  nanobind::object release() && {
    nanobind::capsule owner(values_.get(), [](void* values) noexcept { delete[] static_cast<Value*>(values); });
    Value* data = values_.release();
    return nanobind::cast(nanobind::ndarray<nanobind::numpy, Value, nanobind::ndim<2>>(data, {rows_, width_}, owner));
  }

 private:
  std::size_t rows_, width_;
  std::unique_ptr<Value[]> values_;
};

// Raises the error that this function of headstart.sampling makes.
[[noreturn]] inline void raise(const char* function) {
  const nanobind::object error = nanobind::module_::import_("headstart.sampling").attr(function)();
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw nanobind::python_error();
}
[[noreturn]] inline void raise_unusable_logits() { raise("unusable_logits"); }

}  // namespace headstart
