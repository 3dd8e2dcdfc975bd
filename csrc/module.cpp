// headstart._native: the native engine's Python module. Each part binds its own things.
#include <nanobind/nanobind.h>

#include <exception>

#include "fork.h"
#include "pool.h"

namespace nb = nanobind;

void bind_cell(nb::module_& module);
void bind_matrix(nb::module_& module);
void bind_measure(nb::module_& module);
void bind_model(nb::module_& module);
void bind_ledger(nb::module_& module);
void bind_vocabulary(nb::module_& module);
void bind_walks(nb::module_& module);

namespace {

void raise_refused_threads(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const headstart::ThreadsRefused& refused) {
    PyErr_SetString(nb::module_::import_("headstart.errors").attr("ModelError").ptr(), refused.what());
  }
}

}  // namespace

NB_MODULE(_native, module) {
  headstart::handle_forks();
  nb::register_exception_translator(&raise_refused_threads);
  bind_cell(module);
  bind_matrix(module);
  bind_measure(module);
  bind_model(module);
  bind_ledger(module);
  bind_vocabulary(module);
  bind_walks(module);
}
