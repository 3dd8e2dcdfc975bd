// Native work without Python's lock (the GIL).
#pragma once

#include <nanobind/nanobind.h>

#include <unistd.h>

namespace headstart {

// Gives up the lock, and takes it again at the end of the scope.
//
// Python ends a daemon thread that asks for the lock behind the interpreter's end: up to 3.13 by unwinding its stack, which
// no destructor can let through, so that the process would abort. Such a thread has nothing left to do; it waits for the
// process to exit, as it does in later versions.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace headstart
