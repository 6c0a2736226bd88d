package parallel

import (
	"encoding/binary"
	"fmt"
	"slices"

	"vkattn/attention"
	"vkattn/internal/enum"
	"vkattn/internal/problem"
	"vkattn/internal/tensors"
)

// Config says what to compute and how ranks share it. It is comparable, and the same on every
// rank.
type Config struct {
	attention.Config
	Mode     Mode
	Inner    int // consecutive ranks that share heads, for Mode2D; 0: Machine.RanksPerHost
	Order    Order
	Schedule Schedule // of a ring's forward pass
	Block    int      // consecutive tokens of a sharded KV cache on one rank; 0: DefaultBlock
	Machine  Machine  // speeds from which ModeAuto chooses
}

// Validate reports the first field that is wrong. Options that no mode computes are
// errors that match [attention.ErrUnsupported].
func (c Config) Validate() error {
	if err := c.Config.Validate(); err != nil {
		return err
	}
	switch {
	case !c.Mode.Valid():
		return &attention.ShapeError{Field: "Mode", Got: c.Mode, Want: "auto, ring, ulysses, allgather or 2d"}
	case !c.Order.Valid():
		return &attention.ShapeError{Field: "Order", Got: c.Order, Want: "auto, contiguous, zigzag or striped"}
	case !c.Schedule.Valid():
		return &attention.ShapeError{Field: "Schedule", Got: c.Schedule, Want: "auto, overlap or gather"}
	case c.Inner < 0 || c.Inner > MaxRanks:
		return &attention.ShapeError{Field: "Inner", Got: c.Inner, Want: fmt.Sprintf("1 to %d, or 0 for the ranks of a host", MaxRanks)}
	case c.Block < 0 || c.Block > attention.MaxLength:
		return &attention.ShapeError{Field: "Block", Got: c.Block, Want: "at least 1, or 0 for the default"}
	}
	for _, o := range problem.ConfigOptions {
		if o.Ranks != "" && o.Given((*problem.Config)(&c.Config)) {
			return &ModeError{c.Mode, "no " + o.Name + ": " + o.Ranks}
		}
	}
	switch {
	case c.KeyType.Latent():
		return &ModeError{c.Mode, fmt.Sprintf("no %v: its V is in K", c.KeyType)}
	case c.F32O || c.F32Gradients:
		return &ModeError{c.Mode, "no F32O and no F32Gradients: results have the storage type"}
	}
	return c.Machine.validate()
}

// String is a short form for logs.
func (c Config) String() string {
	s := c.Config.String() + " " + c.Mode.String()
	if c.Inner != 0 {
		s += fmt.Sprintf(" inner %d", c.Inner)
	}
	if c.Order != OrderAuto {
		s += " " + c.Order.String()
	}
	if c.Schedule != ScheduleAuto {
		s += " " + c.Schedule.String()
	}
	return s
}

// Problem holds the sizes of a whole call, over all ranks. It is the same on every rank.
type Problem struct {
	attention.Shape

	// CuQ and CuK are the cumulative lengths of packed sequences (cu_seqlens), B+1 numbers
	// each: sequence b has rows CuQ[b] to CuQ[b+1]-1 and keys CuK[b] to CuK[b+1]-1. Sq and Sk
	// bound the lengths. The batch size of packed tensors is 1. Both or neither are given. B may be
	// 0, and so may the rows or keys of all sequences: then O is 0, LSE -Inf, and gradients are 0.
	CuQ, CuK []int

	// Rows and Keys say which rows of Q and O, and which rows of K and V, each rank holds.
	// nil: in Config.Order. Modes refuse splits that need thousands of calls of attention.
	Rows, Keys Split
}

// check checks the sizes.
func (p *Problem) check() error {
	if err := tensors.CheckShape(p.Shape); err != nil {
		return err
	}
	if (p.CuQ == nil) != (p.CuK == nil) {
		return &attention.ShapeError{Field: "CuQ and CuK", Got: "one of them", Want: "both, or neither"}
	}
	for _, x := range []struct {
		field string
		cu    []int
		most  int
	}{{"CuQ", p.CuQ, p.Sq}, {"CuK", p.CuK, p.Sk}} {
		if x.cu == nil {
			continue
		}
		if len(x.cu) != p.B+1 || x.cu[0] != 0 || x.cu[p.B] < 0 || x.cu[p.B] > attention.MaxLength {
			return &attention.ShapeError{Field: x.field, Got: fmt.Sprintf("%d numbers", len(x.cu)),
				Want: fmt.Sprintf("%d, from 0 on", p.B+1)}
		}
		for b := range p.B {
			if n := x.cu[b+1] - x.cu[b]; n < 0 || n > x.most {
				return &attention.ShapeError{Field: x.field, Got: fmt.Sprintf("a sequence of %d", n), Want: fmt.Sprintf("0 to %d", x.most)}
			}
		}
	}
	return nil
}

// clone copies what the caller may change after the call.
func (p Problem) clone() Problem {
	p.CuQ, p.CuK, p.Rows, p.Keys = slices.Clone(p.CuQ), slices.Clone(p.CuK), p.Rows.clone(), p.Keys.clone()
	return p
}

