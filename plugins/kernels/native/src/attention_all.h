// Included once for each instruction set.
#include "attention.h"
#include "attention_gradient.h"
