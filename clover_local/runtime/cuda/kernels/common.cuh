// Types, warp operations and tensor-core instructions shared by every kernel; no header of the toolkit is needed.
// With EMULATED defined the same sources compile as plain C++ (tests/cuda/emulator.h supplies the thread model).
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef EMULATED
#include "emulator.h"
#else
// A kernel takes one structure by value; runtime/cuda/arguments.py mirrors each of them. With `blocks` the compiler
// keeps to registers that let so many blocks share a multiprocessor.
#define RESIDENT_KERNEL(name, threads, blocks, Args)                                             \
    static_assert(sizeof(Args) == SIZE_##Args, "runtime/cuda/arguments.py differs from " #Args); \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Args a)
#define KERNEL(name, threads, Args) RESIDENT_KERNEL(name, threads, 1, Args)
#define INFINITY __int_as_float(0x7f800000)
#define DYNAMIC_SHARED(type, name) extern __shared__ __align__(16) u8 name##_bytes[]; type* name = (type*)name##_bytes
#define FULL 0xffffffffu
#endif

constexpr int MAX_ROWS = 32;
constexpr int F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
              Q6_K = 14, IQ3_XXS = 18, IQ4_NL = 20, IQ3_S = 21, IQ4_XS = 23, BF16 = 30;  // ggml's type ids

// What changes from one run of a graph to the next.
struct Pass {
    int n;        // rows that count; the rest of the graph's width is padding
    int past;     // committed tokens
    int replay;   // rows a commit replays
    int counted;  // whether rows 0..r count as response tokens for row r (verify)
    int picks;    // experts of a row in a preview; 0: as many as the model's own
    int budget;   // experts of all rows of a preview together; 0: no limit
    int resident; // 1: previews use only the experts of RouteArgs::resident
    int tokens[MAX_ROWS];
};

// Activations [rows, K]: 8-bit blocks of 32 with (scale, scale * sum), and the same in float32. The quantized blocks lie as
// tensor cores read them: block b of rows 8i .. 8i+7, then their block b + 1.
struct Acts {
    i8* q;
    float2* s;
    float* f;
};

#ifndef EMULATED
// Programmatic dependent launch: nothing an earlier kernel wrote may be read before this.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Reads 16 aligned bytes so that they are near when they are needed.
__device__ __forceinline__ void warm(const void* p) {
    u32 a, b, c, d;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(p));
}

// 16 aligned bytes to shared memory past the registers; copies between two commits are one group.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

__device__ __forceinline__ float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// c[16 x 8] += a[16 x 32] * b[32 x 8], signed bytes. Lane 4g+t: a0, a2 of row g, a1, a3 of row g+8; c of columns 2t, 2t+1.
__device__ __forceinline__ void mma_s8_k32(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_s8_k16(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) : "r"(a0), "r"(a1), "r"(b0));
}

// Operands must already be rounded to 10 mantissa bits.
__device__ __forceinline__ void mma_tf32_k8(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_f16_k16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 tiles of halves from shared memory, transposed; lane l names row l%8 of tile l/8.
__device__ __forceinline__ void load_transposed(u32 (&r)[4], const u16* row) {
    u32 address = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
#endif

__device__ __forceinline__ int lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ int warp_id() { return threadIdx.x >> 5; }

// Sum and maximum over groups of `width` neighbouring lanes.
template <int width = 32> __device__ __forceinline__ float lanes_sum(float v) {
#pragma unroll
    for (int o = width / 2; o; o >>= 1) v += __shfl_xor_sync(FULL, v, o);
    return v;
}
template <int width = 32> __device__ __forceinline__ float lanes_max(float v) {
#pragma unroll
    for (int o = width / 2; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, o));
    return v;
}

// Sums of two values over all lanes at once; a lane ends up with the sum of v[lane / 16].
__device__ __forceinline__ float lanes_sum2(const float (&v)[2]) {
    bool upper = lane_id() & 16;
    return lanes_sum<16>((upper ? v[1] : v[0]) + __shfl_xor_sync(FULL, upper ? v[0] : v[1], 16));
}

// Sum over the whole block; `scratch` holds one float per warp. Every thread gets the result.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    v = lanes_sum(v);
    if (lane_id() == 0) scratch[warp_id()] = v;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < (int)blockDim.x / 32; w++) total += scratch[w];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
__device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }
__device__ __forceinline__ float softplus(float v) { return v > 20.0f ? v : log1pf(expf(v)); }

// Where block `block` of a row lies among all.
__device__ __forceinline__ int block_index(int row, int k, int block) { return (row / 8 * (k / 32) + block) * 8 + row % 8; }

// Quantizes 32 neighbouring values of one row held four to a lane by 8 lanes; `at` is the column of v.x.
__device__ __forceinline__ void store_acts4(const Acts& out, int row, int k, int at, float4 v) {
    float big = lanes_max<8>(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
    float inverse = big > 0 ? 127.0f / big : 0.0f;
    int a = __float2int_rn(v.x * inverse), b = __float2int_rn(v.y * inverse);
    int c = __float2int_rn(v.z * inverse), d = __float2int_rn(v.w * inverse);
    float sum = lanes_sum<8>((float)(a + b + c + d)), scale = big / 127.0f;
    size_t block = block_index(row, k, at / 32);
    *(u32*)(out.q + block * 32 + at % 32) = (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (u32)d << 24;
    *(float4*)(out.f + (size_t)row * k + at) = v;
    if (lane_id() % 8 == 0) out.s[block] = make_float2(scale, scale * sum);
}

// The same for one value a lane, a block of 32 to a warp.
__device__ __forceinline__ void store_acts1(const Acts& out, int row, int k, int at, float v) {
    float big = lanes_max(fabsf(v)), inverse = big > 0 ? 127.0f / big : 0.0f;
    int q = __float2int_rn(v * inverse);
    float sum = lanes_sum((float)q), scale = big / 127.0f;
    size_t block = block_index(row, k, at / 32);
    out.q[block * 32 + at % 32] = (i8)q;
    out.f[(size_t)row * k + at] = v;
    if (lane_id() == 0) out.s[block] = make_float2(scale, scale * sum);
}
