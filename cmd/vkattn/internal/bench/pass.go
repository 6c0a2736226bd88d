package bench

import "fmt"

// Pass is what a row times: the forward pass, the backward pass from the O and LSE of a
// forward pass, or both in turn.
type Pass uint8

// The passes. The zero value is the forward pass.
const (
	PassForward Pass = iota
	PassBackward
	PassBoth
)

var passNames = [...]string{"fwd", "bwd", "fwdbwd"}

func (p Pass) String() string {
	if int(p) < len(passNames) {
		return passNames[p]
	}
	return fmt.Sprintf("Pass(%d)", uint8(p))
}

// ParsePass parses "fwd", "bwd" or "fwdbwd".
func ParsePass(s string) (Pass, error) {
	for i, name := range passNames {
		if s == name {
			return Pass(i), nil
		}
	}
	return 0, fmt.Errorf("unknown pass %q, want fwd, bwd or fwdbwd", s)
}

// MarshalText returns the name of the pass.
func (p Pass) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the name of a pass.
func (p *Pass) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePass(string(text))
	return err
}

// flops returns the flops of the pass divided by the flops of the forward pass: two
// products forward and five backward, even if a kernel computes some of them twice.
func (p Pass) flops() float64 { return [...]float64{1, 2.5, 3.5}[p] }
