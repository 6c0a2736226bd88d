// Package plan decides how a call runs on a device: its tier, kernel and tile, the splits of
// its keys, and whether the decode kernel computes it. It has the tables of tiles, the
// candidates and estimates of tuning, and the cache of tuned tiles. It records nothing;
// compiling is left to its user, except for the probe of the order of matrix fragments.
package plan
