// Package host computes on the CPU: the CPU tier ([Forward]), and the float64 reference of
// the forward and the backward pass. They share only what says where tensors lie and which
// keys a row attends to (hostcall.go), and no arithmetic on values.
package host
