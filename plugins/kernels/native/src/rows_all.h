// Included once for each instruction set.
#include "narrowed.h"
#include "embed.h"
#include "rms_norm.h"
#include "rope.h"
