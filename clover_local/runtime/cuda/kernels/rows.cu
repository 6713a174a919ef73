// Per-row work between the matrices: token embedding, RMS norm with quantization, the gate of an attention layer.
#include "blocks.cuh"

struct EmbedArgs {
    const u8* table;
    float* x;  // [rows, hidden]
    const Pass* pass;
    int type, hidden;
};

KERNEL(embed, 256, EmbedArgs) {
    wait_for_previous();
    int r = blockIdx.x;
    if (r >= a.pass->n) return;
    const u8* row = a.table + (size_t)a.pass->tokens[r] * row_bytes(a.type, a.hidden);
    for (int i = threadIdx.x; i < a.hidden; i += blockDim.x) a.x[(size_t)r * a.hidden + i] = value_at(a.type, row, i);
}

struct NormArgs {
    const float* x;       // [rows, hidden]
    const float* weight;  // [hidden]
    Acts out;             // [rows, hidden]
    const Pass* pass;
    int hidden;
    float eps;
};

KERNEL(rms_norm, 256, NormArgs) {
    __shared__ float scratch[8];
    wait_for_previous();
    int r = blockIdx.x, quads = a.hidden / 4;
    if (r >= a.pass->n) return;
    const float4* x = (const float4*)(a.x + (size_t)r * a.hidden);
    float sum = 0;
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {
        float4 v = x[i];
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    float scale = rsqrtf(block_sum(sum, scratch) / a.hidden + a.eps);
    for (int i = threadIdx.x; i < quads; i += blockDim.x) {  // whole warps: hidden is a multiple of 128
        float4 v = x[i], w = ((const float4*)a.weight)[i];
        v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
        store_acts4(a.out, r, a.hidden, 4 * i, v);
    }
}
