package attention

import (
	"vkattn/attention/merge"
	"vkattn/vk"
)

// Merging of attention states. Package merge documents fields and methods.
type (
	// Merge combines attention states of the same query rows over disjoint sets of keys.
	Merge = merge.Merge
	// MergeConfig says what states a Merge takes.
	MergeConfig = merge.MergeConfig
	// MergeArgs are the tensors of one merge.
	MergeArgs = merge.MergeArgs
	// States are attention states of the same rows over different keys.
	States = merge.States
	// Sum adds float32 tensors, such as partial gradients, and rounds the sum once.
	Sum = merge.Sum
	// SumArgs are the tensors of one sum.
	SumArgs = merge.SumArgs
)

// NewMerge makes an operation. A nil device selects the CPU tier. The device stays the
// caller's and must outlive the Merge. A wrong field gives a *ShapeError; an Access that
// the device lacks gives an error that matches [ErrUnsupported].
func NewMerge(dev *vk.Device, cfg MergeConfig) (*Merge, error) { return merge.NewMerge(dev, cfg) }

// NewSum makes an operation as NewMerge does. The config has F32States.
func NewSum(dev *vk.Device, cfg MergeConfig) (*Sum, error) { return merge.NewSum(dev, cfg) }
