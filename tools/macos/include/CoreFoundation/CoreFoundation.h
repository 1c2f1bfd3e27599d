// Stand-in for Apple's header: the only name of it that metal-cpp uses.
#pragma once
typedef double CFTimeInterval;
