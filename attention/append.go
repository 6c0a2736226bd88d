package attention

import (
	"vkattn/attention/kvcache"
	"vkattn/vk"
)

// Appending to a KV cache. Package kvcache documents fields and methods.
type (
	// Append writes new keys and values into a KV cache.
	Append = kvcache.Append
	// AppendConfig says what rows an Append takes and how it stores them.
	AppendConfig = kvcache.AppendConfig
	// AppendArgs are the tensors of one call.
	AppendArgs = kvcache.AppendArgs
	// Rotary is a rotary position embedding.
	Rotary = kvcache.Rotary
	// RotaryStyle says which elements of a row form the pairs of a rotary embedding.
	RotaryStyle = kvcache.RotaryStyle
)

// Styles. Permuting the columns of the projections of Q and K turns one into the other.
// Weights are made for one of them.
const (
	RotaryInterleaved = kvcache.RotaryInterleaved // elements 2i and 2i+1 (GPT-J, the RoFormer paper, "norm" in local inference)
	RotaryHalfSplit   = kvcache.RotaryHalfSplit   // elements i and i + Dim/2 (GPT-NeoX, LLaMA as Hugging Face has it)
)

// ParseRotaryStyle reads what String writes, in any case. Another word is an error that
// lists the names and matches [ErrInvalid].
func ParseRotaryStyle(s string) (RotaryStyle, error) { return kvcache.ParseRotaryStyle(s) }

// NewAppend makes an operation. A nil device selects the CPU tier. The device stays the
// caller's and must outlive the Append. A wrong field gives a *ShapeError; an Access that
// the device lacks gives an error that matches [ErrUnsupported].
func NewAppend(dev *vk.Device, cfg AppendConfig) (*Append, error) { return kvcache.NewAppend(dev, cfg) }
