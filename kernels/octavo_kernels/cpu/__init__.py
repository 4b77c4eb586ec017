"""The C++ kernels, their build and their binding."""
