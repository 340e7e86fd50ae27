/* A C library whose elementary functions differ in the last bit, as those of other systems do; for LD_PRELOAD.

   What comes out exact stays as it is: on a power of two, or a whole number, all libraries agree.  Square roots are not
   touched, because IEEE 754 says how they are rounded. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

static double moved(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7ff0000000000000) == 0x7ff0000000000000 || !(bits & 0x3ffffff)) return x;
    bits += 1;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

static float movedf(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000) == 0x7f800000 || !(bits & 0x7ff)) return x;
    bits += 1;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

#define ONE(name, type, move)                                    \
    type name(type x) {                                          \
        static type (*real)(type);                               \
        if (!real) real = (type (*)(type))dlsym(RTLD_NEXT, #name); \
        return move(real(x));                                    \
    }
#define TWO(name, type, move)                                               \
    type name(type x, type y) {                                             \
        static type (*real)(type, type);                                    \
        if (!real) real = (type (*)(type, type))dlsym(RTLD_NEXT, #name);    \
        return move(real(x, y));                                            \
    }
#define BOTH(how, name) how(name, double, moved) how(name##f, float, movedf)

BOTH(TWO, pow)
BOTH(ONE, exp)
BOTH(ONE, exp2)
BOTH(ONE, expm1)
BOTH(ONE, log)
BOTH(ONE, log2)
BOTH(ONE, log10)
BOTH(ONE, log1p)
BOTH(ONE, cbrt)
BOTH(ONE, sin)
BOTH(ONE, cos)
BOTH(ONE, tanh)
