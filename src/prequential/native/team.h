// Threads that work on one thing together, and wait for each other in between.
#pragma once
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace prequential {

// Lets threads wait until all of them have come. They look for the others some time before they sleep, as phases are
// short.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}
  void wait() {
    if (count_ == 1) return;
    const int round = round_.load(std::memory_order_acquire);
    if (waiting_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      waiting_.store(0, std::memory_order_relaxed);
      {
        std::unique_lock<std::mutex> lock(mutex_);
        round_.store(round + 1, std::memory_order_release);
      }
      all_.notify_all();
      return;
    }
    for (int i = 0; i < LOOKS; i++) {
      if (round_.load(std::memory_order_acquire) != round) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
  static constexpr int LOOKS = 2000;  // some 50 microseconds
  const int count_;
  std::atomic<int> waiting_{0}, round_{0};
  std::mutex mutex_;
  std::condition_variable all_;
};

// f(part, parts, barrier) in so many threads, or as many as the system gives; the caller is the first.
template <class F> void in_threads(int count, F f) {
  std::mutex mutex;
  std::vector<std::thread> others;
  std::unique_ptr<Barrier> barrier;
  int parts = 0;
  {
    std::unique_lock<std::mutex> hold(mutex);  // nobody begins before it is known how many there are
    others.reserve(count);
    try {
      for (int i = 1; i < count; i++)
        others.emplace_back([&, i] {
          { std::unique_lock<std::mutex> begin(mutex); }
          f(i, parts, *barrier);
        });
    } catch (const std::system_error &) {
    }
    parts = (int)others.size() + 1;
    barrier = std::make_unique<Barrier>(parts);
  }
  f(0, parts, *barrier);
  for (std::thread &other : others) other.join();
}

}  // namespace prequential
