// Stand-in for Apple's header, as far as metal-cpp's QuartzCore headers use it.
#pragma once
typedef double CGFloat;
typedef struct CGSize {
  CGFloat width;
  CGFloat height;
} CGSize;
