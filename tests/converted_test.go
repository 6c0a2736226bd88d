package tests

import (
	"slices"
	"testing"

	"vkattn/attention"
	"vkattn/internal/cases"
	"vkattn/internal/testlevel"
)

// TestConvertedKV runs calls of the tables of options on quantized K and V as TestOptionsConformance does, with K and V converted
// in front of the kernel: by time the calls of the tables have too few rows. Level all has every option with one of the types.
func TestConvertedKV(t *testing.T) {
	conformToTable(t, func(s *session) []cases.Target {
		return slices.DeleteFunc(s.available(), func(tt cases.Target) bool { return tt.DType == attention.F32 || tt.Tier == attention.TierCPU })
	}, convertedOf, attention.Experiment{ConvertKV: 1})
}

// convertedOf returns the cases of a tier whose K and V are converted. At level all those that are not quantized take the types in
// turn.
func convertedOf(s *session, tt cases.Target) (list []cases.Case) {
	types := slices.DeleteFunc(attention.KVTypes(), func(kv attention.KVType) bool {
		return kv == attention.KVSame || kv.Latent() || kv.Scaled() && tt.DType == attention.F16
	})
	all := slices.Contains([]testlevel.Level{testlevel.All, testlevel.Exhaustive}, testlevel.Get())
	for i, c := range optionTable(tt) {
		if c.KeyType == attention.KVSame && all {
			c.KeyType = types[i%len(types)]
		}
		switch {
		case c.KeyType == attention.KVSame, c.Dropout != 0, c.SparseRatio != 0, c.BlockQ != 0, c.VInK, c.FixedSplit != 0, c.D%8 != 0, c.Dv%8 != 0,
			c.KeyType.Blocked() && (c.D%32 != 0 || c.Dv%32 != 0), c.KeyType.Latent(), c.KeyType.Scaled() && tt.DType == attention.F16:
		default:
			list = append(list, c)
		}
	}
	return s.levelShareOf(tt, list)
}
