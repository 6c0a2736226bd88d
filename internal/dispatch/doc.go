// Package dispatch has what every operation needs to dispatch a kernel: the description of
// its pipeline, a cache of pipelines, bindings of tensors, the bytes of a parameter block.
package dispatch
