// Types, warp operations and tensor-core instructions shared by every kernel; no header of the toolkit is needed.
// With EMULATED defined the same sources compile as plain C++ (tests/cuda/emulator.h supplies the thread model).
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
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

// Activations [rows, K]: signed bytes in blocks of 32, and the same values in float32. GRAIN blocks share a scale (fewer at
// the end of a row); where that is one block, `s` has (scale, scale * sum) of each, otherwise `scale` and `sum` (of the
// bytes of a block) are apart. Everything lies as tensor cores read it, eight rows side by side: block b of rows 8i .. 8i+7,
// then their block b + 1; `sum` by eight blocks of a row.
struct Acts {
    i8* q;
    float2* s;
    float* scale;
    i16* sum;
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

// Reads a pointer here and now, wherever the compiler would rather do it.
__device__ __forceinline__ const u8* load_pointer(const u8* const* p) {
    u64 r;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(r) : "l"(p));
    return (const u8*)r;
}

// 16 aligned bytes to shared memory past the registers; copies between two commits are one group.
__device__ __forceinline__ void copy_async(void* shared, const void* global) {
    u32 to = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// Byte i of a word, with its sign.
__device__ __forceinline__ int signed_byte(u32 word, int i) {
    int r;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(r) : "r"(word), "r"(0x8880 | 0x1111 * i));
    return r;
}

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

// Sums of 2 or 4 values over all lanes at once; a lane ends up with that of v[lane / (32 / COUNT)].
template <int COUNT> __device__ __forceinline__ float lanes_sums(const float (&v)[COUNT]) {
    bool upper = lane_id() & 16;
    float w[COUNT / 2];
#pragma unroll
    for (int i = 0; i < COUNT / 2; i++)
        w[i] = (upper ? v[COUNT / 2 + i] : v[i]) + __shfl_xor_sync(FULL, upper ? v[i] : v[COUNT / 2 + i], 16);
    if constexpr (COUNT == 2) return lanes_sum<16>(w[0]);
    else {
        bool odd = lane_id() & 8;
        return lanes_sum<8>((odd ? w[1] : w[0]) + __shfl_xor_sync(FULL, odd ? w[0] : w[1], 8));
    }
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

// Where block `block` of a row of `blocks` lies among all; the same for groups of blocks.
__device__ __forceinline__ int block_index(int row, int blocks, int block) { return (row / 8 * blocks + block) * 8 + row % 8; }
__device__ __forceinline__ constexpr int groups_of(int k, int grain) { return (k + 32 * grain - 1) / (32 * grain); }

// Quantizes neighbouring values of one row, PER of them a lane, with one scale for those of LANES lanes. `at`: the column
// of v[0]; lanes beyond the row are not `live`. All lanes of the warp call it.
template <int LANES, int PER> __device__ __forceinline__ void store_acts(const Acts& out, int row, int k, int at, const float (&v)[PER], bool live = true) {
    constexpr int GRAIN = LANES * PER / 32, BLOCK = 32 / PER;  // lanes of a block
    float big = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) big = fmaxf(big, live ? fabsf(v[i]) : 0.0f);
    big = lanes_max<LANES>(big);
    float inverse = big > 0 ? 127.0f / big : 0.0f, scale = big / 127.0f;
    u32 words[PER / 4 > 0 ? PER / 4 : 1] = {};
#pragma unroll
    for (int i = 0; i < PER; i++) {
        int q = live ? __float2int_rn(v[i] * inverse) : 0;
        words[i / 4] |= (u32)(q & 255) << 8 * (i % 4);
        sum += q;
    }
    sum = lanes_sum<BLOCK>(sum);
    if (!live) return;
    size_t block = block_index(row, k / 32, at / 32);
    i8* q = out.q + block * 32 + at % 32;
    float* f = out.f + (size_t)row * k + at;
    if constexpr (PER == 1) {
        *q = (i8)words[0], *f = v[0];
    } else {
#pragma unroll
        for (int i = 0; i < PER / 4; i++) {
            ((u32*)q)[i] = words[i];
            ((float4*)f)[i] = make_float4(v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]);
        }
    }
    if (lane_id() % BLOCK != 0) return;
    if constexpr (GRAIN == 1) {
        out.s[block] = make_float2(scale, scale * sum);
    } else {
        out.sum[block_index(row, groups_of(k, 8), at / 256) * 8 + at % 256 / 32] = (i16)sum;
        if (lane_id() % LANES == 0) out.scale[block_index(row, groups_of(k, GRAIN), at / (32 * GRAIN))] = scale;
    }
}
