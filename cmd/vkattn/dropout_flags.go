package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/sweep"
)

// dropoutFlags are the flags of dropout.
type dropoutFlags struct {
	p      float32
	seed   uint64
	offset uint32
}

func (d *dropoutFlags) add(f *pflag.FlagSet) {
	f.Var(parsed[float32]{to: &d.p, parse: sweep.Probability, kind: "float"}, "dropout", bench.DropoutUsage)
	f.Uint64Var(&d.seed, "dropout-seed", 0, "`seed` of the dropout mask, 64 bits")
	f.Uint32Var(&d.offset, "dropout-offset", 0, "`offset` of the dropout mask, 32 bits: another mask for each")
}

func (d *dropoutFlags) conflict(changed func(string) bool) error {
	for _, flag := range []string{"dropout-seed", "dropout-offset"} {
		if changed(flag) && !changed("dropout") {
			return badInputf("--%s needs --dropout", flag)
		}
	}
	return nil
}

// set puts the mask into the arguments of a call.
func (d *dropoutFlags) set(a *attention.Args) { a.DropoutSeed, a.DropoutOffset = d.seed, d.offset }

// String is such as "0.1, seed 7, offset 2".
func (d *dropoutFlags) String() string {
	s := fmt.Sprintf("%v, seed %d", d.p, d.seed)
	if d.offset != 0 {
		s += fmt.Sprintf(", offset %d", d.offset)
	}
	return s
}
