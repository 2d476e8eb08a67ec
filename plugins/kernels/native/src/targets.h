// One source, compiled once for each instruction set: a file that is included between WM_TARGET_BEGIN_x and
// WM_TARGET_END gets the instructions of x, and nothing else of the library does. Which one runs its caller says, who
// asks core.cc what the machine has, so that a binary never meets an instruction that its machine lacks.
#pragma once

// With -DWM_X86=0 there is only what is portable, anywhere.
#ifndef WM_X86
#if defined(__x86_64__) || defined(_M_X64)
#define WM_X86 1
#else
#define WM_X86 0
#endif
#endif

// Whether the compiler, and the system, know the matrix unit.
#if WM_X86 && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define WM_HAS_AMX 1
#else
#define WM_HAS_AMX 0
#endif

#define WM_DO_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define WM_TARGET_BEGIN(features) \
  WM_DO_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define WM_TARGET_END WM_DO_PRAGMA(clang attribute pop)
#define WM_WIDE ""
#else
#define WM_WIDE ",prefer-vector-width=512"  // clang ignores the whole list for it
#define WM_TARGET_BEGIN(features) WM_DO_PRAGMA(GCC push_options) WM_DO_PRAGMA(GCC target(features))
#define WM_TARGET_END WM_DO_PRAGMA(GCC pop_options)
#endif

#define WM_AVX2 "avx2,fma,f16c,bmi,bmi2"
#define WM_AVX512 "avx2,fma,f16c,bmi,bmi2,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni" WM_WIDE
#define WM_AVX512_BF16 WM_AVX512 ",avx512bf16"
#define WM_AMX WM_AVX512_BF16 ",amx-tile,amx-bf16"

// With -DWM_ONLY=<WmIsa> a library has kernels for that instruction set alone, and is asked for no other.
#ifdef WM_ONLY
#define WM_IS_WANTED(isa) (WM_ONLY == isa)
#else
#define WM_IS_WANTED(isa) 1
#endif
#define WM_WITH_PORTABLE WM_IS_WANTED(0)
#define WM_WITH_AVX2 (WM_X86 && WM_IS_WANTED(1))
#define WM_WITH_AVX512 (WM_X86 && WM_IS_WANTED(2))

enum WmIsa { WM_ISA_PORTABLE = 0, WM_ISA_AVX2 = 1, WM_ISA_AVX512 = 2 };

#if WM_X86
// Which of two ways is faster is the maker's, where both are in the same instruction set.
inline bool intel() {
  static const bool is = (__builtin_cpu_init(), __builtin_cpu_is("intel"));
  return is;
}
#endif
