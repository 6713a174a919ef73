// Per-row work between the matrices: token embedding, RMS norm with quantization, after the
// experts' shares of a row have been added to it.
#include "blocks.cuh"

struct EmbedArgs {
    const u8* table;
    float* x;  // [rows, hidden]
    const Pass* pass;
    int type, hidden;
};

// Grid: rows x columns / 256.
KERNEL(embed, 256, EmbedArgs) {
    wait_for_previous();
    int r = blockIdx.x, i = 256 * blockIdx.y + threadIdx.x;
    if (r >= a.pass->n || i >= a.hidden) return;
    const u8* row = a.table + (size_t)a.pass->tokens[r] * row_bytes(a.type, a.hidden);
    a.x[(size_t)r * a.hidden + i] = value_at(a.type, row, i);
}

struct NormArgs {
    float* x;             // [rows, HIDDEN]
    const float* weight;  // [HIDDEN]
    Acts out;             // [rows, HIDDEN], 8 blocks to a scale
    const Pass* pass;
    const float* add;     // [slots, HIDDEN]: what is added to the rows first, or null
    const int* slots;     // [rows, stride]: which of them, the first and `picks` more; -1: none
    const int* picks;
    int stride;
    float eps;
};

#ifndef HIDDEN
#define HIDDEN 2048
#endif
constexpr int ROUNDS = (HIDDEN + 2047) / 2048;  // of eight values a thread
constexpr int TOGETHER = 9;                     // experts whose shares are on their way at once

__device__ __forceinline__ void load8(float (&to)[8], const float* from) {
    float4 u = ((const float4*)from)[0], v = ((const float4*)from)[1];
    to[0] = u.x, to[1] = u.y, to[2] = u.z, to[3] = u.w, to[4] = v.x, to[5] = v.y, to[6] = v.z, to[7] = v.w;
}

// A warp quantizes 256 values with one scale.
KERNEL(rms_norm, 256, NormArgs) {
    __shared__ float scratch[8];
    float x[ROUNDS][8], w[ROUNDS][8], sum = 0;
    int r = blockIdx.x, lane = lane_id(), slot = -1, slots = 0;
    bool used = r < a.pass->n;
    if (a.add && used) {  // known since before the kernel ahead
        slots = 1 + __ldcg(a.picks);
        if (lane < slots) slot = __ldcg(a.slots + r * a.stride + lane);
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int at = 2048 * i + 8 * threadIdx.x;
        if (at < HIDDEN) load8(w[i], a.weight + at);
    }
    wait_for_previous();
    if (!used) return;
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int at = 2048 * i + 8 * threadIdx.x;
        float* row = a.x + (size_t)r * HIDDEN + at;
        if (at < HIDDEN) load8(x[i], row);
        for (int s0 = 0; s0 < slots; s0 += TOGETHER) {
            float y[TOGETHER][8];
#pragma unroll
            for (int s = 0; s < TOGETHER; s++) {
                int from = __shfl_sync(FULL, slot, min(s0 + s, 31));
#pragma unroll
                for (int j = 0; j < 8; j++) y[s][j] = 0;
                if (at < HIDDEN && from >= 0) load8(y[s], a.add + (size_t)from * HIDDEN + at);
            }
#pragma unroll
            for (int s = 0; s < TOGETHER; s++)
#pragma unroll
                for (int j = 0; j < 8; j++) x[i][j] += y[s][j];
        }
        if (slots && at < HIDDEN) {
            ((float4*)row)[0] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
            ((float4*)row)[1] = make_float4(x[i][4], x[i][5], x[i][6], x[i][7]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) sum += at < HIDDEN ? x[i][j] * x[i][j] : 0.0f;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / HIDDEN + a.eps);
#pragma unroll
    for (int i = 0; i < ROUNDS; i++) {
        int at = 2048 * i + 8 * threadIdx.x;
#pragma unroll
        for (int j = 0; j < 8; j++) x[i][j] *= scale * w[i][j];
        store_acts<32, 8>(a.out, r, HIDDEN, at, x[i], at < HIDDEN);
    }
}
