// headstart._native: the native engine's Python module. Each part binds its own things.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_matrix(nb::module_& module);
void bind_measure(nb::module_& module);
#if __has_include("bind_model.cpp")
void bind_model(nb::module_& module);
#endif
#if __has_include("bind_vocabulary.cpp")
void bind_vocabulary(nb::module_& module);
#endif

NB_MODULE(_native, module) {
  bind_matrix(module);
  bind_measure(module);
#if __has_include("bind_model.cpp")
  bind_model(module);
#endif
#if __has_include("bind_vocabulary.cpp")
  bind_vocabulary(module);
#endif
}
