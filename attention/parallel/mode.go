package parallel

import (
	"vkattn/attention"
	"vkattn/internal/enum"
)

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
