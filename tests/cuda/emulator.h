// Runs the CUDA kernels on a CPU, thread by thread, so that their arithmetic and indexing are tested without a card.
//
// Every CUDA thread is a coroutine; blocks run one after another. Barriers, warp operations and tensor-core
// instructions wait until all threads of the block or warp have come, as the hardware does; a kernel whose threads
// disagree about that stops with a message. Shared memory keeps what the block before it wrote. x86-64 only.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))
#define FULL 0xffffffffu
using std::max;
using std::min;

struct int2 { int x, y; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emu {
struct Index { int x, y, z; };
struct Warp { int arrived, generation, alive; alignas(16) unsigned char slot[2][32][64]; };
struct Thread { Index tid; void* sp; bool done; std::vector<char> stack; };

inline Index block_index, block_size, grid_size;
inline std::vector<Thread> threads;
inline std::vector<Warp> warps;
inline int current, alive, arrived, generation;
inline long progress, seen_progress, idle;
inline std::function<void()> body;
inline void* scheduler_sp;
inline std::vector<char> dynamic;
constexpr int SHARED_GUARD = 256;

extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.weak emu_switch
emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");

inline void to_next() {
    int from = current, n = (int)threads.size();
    if (progress == seen_progress) {
        if (++idle > 4L * n) { fprintf(stderr, "emulator: threads wait for each other for ever\n"); abort(); }
    } else { seen_progress = progress; idle = 0; }
    int next = from;
    do next = (next + 1) % n; while (threads[next].done && next != from);
    if (next == from) {
        if (threads[from].done) { void* unused; emu_switch(&unused, scheduler_sp); }
        return;
    }
    current = next;
    emu_switch(&threads[from].sp, threads[next].sp);
}

inline void entry() {
    body();
    threads[current].done = true;
    progress++;
    alive--;
    Warp& w = warps[current / 32];
    w.alive--;
    if (w.arrived && w.arrived == w.alive) { fprintf(stderr, "emulator: a warp left a collective\n"); abort(); }
    if (arrived && arrived == alive) { arrived = 0; generation++; }
    to_next();
}

inline void run(std::function<void()> kernel, int gx, int gy, int block, int shared) {
    body = kernel;
    dynamic.assign(shared + 16 + SHARED_GUARD, (char)0x7f);
    grid_size = {gx, gy, 1};
    block_size = {block, 1, 1};
    threads.resize(block);
    for (auto& t : threads) t.stack.resize(64 << 10);
    for (int by = 0; by < gy; by++)
        for (int bx = 0; bx < gx; bx++) {
            block_index = {bx, by, 0};
            warps.assign((block + 31) / 32, Warp{});
            alive = block, arrived = generation = 0, progress = seen_progress = idle = 0;
            for (int i = 0; i < block; i++) {
                Thread& t = threads[i];
                t.tid = {i, 0, 0}, t.done = false, warps[i / 32].alive++;
                void** top = (void**)(((size_t)(t.stack.data() + t.stack.size())) & ~(size_t)15);
                *--top = nullptr;
                *--top = (void*)entry;
                t.sp = top - 6;
            }
            current = 0;
            emu_switch(&scheduler_sp, threads[0].sp);
            const char* end = (const char*)(((size_t)dynamic.data() + 15) & ~(size_t)15) + shared;
            for (int i = 0; i < SHARED_GUARD; i++)
                if (end[i] != 0x7f) { fprintf(stderr, "emulator: written behind the shared memory\n"); abort(); }
        }
}

inline unsigned char (*collect(const void* data, int size))[64] {
    Warp& w = warps[current / 32];
    int mine = w.generation;
    memcpy(w.slot[mine & 1][current % 32], data, size);
    if (++w.arrived == w.alive) { w.arrived = 0; w.generation++; progress++; }
    else while (w.generation == mine) to_next();
    return w.slot[mine & 1];
}
template <class T> T lane_value(unsigned char (*slots)[64], int lane) { T v; memcpy(&v, slots[lane], sizeof v); return v; }
}  // namespace emu

#define threadIdx (emu::threads[emu::current].tid)
#define blockIdx (emu::block_index)
#define blockDim (emu::block_size)
#define gridDim (emu::grid_size)

#define KERNEL(name, bound, Args)                                                                     \
    static_assert(sizeof(Args) == SIZE_##Args, "runtime/cuda/arguments.py differs from " #Args);      \
    static void body_##name(const Args& a);                                                           \
    extern "C" void name(const void* args, int gx, int gy, int block, int shared) {                   \
        if (block > (bound)) { fprintf(stderr, "emulator: block of %d\n", block); abort(); }          \
        emu::run([args] { body_##name(*(const Args*)args); }, gx, gy, block, shared);                 \
    }                                                                                                 \
    static void body_##name(const Args& a)
#define RESIDENT_KERNEL(name, bound, blocks, Args) KERNEL(name, bound, Args)
#define DYNAMIC_SHARED(type, name) type* name = (type*)(((size_t)emu::dynamic.data() + 15) & ~(size_t)15)

inline void __syncthreads() {
    int mine = emu::generation;
    if (++emu::arrived == emu::alive) { emu::arrived = 0; emu::generation++; emu::progress++; }
    else while (emu::generation == mine) emu::to_next();
}
inline void __syncwarp() { char none = 0; emu::collect(&none, 1); }
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) { return emu::lane_value<T>(emu::collect(&v, sizeof v), (threadIdx.x & 31) ^ mask); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return emu::lane_value<T>(emu::collect(&v, sizeof v), lane & 31); }
template <class T> T __shfl_up_sync(unsigned, T v, int d) {
    int lane = threadIdx.x & 31;
    auto s = emu::collect(&v, sizeof v);
    return lane < d ? v : emu::lane_value<T>(s, lane - d);
}
inline unsigned __ballot_sync(unsigned, bool p) {
    auto s = emu::collect(&p, 1);
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (unsigned)(s[i][0] & 1) << i;
    return r;
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    auto s = emu::collect(&v, 4);
    for (int i = 0; i < 32; i++) v = max(v, emu::lane_value<unsigned>(s, i));
    return v;
}
inline unsigned __reduce_min_sync(unsigned, unsigned v) {
    auto s = emu::collect(&v, 4);
    for (int i = 0; i < 32; i++) v = min(v, emu::lane_value<unsigned>(s, i));
    return v;
}
inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
inline unsigned atomicOr(unsigned* p, unsigned v) { unsigned old = *p; *p |= v; return old; }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    unsigned long long both = (unsigned long long)y << 32 | x, r = 0;
    for (int i = 0; i < 4; i++) r |= (both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return (unsigned)r;
}
inline int emu_dp2a(int a, int b, int c, int at) {
    return c + (short)a * (signed char)(b >> at) + (short)(a >> 16) * (signed char)(b >> (at + 8));
}
inline int __dp2a_lo(int a, int b, int c) { return emu_dp2a(a, b, c, 0); }
inline int __dp2a_hi(int a, int b, int c) { return emu_dp2a(a, b, c, 16); }
inline int signed_byte(unsigned word, int i) { return (signed char)(word >> 8 * i); }
inline unsigned atomicAdd(unsigned* p, unsigned v) { unsigned old = *p; *p += v; return old; }
inline void __threadfence() {}
template <class T> T __ldcg(const T* p) { return *p; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __float2int_rn(float v) { return (int)lrintf(v); }
template <class To, class From> To emu_bits(From v) { To r; memcpy(&r, &v, 4); return r; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __int_as_float(int v) { return emu_bits<float>(v); }
inline float __uint_as_float(unsigned v) { return emu_bits<float>(v); }
inline unsigned __float_as_uint(float v) { return emu_bits<unsigned>(v); }

inline void wait_for_previous() {}
inline void warm(const void* p) {
    if ((size_t)p & 15) { fprintf(stderr, "emulator: a read is not aligned\n"); abort(); }
    volatile char c = *(const char*)p, d = ((const char*)p)[15];
    (void)c, (void)d;
}
inline const unsigned char* load_pointer(const unsigned char* const* p) { return *p; }
inline void copy_async(void* shared, const void* global) {
    if (((size_t)shared | (size_t)global) & 15) { fprintf(stderr, "emulator: a copy is not aligned\n"); abort(); }
    memcpy(shared, global, 16);
}
inline void commit_copies() {}
template <int pending> void await_copies() {}
inline float half_to_float(unsigned short h) { _Float16 f; memcpy(&f, &h, 2); return (float)f; }
inline unsigned short float_to_half(float v) { _Float16 f = (_Float16)v; unsigned short h; memcpy(&h, &f, 2); return h; }

namespace emu {
// c += a b for registers of `per` values of T: a0, a2 (if any) of row g, a1, a3 of row g + 8, column of b: g.
template <class T, class Acc> void mma(Acc* c, const unsigned* a, int na, const unsigned* b, int nb) {
    struct Regs { unsigned a[4], b[2]; } mine = {};
    std::copy(a, a + na, mine.a), std::copy(b, b + nb, mine.b);
    auto slots = collect(&mine, sizeof mine);
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    constexpr int per = 4 / sizeof(T);
    for (int i = 0; i < 4; i++) {
        int row = g, upper = i >> 1, column = 2 * t + (i & 1);
        for (int half = 0; half < nb; half++)
            for (int q = 0; q < 4; q++) {
                T x[per], y[per];
                memcpy(x, &((Regs*)slots[4 * row + q])->a[2 * half + upper], 4);
                memcpy(y, &((Regs*)slots[4 * column + q])->b[half], 4);
                for (int e = 0; e < per; e++) c[i] += (Acc)x[e] * (Acc)y[e];
            }
    }
}
}  // namespace emu
inline void mma_s8_k32(int (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    emu::mma<signed char>(c, a, 4, b, 2);
}
inline void mma_s8_k16(int (&c)[4], unsigned a0, unsigned a1, unsigned b0) {
    unsigned a[2] = {a0, a1}, b[1] = {b0};
    emu::mma<signed char>(c, a, 2, b, 1);
}
inline void mma_tf32_k8(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    for (unsigned v : {a0, a1, a2, a3, b0, b1}) if (v & 0x1fff) { fprintf(stderr, "emulator: not tf32\n"); abort(); }
    emu::mma<float>(c, a, 4, b, 2);
}
inline void mma_f16_k16(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    emu::mma<_Float16>(c, a, 4, b, 2);
}
inline void load_transposed(unsigned (&r)[4], const unsigned short* row) {
    auto slots = emu::collect(&row, sizeof row);
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    for (int m = 0; m < 4; m++) {
        unsigned low = emu::lane_value<const unsigned short*>(slots, 8 * m + 2 * t)[g];
        unsigned high = emu::lane_value<const unsigned short*>(slots, 8 * m + 2 * t + 1)[g];
        r[m] = low | high << 16;
    }
}
