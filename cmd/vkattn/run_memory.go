package main

import (
	"vkattn/attention"
	"vkattn/cmd/vkattn/internal/bench"
	"vkattn/cmd/vkattn/internal/npy"
	"vkattn/internal/hostmem"
	"vkattn/vk"
)

// memory is the memory of a run in bytes, computed from the headers of the files.
// Sizes that overflow saturate and fit nowhere.
type memory struct {
	arguments uint64 // tensors, tables and lists of the call
	host      uint64 // copies that the host keeps
	passing   uint64 // the largest temporary copy
}

// memory computes the memory of the run. The axes of the tensors and the storage type
// must be known.
func (in *runInputs) memory() (m memory) {
	to := in.config.DType
	pass := func(bytes ...uint64) { m.passing = max(m.passing, hostmem.Sum(bytes...)) }
	keep := func(sizes ...uint64) { m.arguments = hostmem.Sum(append(sizes, m.arguments)...) }
	for flag, f := range in.files {
		n := f.Bytes() / uint64(f.DType.Size())
		switch {
		case flag == "q", flag == "do", flag == "o-in", in.o.call.KV == attention.KVSame && (flag == "k" || flag == "v"):
			keep(hostmem.Product(n, uint64(to.Size())))
			if fileType(f.DType) != to {
				pass(f.LoadBytes())
			} else {
				pass(f.LoadBytes() - f.Bytes())
			}
		case flag == "dlse", flag == "lse-in":
			keep(hostmem.Product(n, 4))
			pass(f.LoadBytes())
		case flag == "block-mask": // bits from bytes
			keep(n/8, n/8)
			pass(f.LoadBytes())
		case f.DType == npy.Int32 || f.DType == npy.Int64: // read into one slice of int32, sparse tokens into two
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
	in.gradientMemory(keep, pass)
	if in.o.has("o-in") {
		return m // O and LSE are files
	}
	keep(hostmem.Product(rows, uint64(o.dim), uint64(to.Size())))
	if in.o.has("lse") || in.o.wanted() {
		keep(hostmem.Product(rows, 4))
	}
	if to != attention.F32 { // O is written as float32
		pass(hostmem.Product(rows, uint64(o.dim), 4))
	}
	return m
}

// room returns an error if the run does not fit the memory of the host, or of the device
// with the scratch memory of the kernel.
func (in *runInputs) room(dev *vk.Device, scratch uint64) error {
	m := in.memory()
	host := hostmem.Sum(m.arguments, m.host, m.passing)
	if dev == nil {
		return bench.Room(nil, host, 0)
	}
	return bench.Room(dev, host, hostmem.Sum(m.arguments, scratch))
}
