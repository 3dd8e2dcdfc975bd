// Memory without a type: aligned for the kernels, zeroed, in huge pages where the system grants them.
#pragma once

#include <cstddef>
#include <memory>

namespace headstart {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::size_t bytes);  // std::bad_alloc

  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  // At least so many bytes from now on; what it held is lost when it grows.
  void reserve(std::size_t bytes);

  template <class Element>
  Element* as() const {
    return reinterpret_cast<Element*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

}  // namespace headstart
