#include "fork.h"

#include <pthread.h>

#include "pool.h"

namespace headstart {

namespace {

struct Registry {
  std::mutex lock;
  std::list<ForkMutex*> mutexes;
};

// Never destroyed: threads may still be at work when the process exits.
Registry& registry() {
  static Registry& only = *new Registry;
  return only;
}

void lock_all() {
  registry().lock.lock();
  for (ForkMutex* mutex : registry().mutexes) mutex->lock();
}

void unlock_all() {
  for (ForkMutex* mutex : registry().mutexes) mutex->unlock();
  registry().lock.unlock();
}

void begin_child() {
  unlock_all();
  Pool::renew();
}

}  // namespace

ForkMutex::ForkMutex() {
  const std::lock_guard guard(registry().lock);
  place_ = registry().mutexes.insert(registry().mutexes.end(), this);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard guard(registry().lock);
  registry().mutexes.erase(place_);
}

void handle_forks() {
  static const int registered = pthread_atfork(lock_all, unlock_all, begin_child);
  static_cast<void>(registered);
}

}  // namespace headstart
