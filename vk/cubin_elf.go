package vk

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
)

// cubinKernel has the resources of a kernel as its cubin declares them, so that a launch
// can be checked: a launch that fails on the device loses it.
type cubinKernel struct {
	params     []uint32 // bytes of each parameter, in order
	offsets    []uint32 // of each parameter in their concatenation
	paramBytes uint32   // of all
	shared     uint64   // static shared memory, with the KiB that the system reserves
	registers  uint32   // per thread
	local      uint32   // bytes of local memory per thread: arrays and spills
	maxThreads uint32   // of a CTA; 0: not declared
	cluster    bool     // requires cluster dimensions, which the extension cannot set
}

// Attributes in the .nv.info sections of a cubin, as cuobjdump -elf names them.
const (
	infoMaxThreads  = 0x05 // EIATTR_MAX_THREADS: three words
	infoFrame       = 0x11 // EIATTR_FRAME_SIZE: symbol, bytes
	infoParam       = 0x17 // EIATTR_KPARAM_INFO: index, ordinal and offset, size in the upper 14 bits
	infoRegisters   = 0x2f // EIATTR_REGCOUNT: symbol, registers
	infoExplicit    = 0x3e // EIATTR_EXPLICIT_CLUSTER
	infoCluster     = 0x3d // EIATTR_CTA_PER_CLUSTER
	infoWithPayload = 4    // EIFMT_SVAL
)

// parseCubin lists the kernels of a cubin by name.
func parseCubin(cubin []byte) (map[string]*cubinKernel, error) {
	const machineCUDA, versionAt, versionEnd, flagsAt, headerEnd = 190, 20, 24, 48, 64
	if len(cubin) < headerEnd {
		return nil, fmt.Errorf("no cubin: %d bytes", len(cubin))
	}
	// A cubin has the CUDA version where debug/elf expects the ELF version.
	cubin = bytes.Clone(cubin)
	binary.LittleEndian.PutUint32(cubin[versionAt:versionEnd], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(cubin))
	if err != nil {
		return nil, fmt.Errorf("no cubin: %w", err)
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB || f.Machine != machineCUDA {
		return nil, fmt.Errorf("no cubin: an ELF file of %v", f.Machine)
	}
	// The system reserves a KiB of shared memory. Cubins from sm_90 on count it if the kernel
	// uses shared memory, those before do not.
	const reserved = 1024
	counted := binary.LittleEndian.Uint32(cubin[flagsAt:])&0xff >= 90
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("no cubin: %w", err)
	}
	kernels := map[string]*cubinKernel{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || elf.ST_BIND(s.Info) != elf.STB_GLOBAL || f.Section(".nv.info."+s.Name) == nil {
			continue
		}
		k := &cubinKernel{shared: reserved}
		if shared := f.Section(".nv.shared." + s.Name); shared != nil && counted {
			k.shared = max(k.shared, shared.Size)
		} else if shared != nil {
			k.shared += shared.Size
		}
		data, err := f.Section(".nv.info." + s.Name).Data()
		if err != nil {
			return nil, fmt.Errorf("kernel %s: %w", s.Name, err)
		}
		if err := k.readInfo(data); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", s.Name, err)
		}
		kernels[s.Name] = k
	}
	if all := f.Section(".nv.info"); all != nil {
		data, err := all.Data()
		if err != nil {
			return nil, fmt.Errorf("no cubin: %w", err)
		}
		err = eachInfo(data, func(attribute byte, payload []byte) error {
			if attribute != infoRegisters && attribute != infoFrame || len(payload) < 8 {
				return nil
			}
			// debug/elf leaves out symbol 0.
			if i := int64(binary.LittleEndian.Uint32(payload)) - 1; i >= 0 && i < int64(len(symbols)) {
				n := binary.LittleEndian.Uint32(payload[4:])
				switch k := kernels[symbols[i].Name]; {
				case k == nil:
				case attribute == infoFrame:
					k.local = n
				default:
					k.registers = n
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for name, k := range kernels {
		if k.registers == 0 {
			return nil, fmt.Errorf("kernel %s: the cubin does not say how many registers it uses", name)
		}
	}
	if len(kernels) == 0 {
		return nil, fmt.Errorf("the cubin has no kernel")
	}
	return kernels, nil
}

// eachInfo calls f with each attribute that has a payload.
func eachInfo(data []byte, f func(attribute byte, payload []byte) error) error {
	for len(data) >= 4 {
		format, attribute, size := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
		data = data[4:]
		if format != infoWithPayload {
			size = 0 // the half word is the value
		}
		if size > len(data) {
			return fmt.Errorf("attribute %#x of %d bytes exceeds its section", attribute, size)
		}
		if format == infoWithPayload || attribute == infoExplicit {
			if err := f(attribute, data[:size]); err != nil {
				return err
			}
		}
		data = data[size:]
	}
	return nil
}

func (k *cubinKernel) readInfo(data []byte) error {
	type param struct{ ordinal, size uint32 }
	var list []param
	err := eachInfo(data, func(attribute byte, payload []byte) error {
		switch attribute {
		case infoParam:
			if len(payload) != 12 {
				return fmt.Errorf("a parameter is described by %d bytes", len(payload))
			}
			list = append(list, param{uint32(binary.LittleEndian.Uint16(payload[4:])), binary.LittleEndian.Uint32(payload[8:]) >> 18})
		case infoMaxThreads:
			if len(payload) != 12 {
				return fmt.Errorf("the largest CTA is described by %d bytes", len(payload))
			}
			n := uint64(1)
			for i := range 3 {
				n *= uint64(binary.LittleEndian.Uint32(payload[4*i:]))
				n = min(n, 1<<31)
			}
			k.maxThreads = uint32(n)
		case infoCluster, infoExplicit:
			k.cluster = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b param) int { return int(a.ordinal) - int(b.ordinal) })
	for i, p := range list {
		if p.ordinal != uint32(i) || p.size == 0 {
			return fmt.Errorf("the cubin does not describe parameter %d", i)
		}
		k.params = append(k.params, p.size)
		k.offsets = append(k.offsets, k.paramBytes)
		k.paramBytes += p.size
	}
	return nil
}
