package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"vkattn/attention"
)

// dropoutFlags are the flags of dropout.
type dropoutFlags struct {
	p      float32
	seed   uint64
	offset uint32
}

const dropoutUsage = "probability with which a weight is dropped, below 1; the others are multiplied by 1 / (1 - `p`)"

func (d *dropoutFlags) add(f *pflag.FlagSet) {
	f.Var((*probabilityFlag)(&d.p), "dropout", dropoutUsage)
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

// probabilityFlag is the value of --dropout: at least 0 and below 1.
type probabilityFlag float32

func (p *probabilityFlag) String() string {
	if *p == 0 {
		return ""
	}
	return fmt.Sprint(float32(*p))
}

func (p *probabilityFlag) Set(s string) error {
	v, err := strconv.ParseFloat(s, 32)
	if err != nil || !(v >= 0 && float32(v) < 1) {
		return fmt.Errorf("want a probability of at least 0 and below 1")
	}
	*p = probabilityFlag(v)
	return nil
}

func (p *probabilityFlag) Type() string { return "float" }
