// Included once for each instruction set.
#include "narrowed.h"
#include "rms_norm.h"
#include "rope.h"
