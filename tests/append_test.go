package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"vkattn/attention"
	"vkattn/attention/kvcache"
	"vkattn/internal/cases"
	"vkattn/vk"
)

// The cases of appends, on the CPU tier and on the device under test.

func appendCases() (all []appendCase) {
	layouts := []cases.LayoutKind{cases.Tight, cases.BSHD, cases.Padded, cases.Odd, cases.Even}
	lengths := []string{"", "packed", "counted"}
	pages := []int{0, 1, 5, 16}
	dims := [][2]int{{1, 0}, {3, 8}, {8, 13}, {64, 0}, {100, 96}, {128, 0}, {192, 128}, {257 - 1, 0}, {576, 512}}
	n := 0
	add := func(dtype attention.DType, kv attention.KVType, dim [2]int) {
		n++
		c := appendCase{b: 1 + n/3%4, hkv: 1 + n%3, group: 1 + n%2, rows: 1 + n*5%9, capacity: 7 + n*7%23, seed: uint64(n),
			layout: layouts[n%5], lengths: lengths[n/2%3], pageSize: pages[(n+n/4)%4],
			inPlace: n%3 == 0, noV: n%11 == 5, noQ: n%7 == 3, empty: n%6 == 4}
		c.AppendConfig = kvcache.AppendConfig{DType: dtype, KeyType: kv, ValueType: kv, HeadDim: dim[0], HeadDimV: dim[1]}
		if n%4 != 1 {
			r := kvcache.Rotary{Dim: dim[0] &^ 1, Style: kvcache.RotaryStyle(n / 4 % 2)}
			if n%5 == 2 {
				r.First = dim[0] / 3
				r.Dim = (dim[0] - r.First) / 2 &^ 1
			}
			c.Rotary = r
			if n%8 == 7 {
				c.positions = c.capacity/2 + 1
			}
			c.CosSinOfDType, c.qAtUsed = n%3 == 2 && r.Dim > 0, n%5 == 1
			if c.lengths != "packed" && n%2 == 0 {
				c.rowsQ, c.positions = 1+n%5, c.capacity+n%4
			}
		}
		if n%3 == 1 {
			c.ValueType = cases.OtherKVType(kv)
		}
		all = append(all, c)
	}
	for _, dtype := range attention.DTypes() {
		for _, dim := range dims {
			add(dtype, attention.KVSame, dim)
		}
		for _, kv := range attention.KVTypes()[1:] {
			if kv.Scaled() {
				add(dtype, kv, [2]int{13, 7})
				add(dtype, kv, [2]int{24, 0})
				all[len(all)-1].KVBlock = []int{attention.KVBlockHead, attention.KVBlockTensor}[len(all)%2]
			}
			if kv.Latent() {
				add(dtype, kv, [2]int{576, 512})
				all[len(all)-1].noV = true
				continue
			}
			add(dtype, kv, [2]int{64, 32})
			add(dtype, kv, [2]int{128, 0})
		}
	}
	return all
}

// New rows of every kind are written to their rows of the cache, rotated and quantized as
// the float64 reference does, and nothing else is written.
func TestAppend(t *testing.T) {
	onMergers(t, func(t *testing.T, dev *vk.Device) {
		for i, access := range mergeAccesses(dev) {
			for n, c := range appendCases() {
				if dev != nil && !full() && n%(4<<i) != 2-i {
					continue // CPU drivers compile three kernels for each
				}
				c.Access = access
				t.Run(c.String(), func(t *testing.T) {
					p := newAppendProblem(c)
					after, err := p.run(dev)
					require.NoError(t, err)
					require.NoError(t, p.trespass(after))
					require.NoError(t, p.judge(after))
				})
			}
		}
	})
}
