package main

import (
	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/vk"
	"vkattn/vk/hostmem"
)

// memory is what a run takes, in bytes, computed from the headers of the files.
// Sizes that overflow saturate and fit nowhere.
type memory struct {
	arguments uint64 // tensors, tables and lists as the call has them
	host      uint64 // what else the host keeps
	passing   uint64 // the most at one time of what is dropped again
}

// memory needs the axes of the tensors and the storage type.
func (in *runInputs) memory() (m memory) {
	to := in.config.DType
	pass := func(bytes uint64) { m.passing = max(m.passing, bytes) }
	keep := func(sizes ...uint64) { m.arguments = hostmem.Sum(append(sizes, m.arguments)...) }
	for flag, f := range in.files {
		n := f.Bytes() / uint64(f.DType.Size())
		switch {
		case flag == "q", in.o.kv == attention.KVSame && (flag == "k" || flag == "v"):
			keep(hostmem.Product(n, uint64(to.Size())))
			if fileType(f.DType) != to {
				pass(f.LoadBytes())
			} else {
				pass(f.LoadBytes() - f.Bytes())
			}
		case flag == "block-mask": // bits from bytes
			keep(n/8, n/8)
			pass(f.LoadBytes())
		case f.DType == npy.Int32 || f.DType == npy.Int64: // through a slice of int32, the tokens of lists through two
			keep(hostmem.Product(n, 4))
			m.host = hostmem.Sum(m.host, hostmem.Product(n, 8))
			pass(f.LoadBytes())
		default:
			keep(f.Bytes())
			pass(f.LoadBytes() - f.Bytes())
		}
	}
	o := in.outputAxes()
	rows := hostmem.Product(o.batch, o.heads, o.rows)
	keep(hostmem.Product(rows, uint64(o.dim), uint64(to.Size())))
	if in.o.lse != "" {
		keep(hostmem.Product(rows, 4))
	}
	if to != attention.F32 { // O is written as float32
		pass(hostmem.Product(rows, uint64(o.dim), 4))
	}
	return m
}

// room refuses a run that does not fit the memory of the host, or of a device with
// some scratch memory of the kernel.
func (in *runInputs) room(dev *vk.Device, scratch uint64) error {
	m := in.memory()
	host := hostmem.Sum(m.arguments, m.host, m.passing)
	if dev == nil {
		return bench.Room(nil, host, 0)
	}
	return bench.Room(dev, host, hostmem.Sum(m.arguments, scratch))
}
