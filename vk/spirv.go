package vk

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// checkSPIRV checks the version and the capabilities of a module: a driver that does not
// have them need not return an error.
func (info *DeviceInfo) checkSPIRV(op string, code []byte) error {
	if len(code) < 20 || len(code)%4 != 0 {
		return invalid(op, "%d bytes are no SPIR-V module", len(code))
	}
	if binary.LittleEndian.Uint32(code) != 0x07230203 {
		return invalid(op, "the code does not start like little-endian SPIR-V")
	}
	have := uint32(3) // SPIR-V 1.3 comes with Vulkan 1.1
	switch v := info.effectiveAPI >> 12; {
	case v >= 1<<10|3:
		have = 6
	case v >= 1<<10|2:
		have = 5
	}
	if v := binary.LittleEndian.Uint32(code[4:]); v>>16 != 1 || v>>8&0xff > have {
		return unsupported(op, "SPIR-V %d.%d; Vulkan %s takes up to 1.%d", v>>16, v>>8&0xff, Version(info.effectiveAPI), have)
	}
	var missing []string
	var needs []Need
	require := func(id uint32, need Need, kind string) {
		if !need.Have(&info.Caps) {
			missing = append(missing, fmt.Sprintf("%s (%s %d)", need.Name, kind, id))
			needs = append(needs, need)
		}
	}
	for at := 20; at < len(code); {
		w := binary.LittleEndian.Uint32(code[at:])
		n := int(w >> 16)
		if n == 0 || at+4*n > len(code) {
			return invalid(op, "broken SPIR-V instruction at byte %d", at)
		}
		switch w & 0xffff {
		case 17: // OpCapability
			if n != 2 {
				return invalid(op, "broken OpCapability at byte %d", at)
			}
			id := binary.LittleEndian.Uint32(code[at+4:])
			if need, ok := capabilities[id]; ok {
				require(id, need, "capability")
			}
		case 331: // OpExecutionModeId
			if n < 3 {
				return invalid(op, "broken OpExecutionModeId at byte %d", at)
			}
			if id := binary.LittleEndian.Uint32(code[at+8:]); id == 38 { // LocalSizeId
				require(id, Need{"maintenance4", func(c *Caps) bool { return c.Maintenance4 }}, "execution mode")
			}
		case 10, 11, 14, 15, 16: // what stands between them
		default:
			at = len(code)
		}
		at += 4 * n
	}
	if missing != nil {
		return unsupported(op, "the code needs %s; %s", strings.Join(missing, ", "), info.Caps.Without(needs...))
	}
	return nil
}

// capabilities maps capabilities of compute kernels to the Caps that they need. Others are
// left to the driver.
var capabilities = map[uint32]Need{
	9:    {"float16", func(c *Caps) bool { return c.Float16 }},
	11:   {"int64", func(c *Caps) bool { return c.Int64 }},
	22:   {"int16", func(c *Caps) bool { return c.Int16 }},
	39:   {"int8", func(c *Caps) bool { return c.Int8 }},
	61:   {"subgroup operations", ops(SubgroupBasic)},
	62:   {"subgroup vote", ops(SubgroupVote)},
	63:   {"subgroup arithmetic", ops(SubgroupArithmetic)},
	64:   {"subgroup ballot", ops(SubgroupBallot)},
	65:   {"subgroup shuffle", ops(SubgroupShuffle)},
	66:   {"relative subgroup shuffle", ops(SubgroupShuffleRelative)},
	67:   {"clustered subgroup operations", ops(SubgroupClustered)},
	68:   {"quad subgroup operations", ops(SubgroupQuad)},
	4428: {"workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout }},
	4429: {"8-bit workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout8 }},
	4430: {"16-bit workgroup memory layout", func(c *Caps) bool { return c.WorkgroupLayout16 }},
	4433: {"16-bit storage", func(c *Caps) bool { return c.Storage16 }},
	4434: {"16-bit storage in uniform and storage buffers", func(c *Caps) bool { return c.UniformStorage16 }},
	4448: {"8-bit storage", func(c *Caps) bool { return c.Storage8 }},
	5116: {"bfloat16", func(c *Caps) bool { return c.BFloat16 }},
	5117: {"bfloat16 dot product", func(c *Caps) bool { return c.BFloat16Dot }},
	5118: {"bfloat16 cooperative matrices", func(c *Caps) bool { return c.BFloat16CoopMat }},
	5345: {"the Vulkan memory model", func(c *Caps) bool { return c.VulkanMemoryModel }},
	5346: {"the memory model at device scope", func(c *Caps) bool { return c.MemoryModelDeviceScope }},
	5347: {"buffer device addresses", func(c *Caps) bool { return c.BufferDeviceAddress }},
	5430: {"cooperative matrix reductions", func(c *Caps) bool { return c.CoopMat2.Reductions }},
	5431: {"cooperative matrix conversions", func(c *Caps) bool { return c.CoopMat2.Conversions }},
	5432: {"per-element cooperative matrix operations", func(c *Caps) bool { return c.CoopMat2.PerElement }},
	5433: {"cooperative matrix tensor addressing", func(c *Caps) bool { return c.CoopMat2.TensorAddressing }},
	5434: {"cooperative matrix block loads", func(c *Caps) bool { return c.CoopMat2.BlockLoads }},
	5439: {"tensor addressing", func(c *Caps) bool { return c.CoopMat2.TensorAddressing }},
	6022: {"cooperative matrices", func(c *Caps) bool { return c.CoopMat }},
}

func ops(want SubgroupOps) func(*Caps) bool {
	return func(c *Caps) bool { return c.SubgroupOps&want == want }
}
