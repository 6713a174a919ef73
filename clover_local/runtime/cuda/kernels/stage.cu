// All experts of a layer brought together for a long prompt, from wherever each of them lies.
#include "common.cuh"

struct StageArgs {
    const u8* const* table;  // [experts]: on the card or in the computer's memory
    u8* out;                 // [experts][stride]
    u64 bytes, stride;       // of one expert's matrix, and from one to the next
};

// A column of blocks an expert; each thread has four loads on their way.
KERNEL(stage_experts, 256, StageArgs) {
    const uint4* from = (const uint4*)a.table[blockIdx.y];
    uint4* to = (uint4*)(a.out + blockIdx.y * a.stride);
    u64 count = a.bytes / 16, step = (u64)gridDim.x * blockDim.x, at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; at + 3 * step < count; at += 4 * step) {
        uint4 v0 = from[at], v1 = from[at + step], v2 = from[at + 2 * step], v3 = from[at + 3 * step];
        to[at] = v0, to[at + step] = v1, to[at + 2 * step] = v2, to[at + 3 * step] = v3;
    }
    for (; at < count; at += step) to[at] = from[at];
    if (blockIdx.x == 0 && threadIdx.x < a.bytes % 16) {
        u64 last = 16 * count + threadIdx.x;
        (a.out + blockIdx.y * a.stride)[last] = a.table[blockIdx.y][last];
    }
}
