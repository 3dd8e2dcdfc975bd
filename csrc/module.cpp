// headstart._native: the native engine's Python module. Each part binds its own things.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_matrix(nb::module_& module);
void bind_measure(nb::module_& module);
void bind_model(nb::module_& module);
void bind_vocabulary(nb::module_& module);

NB_MODULE(_native, module) {
  bind_matrix(module);
  bind_measure(module);
  bind_model(module);
  bind_vocabulary(module);
}
