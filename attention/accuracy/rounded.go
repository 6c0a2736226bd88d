package accuracy

import "vkattn/attention"

// Rounded is what the rounding of quantised values may come to in each element of
// O: a kernel that multiplies in a 16-bit type has V dequantised in it, each value off
// by up to half a unit in its last place, and the largest of these counts with its
// key's weight. A value is often larger than what the weights make of it: a result of
// -1.9 from a V of -4.5 and others is off by two of its own half units, however exact the
// rest is. nil where nothing is rounded. Use it as Limits.Rounded.
func Rounded(cfg attention.Config, a attention.Args, sample []attention.Rows) ([]float64, error) {
	if cfg.KV == attention.KVSame || cfg.DType == attention.F32 {
		return nil, nil
	}
	if err := attention.CheckSample(cfg, a, sample); err != nil {
		return nil, err
	}
	return roundedFeatures(cfg, a, sample)
}
