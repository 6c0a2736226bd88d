// Package kvcache holds the keys and values of sequences.
//
// A [Cache] owns pages, block tables and lengths: sequences grow, are forked, truncated and freed, and share pages. An
// [Append] writes new keys and values into a cache whose memory and lengths are the caller's. Both apply a rotary
// embedding and quantize.
package kvcache
