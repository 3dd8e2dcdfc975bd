// What a fork leaves to the child.
//
// A child has only the thread that forked, and a copy of everything else as it stood at that moment: a lock that another thread held
// stays locked for ever, over data that it had half changed. So the forking thread takes the locks of all shared state first, which
// means that it waits for the forwards that are under way (milliseconds, a prompt's chunk up to a second), and the child finds
// every model whole.
#pragma once

#include <list>
#include <mutex>

namespace headstart {

// A mutex that no other thread holds while a fork takes place. Nobody takes one while holding another, or needs Python's lock
// while holding one: the forking thread, which has that, takes them all.
class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::list<ForkMutex*>::iterator place_;
};

// Prepares the process for forks; once, when the module is loaded.
void handle_forks();

}  // namespace headstart
