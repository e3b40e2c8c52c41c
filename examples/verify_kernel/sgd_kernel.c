/* SGD with momentum for the CPU, as somebody might port it. It is wrong in one place: samestep verify finds it. */
#include <stdint.h>
#include <string.h>

typedef uint16_t bfloat16;

static inline float widen_float32(float x) { return x; }
static inline float narrow_float32(float x) { return x; }

static inline float widen_float16(_Float16 x) { return (float)x; }
static inline _Float16 narrow_float16(float x) { return (_Float16)x; }

static inline float widen_bfloat16(bfloat16 x) {
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

static inline bfloat16 narrow_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return (bfloat16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to nearest even */
}

#define SGD(T, NAME)                                                                                       \
    void sgd_##NAME(T *parameters, const T *gradient, const T *learning_rate, T *accum, const T *momentum,  \
                    T *stat, int64_t n, float dampening, float weight_decay, int nesterov) {                \
        const float lr = widen_##NAME(*learning_rate), m = widen_##NAME(*momentum);                         \
        for (int64_t i = 0; i < n; i++) {                                                                   \
            const float p = widen_##NAME(parameters[i]), s = widen_##NAME(stat[i]);                         \
            float grad = widen_##NAME(gradient[i]);                                                         \
            if (weight_decay != 0) grad = grad + p * weight_decay;                                          \
            float velocity = widen_##NAME(accum[i]) * m + grad;                                             \
            if (dampening != 0) velocity = velocity - grad * (1 - s) * dampening;                           \
            const float step = nesterov ? grad * lr + velocity * m * lr : velocity * lr;                    \
            parameters[i] = narrow_##NAME(p - step);                                                        \
            accum[i] = narrow_##NAME(velocity);                                                             \
            stat[i] = narrow_##NAME(0);                                                                     \
        }                                                                                                   \
    }

SGD(float, float32)
SGD(_Float16, float16)
SGD(bfloat16, bfloat16)
