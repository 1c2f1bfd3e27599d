// Stand-in for Apple's header, as far as metal-cpp uses it.
#pragma once
typedef struct __IOSurface* IOSurfaceRef;
