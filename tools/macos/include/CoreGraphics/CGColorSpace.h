// Stand-in for Apple's header, as far as metal-cpp's QuartzCore headers use it.
#pragma once
typedef struct CGColorSpace* CGColorSpaceRef;