// encode appends all fields to b. Missing slices and empty ones differ.
func (p *Problem) encode(b []byte) []byte {
	b = appendInts(b, p.B, p.Hq, p.Hkv, p.Sq, p.Sk)
	for _, cu := range [2][]int{p.CuQ, p.CuK} {
		b = appendInts(encodeLength(b, len(cu), cu == nil), cu...)
	}
	return p.Keys.encode(p.Rows.encode(b))
}

// encodeLength appends the length of a slice.
func encodeLength(b []byte, n int, missing bool) []byte {
	if missing {
		n = -1
	}
	return appendInts(b, n)
}

func appendInts(b []byte, list ...int) []byte {
	for _, x := range list {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return b
}

func (p *Problem) packed() bool { return p.CuQ != nil }

// batch is the batch size of the tensors; without sequences they are as packed ones of no rows.
func (p *Problem) batch() int {
	if p.packed() || p.B == 0 {
		return 1
	}
	return p.B
}

// extent is the number of rows and keys of the tensors of all ranks.
func (p *Problem) extent() (rows, keys int) {
	switch {
	case p.packed():
		return p.CuQ[p.B], p.CuK[p.B]
	case p.B == 0:
		return 0, 0
	}
	return p.Sq, p.Sk
}

// nothing reports whether no rank has rows, or none has keys: nothing is attended to.
func (p *Problem) nothing() bool {
	rows, keys := p.extent()
	return rows == 0 || keys == 0
}

// sequences lists the sequences of a tensor.
func (p *Problem) sequences() []sequence {
	switch {
	case p.packed():
	case p.B == 0:
		return nil
	default:
		return []sequence{{0, p.Sq, 0, p.Sk}}
	}
	list := make([]sequence, p.B)
	for b := range list {
		list[b] = sequence{p.CuQ[b], p.CuQ[b+1] - p.CuQ[b], p.CuK[b], p.CuK[b+1] - p.CuK[b]}
	}
	return list
}

// Mode says how ranks share a call.
type Mode uint8

// Modes. The zero value lets the plan choose.
const (
	ModeAuto      Mode = iota
	ModeRing           // K and V travel around the ranks
	ModeUlysses        // all-to-all between heads and sequence
	ModeAllGather      // all of K and V on every rank
	Mode2D             // ulysses among Config.Inner consecutive ranks, ring across
)

var modeNames = []string{"auto", "ring", "ulysses", "allgather", "2d"}

// Modes lists the modes that a plan may choose.
func Modes() []Mode { return []Mode{ModeRing, ModeUlysses, ModeAllGather, Mode2D} }

// Valid reports whether m is one of the named modes.
func (m Mode) Valid() bool { return int(m) < len(modeNames) }

// String is "auto", "ring", "ulysses", "allgather" or "2d".
func (m Mode) String() string { return enum.Name("Mode", modeNames, uint8(m)) }

// ParseMode reads what String writes, in any case. Another word is an error that lists the
// names and matches [attention.ErrInvalid].
func ParseMode(s string) (Mode, error) { return enum.Parse[Mode]("mode", modeNames, s) }

// Set makes *Mode a flag.Value.
func (m *Mode) Set(s string) error { return enum.Set(m, s, ParseMode) }

// MarshalText writes String.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is Set.
func (m *Mode) UnmarshalText(text []byte) error { return m.Set(string(text)) }

// Order is the order of rows and keys among the ranks.
type Order uint8

// Orders. The zero value is zigzag under a causal mask, otherwise contiguous.
const (
	OrderAuto       Order = iota
	OrderContiguous       // see [Contiguous]
	OrderZigzag           // see [Zigzag]
	OrderStriped          // see [Striped]
)

var orderNames = []string{"auto", "contiguous", "zigzag", "striped"}

// Valid reports whether o is one of the named orders.
func (o Order) Valid() bool { return int(o) < len(orderNames) }

// String is "auto", "contiguous", "zigzag" or "striped".
func (o Order) String() string { return enum.Name("Order", orderNames, uint8(o)) }

// ParseOrder reads what String writes, in any case. Another word is an error that lists the
// names and matches [attention.ErrInvalid].
func ParseOrder(s string) (Order, error) { return enum.Parse[Order]("order", orderNames, s) }

// Set makes *Order a flag.Value.
func (o *Order) Set(text string) error { return enum.Set(o, text, ParseOrder) }

// MarshalText writes String.
func (o Order) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText is Set.
func (o *Order) UnmarshalText(text []byte) error { return o.Set(string(text)) }

// split is the split of n rows in an order other than OrderAuto.
func (o Order) split(n, ranks int) Split {
	return map[Order]func(n, ranks int) Split{OrderContiguous: Contiguous, OrderZigzag: Zigzag, OrderStriped: Striped}[o](n, ranks)
}

// order is the order of a Config, resolved.
func (c *Config) order() Order {
	switch {
	case c.Order != OrderAuto:
		return c.Order
	case c.Causal != attention.CausalNone:
		return OrderZigzag
	}
	return OrderContiguous
}
