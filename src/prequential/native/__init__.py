"""The native core: the default learner's arithmetic in C++, for vectors on a CPU in float32. docs/native.md."""
