// After the head: the response processing, then per row the best token, its probability, the entropy and the
// probability of the token that follows. Formulas: docs/model.md, "Response processing".
#include "common.cuh"

struct Processing {
    float presence, frequency, repetition;
    int mask_id, think_id;        // -1: none
    int seen, stops;              // lengths of the lists
    float length_bias[MAX_ROWS];  // of every stop id, per row
    float think_bias[MAX_ROWS];   // of the end of the reasoning, per row
};

struct ProcessArgs {
    float* logits;                // [rows, vocab]
    const Processing* processing;
    const int* seen;              // distinct tokens: committed response and, in a verify pass, its rows
    const int* counts;            // of each in the committed response
    const int* stop_ids;
    const Pass* pass;
    int vocab;
};

// Grid: rows. One block a row: penalties of the tokens seen, then the ramps, then the mask.
KERNEL(process, 256, ProcessArgs) {
    wait_for_previous();
    int r = blockIdx.x;
    if (r >= a.pass->n) return;
    const Processing& p = *a.processing;
    float* logits = a.logits + (size_t)r * a.vocab;
    for (int i = threadIdx.x; i < p.seen; i += blockDim.x) {
        int token = a.seen[i], count = a.counts[i];
        if (a.pass->counted)
            for (int j = 0; j <= r; j++) count += a.pass->tokens[j] == token;
        if (count == 0) continue;
        float v = logits[token] - count * p.frequency - p.presence;
        logits[token] = v > 0 ? v / p.repetition : v * p.repetition;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.stops; i += blockDim.x) logits[a.stop_ids[i]] += p.length_bias[r];
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (p.think_id >= 0) logits[p.think_id] += p.think_bias[r];
    if (p.mask_id >= 0) logits[p.mask_id] = -INFINITY;
}

// What a stretch of logits says: maximum and its first place, sums of e^(x - maximum) and of x e^(x - maximum).
struct Choice {
    float top;
    int id;
    float sum, dot;
};

struct RowResult {
    int id;
    float p, entropy, next_p;
};

struct ChooseArgs {
    const float* logits;  // [rows, vocab]
    Choice* parts;        // [rows, splits]
    RowResult* out;       // [rows]
    const Pass* pass;
    int vocab, splits;
};

__device__ __forceinline__ Choice join(Choice a, Choice b) {
    if (b.top > a.top || (b.top == a.top && b.id < a.id)) {
        Choice c = a;
        a = b, b = c;
    }
    float scale = b.top == -INFINITY ? 0.0f : expf(b.top - a.top);
    a.sum += b.sum * scale, a.dot += b.dot * scale;
    return a;
}

__device__ __forceinline__ Choice block_join(Choice c, Choice* scratch) {
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        Choice other = {__shfl_xor_sync(FULL, c.top, o), __shfl_xor_sync(FULL, c.id, o), __shfl_xor_sync(FULL, c.sum, o),
                        __shfl_xor_sync(FULL, c.dot, o)};
        c = join(c, other);
    }
    if (lane_id() == 0) scratch[warp_id()] = c;
    __syncthreads();
    c = scratch[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) c = join(c, scratch[w]);
    return c;
}

__device__ __forceinline__ Choice nothing() { return {-INFINITY, 0x7fffffff, 0, 0}; }

// Grid: splits x rows.
KERNEL(choose_part, 256, ChooseArgs) {
    __shared__ Choice scratch[8];
    wait_for_previous();
    int r = blockIdx.y, split = blockIdx.x, share = (a.vocab + a.splits - 1) / a.splits;
    if (r >= a.pass->n) return;
    const float* logits = a.logits + (size_t)r * a.vocab;
    int end = min(a.vocab, (split + 1) * share);
    Choice c = nothing();
    for (int i = split * share + threadIdx.x; i < end; i += blockDim.x) {
        float v = logits[i];
        if (v == -INFINITY) continue;
        if (v > c.top) {
            float scale = c.top == -INFINITY ? 0.0f : expf(c.top - v);
            c.sum *= scale, c.dot *= scale, c.top = v, c.id = i;
        }
        float e = expf(v - c.top);
        c.sum += e, c.dot += e * v;
    }
    c = block_join(c, scratch);
    if (threadIdx.x == 0) a.parts[r * a.splits + split] = c;
}

// Grid: rows.
KERNEL(choose, 256, ChooseArgs) {
    __shared__ Choice scratch[8];
    wait_for_previous();
    int r = blockIdx.x, n = a.pass->n;
    if (r >= n) return;
    Choice c = nothing();
    for (int i = threadIdx.x; i < a.splits; i += blockDim.x) c = join(c, a.parts[r * a.splits + i]);
    c = block_join(c, scratch);
    if (threadIdx.x != 0) return;
    float next = r + 1 < n ? a.logits[(size_t)r * a.vocab + a.pass->tokens[r + 1]] : -INFINITY;
    a.out[r] = {c.id, 1.0f / c.sum, logf(c.sum) + c.top - c.dot / c.sum, next == -INFINITY ? 0.0f : expf(next - c.top) / c.sum};
}
