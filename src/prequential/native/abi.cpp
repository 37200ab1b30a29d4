// What a library says about itself before anything else in it is called.
//
// This file alone is compiled for the oldest CPU of its architecture, so that these functions run everywhere. No other
// file may have constructors that run when the library is loaded: they would run before the CPU is asked.

#ifndef PREQUENTIAL_SOURCES
#define PREQUENTIAL_SOURCES ""
#endif
#ifndef PREQUENTIAL_COMPILED_BY
#define PREQUENTIAL_COMPILED_BY ""
#endif

// The number of the interface. It must equal ABI_VERSION in library.py, which says what is in it.
extern "C" int prequential_abi_version() { return 2; }

// The hash of all sources that it was compiled from.
extern "C" const char *prequential_sources() { return PREQUENTIAL_SOURCES; }

// The compiler and its flags.
extern "C" const char *prequential_compiled_by() { return PREQUENTIAL_COMPILED_BY; }

// Whether this CPU has the instructions that the other files are compiled for: 1 or 0.
extern "C" int prequential_runs_here() {
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
#if defined(PREQUENTIAL_AVX512)
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl"))
    return 0;
#endif
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
#else
  return 1;
#endif
}
