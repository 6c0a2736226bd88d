package host

import (
	"vkattn/internal/hostmem"
	"vkattn/internal/par"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// DropoutMask is attention.DropoutMask, which documents it.
func DropoutMask(cfg problem.Config, a problem.Args) ([]byte, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := tensors.CheckShape(a.Shape); err != nil {
		return nil, err
	}
	if err := tensors.CheckHost("DropoutMask", hostmem.Product(a.B, a.Hq, a.Sq, a.Sk)); err != nil {
		return nil, err
	}
	if err := tensors.CheckDropoutState(&a); err != nil {
		return nil, err
	}
	mask := make([]byte, a.B*a.Hq*a.Sq*a.Sk)
	m := tensors.DropoutOf(&cfg, &a)
	par.Each(a.Rows(), func() func(int64) {
		return func(i int64) {
			head, row, keys := uint32(i/int64(a.Sq)), uint32(i%int64(a.Sq)), mask[i*int64(a.Sk):][:a.Sk]
			for quad := uint32(0); int(quad)*4 < len(keys); quad++ {
				words := m.Words(head, row, quad)
				four := keys[4*quad:]
				for j := range min(len(four), 4) {
					if words[j] >= m.Threshold {
						four[j] = 1
					}
				}
			}
		}
	})
	return mask, nil
}
