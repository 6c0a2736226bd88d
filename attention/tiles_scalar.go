package attention

import "vkattn/vk"

// scalarSizes are the tiles of the scalar kernel, best first. Invocations
// form a grid threadsX wide; each owns blockRows/threadsY x kvTile/threadsX
// scores, 4x4 in the largest, which is what pays for the reads of shared
// memory. The first is 24 KiB, so that two workgroups share a multiprocessor of
// the H200 (docs/log.md): f32 at length 4096 is 19.6 TFLOP/s at head dim 64 and 20.7
// at 128 with it, 17.9 and 20.5 with the second, and under a causal mask 18.5 and
// 20.4 against 16.2 and 18.7. The last fits what Vulkan 1.1 guarantees: 128
// invocations, 16 KiB.
// Legal tiles have threadsX a multiple of 4 that divides kvTile, threadsY
// one that divides blockRows, chunkD a multiple of 8, and chunkV a multiple of
// 4 that divides kvTile.
var scalarSizes = []tile{
	{local: 128, threadsX: 8, blockRows: 64, kvTile: 32, chunkD: 32, chunkV: 16},
	{local: 256, threadsX: 16, blockRows: 64, kvTile: 64, chunkD: 32, chunkV: 16},
	{local: 256, threadsX: 16, blockRows: 64, kvTile: 32, chunkD: 32, chunkV: 16},
	{local: 128, threadsX: 16, blockRows: 32, kvTile: 32, chunkD: 32, chunkV: 8},
	{local: 128, threadsX: 16, blockRows: 32, kvTile: 32, chunkD: 16, chunkV: 4},
}

// scalarTiles lists the sizes within the device's invocations, with no more
// rows than there are queries to fill them.
func scalarTiles(limits *vk.Limits, headDimV, sq uint32) []tile {
	var list []tile
	for _, t := range scalarSizes {
		if t.local > limits.MaxInvocations || t.local > limits.MaxWorkGroupSize[0] {
			continue
		}
		threadsY := t.local / t.threadsX
		for t.blockRows > threadsY && t.blockRows/2 >= sq {
			t.blockRows /= 2
		}
		t.dvSlice = min(headDimV, MaxHeadDim)
		if t.threadsX == 8 && t.dvSlice > 128 {
			continue // an invocation would own 128 elements of O
		}
		if t.threadsX == 8 && t.dvSlice > 64 {
			t.chunkV = 8 // wide rows of V: half as many at once keep to 24 KiB
		}
		list = append(list, t)
	}
	return list
}
